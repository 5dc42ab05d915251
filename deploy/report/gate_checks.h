// The checks by which a validation report is judged. The verdict, JUnit, annotations and the report's table are all
// made from this one list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/schema/validation_report.h"
#include "base/verdict.h"

namespace specdec::deploy {

inline constexpr int64_t kLeastUnits = 4;  // number of prompts; with fewer, no speed-up is judged
// At or below this p-value the sampled output is judged to differ from the target's distribution.
inline constexpr double kSampledLimit = 1e-4;

struct Check {
  enum class State { kPass, kFail, kOpen, kNotMeasured, kNotJudged };
  std::string segment;  // the segment that is checked; "" = all requests
  std::string name;     // binding | lossless | acceptance | speed-up | against the serving draft | against the baseline
  State state;
  Verdict verdict;   // the report's verdict if this check fails: kStale, kNotLossless, kFail, kNotWorthIt
  std::string text;  // one line with the figures; if undecided, also what data would decide it
  // The figure that was judged; empty if nothing was measured or the figure has no interval.
  std::optional<ValidationReport::Figure> figure = {};
};
const char* to_string(Check::State state);  // Returns "pass", "fail", "inconclusive", "not measured" or "not judged".

// Returns the CPU use of other processes, for example "other processes used 1.9 of 2 CPUs"; "" if it is unknown.
std::string others_of(const MachineUse& machine);
// Returns the text of others_of(), or a remark that this system does not report the CPU use, followed by the numbers of
// runs that were timed and repeated.
std::string machine_line(const MachineUse& machine);

// Returns kFail if the whole interval is below the floor, kPass if it is above, kOpen if it contains the floor.
Check::State side(const Estimate& estimate, double floor);

// Returns the checks in the order in which they decide the verdict (docs/contract.md, Default gate). A stale report has
// only the check "binding".
std::vector<Check> checks_of(const ValidationReport& report);

}  // namespace specdec::deploy
