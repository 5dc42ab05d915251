// A verdict is the judgement that a command ends with. It has one name, which JSON, files and messages show, and one
// exit code of the contract (docs/contract.md, Exit codes).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/fields.h"

namespace specdec {

enum class Verdict {
  // The first six verdicts are those of validate; bench and monitor use some of them, too.
  kPass,
  kFail,
  kNotLossless,
  kNotWorthIt,
  kInconclusive,
  kStale,
  // verdicts of bench only
  kFaster,
  // verdicts of monitor only
  kHealthy,
  kWarn,
  kDrift,
  kStaleTarget,
  // verdicts of distill only
  kImproved,
  kNoSignificantGain,
};

// Returns the verdict's name in JSON and files, such as "not_worth_it".
const char* to_string(Verdict verdict);
// Returns the verdict with this name, or nothing if there is none.
std::optional<Verdict> verdict_named(std::string_view name);
// Returns a verdict's name for people: "not_worth_it" becomes "not worth it".
std::string readable(std::string_view name);
// Returns the contract's exit code for the verdict. bench_exit_code() and monitor_exit_code() say where these two
// commands depart from it.
int exit_code(Verdict verdict);
// Returns whether validate can end with this verdict, so that a validation report may contain it.
bool is_gate_verdict(Verdict verdict);
// The field "verdict": visit_verdict() allows the verdicts in `allowed`, visit_gate_verdict() those of the gate.
void visit_verdict(Fields& f, Verdict& verdict, const std::vector<Verdict>& allowed);
void visit_gate_verdict(Fields& f, Verdict& verdict);

// Lets {"verdict", v} write the name. from_json is deleted, because a name in a file may be unknown: use
// verdict_named().
void to_json(Json& json, Verdict verdict);
void from_json(const Json& json, Verdict& verdict) = delete;

}  // namespace specdec
