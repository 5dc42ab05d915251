// What the gate said of a pair, in one line, with the command to run next: for those who validate, package, check and
// serve it. A report may come from anywhere: what is printed of it has no control characters, and the command is made
// here, with every path quoted.
#pragma once

#include <string>
#include <vector>

#include "base/schema/validation_report.h"

namespace specdec {

// "pass: acceptance …, speed-up …".
std::string gate_line(const ValidationReport& report);
// {verdict, reason, judged_by, schedule, schedule_figures}, the last two where the speed-up was measured.
Json gate_json(const ValidationReport& report);
// "batch 1: K 4 (validated: measured 1.52 [1.41, 1.63])", "batch 2-3: K 2 (predicted 1.31)", "batch 4: plain (K 1
// predicted 0.93)".
std::string schedule_line(const std::vector<ScheduleRow>& schedule);

// The prompts that would make the measured speed-up's interval end before 1, if it keeps its value: at least twice
// those it has.
int64_t prompts_to_decide(const Estimate& speedup);

struct GateCommand {
  std::string target, draft, data, out;  // as they were given to validate
  std::vector<std::string> flags = {};   // its other flags, --name=value or --name
};
GateCommand command_of(const ValidationReport& report, const std::string& out);  // from the report's own paths
// The one command that helps with this verdict: package, distill on, bench, or validate again with more of what was
// missing.
std::string next_command(const ValidationReport& report, const GateCommand& command);

}  // namespace specdec
