// What a validation report was judged by, check by check: the one list behind the verdict, JUnit, annotations and the
// report's table.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/schema/validation_report.h"
#include "base/verdict.h"

namespace specdec::deploy {

inline constexpr int64_t kLeastUnits = 4;  // prompts: fewer give no interval of a speed-up that could decide anything
inline constexpr double kSampledLimit = 1e-4;  // smaller p-values: the output is not distributed as the target's

struct Check {
  enum class State { kPass, kFail, kOpen, kNotMeasured, kNotJudged };
  std::string segment;  // "" = all requests
  std::string name;     // binding | lossless | acceptance | speed-up | against the serving draft | against the baseline
  State state;
  Verdict verdict;   // of the report, where this one fails: kStale, kNotLossless, kFail, kNotWorthIt
  std::string text;  // one line with the figures, and where it is open what to give more of
  // that it was judged by; none where it was not, or by no interval
  std::optional<ValidationReport::Figure> figure = {};
};
const char* to_string(Check::State state);  // "pass", "fail", "inconclusive", "not measured", "not judged"

// "other processes used 1.9 of 2 CPUs"; "" where that is not known.
std::string others_of(const MachineUse& machine);
// The same, or that it cannot be read here, and how many runs were timed and repeated.
std::string machine_line(const MachineUse& machine);

// Below the floor: kFail; above: kPass; it lies in the interval: kOpen.
Check::State side(const Estimate& estimate, double floor);

// In the order of judgement (docs/contract.md, Default gate). A report that is stale has one.
std::vector<Check> checks_of(const ValidationReport& report);

}  // namespace specdec::deploy
