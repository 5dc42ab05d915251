// Summarises the gate's decision about a pair in one line, with the command to run next. Used by validate, package,
// package lint and serve. A report may come from anywhere: text printed from it has no control characters, and the
// command is made here with every path quoted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/schema/validation_report.h"

namespace specdec {

// Returns the verdict and its reason: "pass: acceptance …, speed-up …".
std::string gate_line(const ValidationReport& report);
// Returns gate_line() if it is short, else its beginning and the file that has the whole line: "inconclusive: speed-up
// … decides nothing ... (in full: manifest.json)". Adds only ASCII characters.
std::string gate_brief(const ValidationReport& report, const std::string& in_full);
// The part of a report that other commands print.
struct GateSummary {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  std::vector<ValidationReport::Figure> judged_by;
  bool has_speed = false;
  std::vector<ScheduleRow> schedule;  // printed if the speed-up was measured
};
GateSummary gate_summary(const ValidationReport& report);
void visit_fields(Fields& f, GateSummary& gate);
// Returns the rows as text, separated by commas: "batch 1: K 4 (validated: measured 1.52 [1.41, 1.63])", "batch 2-3: K
// 2 (predicted 1.31)", "batch 4: plain (K 1 predicted 0.93)".
std::string schedule_line(const std::vector<ScheduleRow>& schedule);

// Estimates how many prompts would make the interval of the measured speed-up exclude 1 if the measured value stays the
// same. With n prompts measured, the result is between max(2n, 8) and max(2n, 256).
int64_t prompts_to_decide(const Estimate& speedup);

struct GateCommand {
  std::string target, draft, data, out;  // as they were given to validate
  std::vector<std::string> flags = {};   // validate's other flags, as --name=value or --name
};
GateCommand command_of(const ValidationReport& report, const std::string& out);  // uses the report's own paths
// Returns the validate command that repeats the run that wrote the report in `file`: with the same flags, the same data
// (its path is made valid for this working directory), and the report's directory as `out`.
GateCommand command_again(const ValidationReport& report, const std::string& target, const std::string& draft,
                          const std::filesystem::path& file);
// Returns the command to run next after this verdict: package after pass, bench after not_worth_it, distill after fail
// and stale, or validate again with flags that add what was missing.
std::string next_command(const ValidationReport& report, const GateCommand& command);

}  // namespace specdec
