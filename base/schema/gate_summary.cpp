#include "base/schema/gate_summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "base/shell.h"

namespace specdec {

namespace {

template <class... Args>
std::string words(const char* pattern, Args... args) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string validate_again(const GateCommand& c, const std::vector<std::string>& more) {
  std::vector<std::string> command = {"specdec", "validate", "--target", c.target};
  if (!c.draft.empty()) command.insert(command.end(), {"--draft", c.draft});
  command.insert(command.end(), {"--data", c.data, "--out", c.out});
  for (const std::string& flag : c.flags) {
    const std::string name = flag.substr(0, flag.find('='));
    if (std::find(more.begin(), more.end(), name) == more.end()) command.push_back(flag);
  }
  command.insert(command.end(), more.begin(), more.end());
  return shell_words(command);
}

constexpr int64_t kLeastPrompts = 4;  // fewer prompts decide nothing about the speed-up (deploy/report/gate_checks.h)

// Returns the command for an inconclusive verdict. It depends on what left the verdict open: a missing measurement, a
// busy machine, acceptance, or the speed-up.
std::string next_of_open(const ValidationReport& r, const GateCommand& c) {
  const auto holds = [](const Estimate& e, double limit) { return e.ci.low <= limit && e.ci.high >= limit; };
  bool acceptance = holds(r.alpha, r.floor) ||
                    (r.baseline && r.baseline->min_gain && holds(r.baseline->difference, *r.baseline->min_gain));
  for (const SegmentFigure& s : r.segments) acceptance |= s.floor && holds(s.alpha, *s.floor);
  // With unchanged limits, a new run would again leave the check open, so `more` gets flags that raise the limits.
  std::vector<std::string> more;
  if (r.alpha.n > 0 && acceptance && r.requests_available > r.alpha.n) more = {"--max-requests", "0"};
  if (r.speedup.n > 0 && r.speedup.n < kLeastPrompts)
    more.insert(more.end(), {"--speed-prompts", std::to_string(2 * kLeastPrompts)});
  const bool again =
      r.alpha.n == 0 || !r.has_speed || r.speedup.n == 0 || !r.has_lossless || (r.machine && r.machine->busy);
  if (again || !more.empty()) return validate_again(c, more);
  if (!acceptance) return validate_again(c, {"--speed-prompts", std::to_string(prompts_to_decide(r.speedup))});
  return "specdec data ingest LOG... " + shell_words({"--target", c.target, "--out", c.data + "-more"});
}

// Converts `path`, which an earlier validate was given, to a path that is valid in this working directory. The report
// is in the working directory of that validate or below it, so a relative path that does not exist here is searched for
// in the report's directory and its parents.
std::string from_here(const fs::path& path, const fs::path& report) {
  std::error_code none;
  if (path.empty() || path.is_absolute() || fs::exists(path, none)) return path.string();
  const fs::path start = fs::absolute(report).lexically_normal().parent_path();
  for (fs::path above = start;; above = above.parent_path()) {
    if (const fs::path found = above / path; fs::exists(found, none))
      return report.is_absolute() ? found.string() : found.lexically_proximate(fs::current_path()).string();
    if (above == above.parent_path()) return path.string();
  }
}

}  // namespace

std::string gate_line(const ValidationReport& r) {
  return one_line(readable(to_string(r.verdict)) + (r.reason.empty() ? "" : ": " + r.reason));
}

std::string gate_brief(const ValidationReport& r, const std::string& in_full) {
  constexpr size_t kBrief = 140;
  const std::string line = gate_line(r);
  if (line.size() <= kBrief) return line;
  // Cuts between two clauses if possible, else between two words, and never inside a UTF-8 character.
  size_t end = std::string::npos;
  for (const char* separator : {"; ", ": ", ", ", " "}) {
    end = line.rfind(separator, kBrief);
    if (end != std::string::npos && end > kBrief / 2) break;
  }
  if (end == std::string::npos || end <= kBrief / 2)
    for (end = kBrief; (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80;) --end;
  return line.substr(0, end) + " ... (in full: " + in_full + ")";
}

GateSummary gate_summary(const ValidationReport& r) {
  return {r.verdict, one_line(r.reason), r.judged_by, r.has_speed, r.schedule};
}

void visit_fields(Fields& f, GateSummary& gate) {
  f.type("Gate", "The verdict of the gate that a report holds.");
  visit_gate_verdict(f, gate.verdict);
  f("reason", gate.reason);
  f("judged_by", gate.judged_by);
  visit_schedule(f, gate.schedule, gate.has_speed ? Presence::kAlways : Presence::kIfAny);
}

std::string schedule_line(const std::vector<ScheduleRow>& schedule) {
  std::string text;
  for (const ScheduleRow& row : schedule) {
    text += (text.empty() ? "batch " : ", ") + std::to_string(row.low) +
            (row.low == row.high ? "" : "-" + std::to_string(row.high)) + ": ";
    text += row.k ? "K " + std::to_string(row.k) : "plain";
    if (row.figure_k == 0) {
      text += row.k ? " (predicted)" : "";
      continue;
    }
    text += " (" + std::string(row.validated() ? "validated: " : "") +
            (row.k ? "" : "K " + std::to_string(row.figure_k) + " ") + (row.measured ? "measured" : "predicted") +
            words(" %.2f", row.speedup);
    text += (row.measured ? words(" [%.2f, %.2f]", row.ci.low, row.ci.high) : "") + ")";
  }
  return text;
}

int64_t prompts_to_decide(const Estimate& e) {
  // The width of the interval falls with the square root of the number of prompts.
  const double half = (e.ci.high - e.ci.low) / 2, distance = std::max(std::abs(e.value - 1), 1e-3),
               n = static_cast<double>(e.n);
  return static_cast<int64_t>(std::clamp(std::ceil(1.2 * n * (half / distance) * (half / distance)),
                                         std::max(2 * n, 8.0), std::max(2 * n, 256.0)));
}

GateCommand command_of(const ValidationReport& r, const std::string& out) {
  return {r.target_path, r.draft_path, r.data_path, out, r.flags};
}

GateCommand command_again(const ValidationReport& r, const std::string& target, const std::string& draft,
                          const std::filesystem::path& file) {
  const std::string out = file.parent_path().empty() ? "." : file.parent_path().string();
  return {target, draft, from_here(r.data_path, file), out, r.flags};
}

std::string next_command(const ValidationReport& r, const GateCommand& c) {
  std::vector<std::string> pair = {"--target", c.target};
  if (!c.draft.empty()) pair.insert(pair.end(), {"--draft", c.draft});
  const auto command = [&](std::vector<std::string> start, const std::vector<std::string>& more) {
    start.insert(start.end(), pair.begin(), pair.end());
    start.insert(start.end(), more.begin(), more.end());
    return one_line(shell_words(start));
  };
  switch (r.verdict) {
    case Verdict::kPass:
      return command({"specdec", "package"},
                     {"--report", c.out + "/report.json", "--store", "store", "--channel", "production"});
    case Verdict::kNotWorthIt:
      return command({"specdec", "bench"}, {"--data", c.data, "--out", c.out + "/bench"});
    case Verdict::kNotLossless:
      return one_line(validate_again(c, {"--parts", "lossless", "--dtype", "fp32"}));
    case Verdict::kInconclusive:
      return one_line(next_of_open(r, c));
    case Verdict::kFail:
    case Verdict::kStale:
      break;
    case Verdict::kFaster:
    case Verdict::kHealthy:
    case Verdict::kWarn:
    case Verdict::kDrift:
    case Verdict::kStaleTarget:
    case Verdict::kImproved:
    case Verdict::kNoSignificantGain:
      break;  // no report has one of these verdicts, because is_gate_verdict() refuses them
  }
  // After `fail` and `stale`: train the draft further on this target's answers.
  return one_line(shell_words({"specdec", "distill", "--target", c.target, "--data", c.data, "--draft",
                               "model:" + (c.draft.empty() ? c.target : c.draft), "--out", "run-next"}));
}

}  // namespace specdec
