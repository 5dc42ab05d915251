// The gate: a pure function from measured figures to a verdict, in the order of the contract (docs/contract.md, Default gate).
#pragma once

#include <string>

#include "base/schema/validation_report.h"

namespace specdec::deploy {

struct GateRules {
  double floor = 0.60, goal = 0.70;  // of alpha; the goal is only reported
  std::string stale;                 // why the draft is stale, empty if it is not (or that was allowed)
};
struct GateVerdict {
  std::string verdict;  // pass | fail | not_lossless | not_worth_it | inconclusive | stale
  std::string reason;   // one line
};

// Sampled test: smaller p-values mean that the output is not distributed as the target's.
inline constexpr double kSampledLimit = 1e-4;

// stale · not lossless · fail · not worth it · pass · else inconclusive. A part that was not measured (alpha.n = 0, has_speed or
// has_lossless false) cannot fail, and without it there is no pass.
GateVerdict judge(const ValidationReport& report, const GateRules& rules);

// Throws Error(kUsage): outside [0, 1], or a floor below 0.5 without --force.
void check_rules(const GateRules& rules, bool force);

// Alpha now minus alpha of an earlier report on the same request ids; interval by bootstrap over the pairs. .n = pairs; without
// any pair n is 0 and the interval [-1, 1].
Estimate paired_difference(const ValidationReport& now, const ValidationReport& baseline);

}  // namespace specdec::deploy
