// The checks by which a validation report is judged. The verdict, JUnit, annotations and the report's table are all
// made from this one list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/schema/validation_report.h"
#include "base/verdict.h"

namespace specdec::deploy {

inline constexpr int64_t kLeastUnits = 4;  // prompts; with fewer the interval of a speed-up cannot decide anything
// At or below this p-value the output is not distributed like the target's.
inline constexpr double kSampledLimit = 1e-4;

struct Check {
  enum class State { kPass, kFail, kOpen, kNotMeasured, kNotJudged };
  std::string segment;  // "" = all requests
  std::string name;     // binding | lossless | acceptance | speed-up | against the serving draft | against the baseline
  State state;
  Verdict verdict;   // the report's verdict if this check fails: kStale, kNotLossless, kFail, kNotWorthIt
  std::string text;  // one line with the figures; if undecided, also what more to provide
  // The figure that was judged; empty if the check judged none, or one without an interval.
  std::optional<ValidationReport::Figure> figure = {};
};
const char* to_string(Check::State state);  // Returns "pass", "fail", "inconclusive", "not measured" or "not judged".

// Returns "other processes used 1.9 of 2 CPUs"; "" if that is unknown.
std::string others_of(const MachineUse& machine);
// Returns the text of others_of(), or a remark that the use cannot be read here, followed by how many runs were timed
// and repeated.
std::string machine_line(const MachineUse& machine);

// Returns kFail if the interval is below the floor, kPass if it is above, kOpen if it contains the floor.
Check::State side(const Estimate& estimate, double floor);

// Returns the checks in the order of judgement (docs/contract.md, Default gate). A stale report has only one.
std::vector<Check> checks_of(const ValidationReport& report);

}  // namespace specdec::deploy
