// A verdict is the judgement that a command ends with. It has one name, which JSON, files and messages show, and one
// exit code of the contract (docs/contract.md, Exit codes).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace specdec {

enum class Verdict {
  // validate gives the first six. bench and monitor give some of them, too.
  kPass,
  kFail,
  kNotLossless,
  kNotWorthIt,
  kInconclusive,
  kStale,
  // bench
  kFaster,
  // monitor
  kHealthy,
  kWarn,
  kDrift,
  kStaleTarget,
  // distill
  kImproved,
  kNoSignificantGain,
};

// Returns the name that JSON and files have, such as "not_worth_it".
const char* to_string(Verdict verdict);
// Returns nothing for a name that no verdict has.
std::optional<Verdict> verdict_named(std::string_view name);
// Returns a verdict's name for people: "not_worth_it" becomes "not worth it".
std::string readable(std::string_view name);
// Returns the contract's exit code for the verdict. bench_exit_code() and monitor_exit_code() say where these two
// commands depart from it.
int exit_code(Verdict verdict);
// Says whether validate can come to this verdict, so that a report may have it.
bool is_gate_verdict(Verdict verdict);

// {"verdict", v} writes the name. There is no way back but verdict_named(), since a name in a file may be foreign.
void to_json(Json& json, Verdict verdict);
void from_json(const Json& json, Verdict& verdict) = delete;

}  // namespace specdec
