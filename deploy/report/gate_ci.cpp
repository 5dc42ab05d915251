#include "deploy/report/gate_ci.h"

#include <array>
#include <map>
#include <vector>

#include "base/format.h"
#include "base/page/page.h"
#include "deploy/report/gate_checks.h"

namespace specdec::deploy {

namespace {

using State = Check::State;

std::string figure(double x) { return format("%.4f", x); }

// Escapes a text for a GitHub workflow command: as the value of a property if `property`, else as the message
// (actions/toolkit, packages/core/src/command.ts).
std::string escape_command(const std::string& text, bool property) {
  std::string out;
  for (const char c : escape_control(text)) {
    if (c == '%')
      out += "%25";
    else if (property && c == ':')
      out += "%3A";
    else if (property && c == ',')
      out += "%2C";
    else
      out += c;
  }
  return out;
}

std::string test_case(const Check& check) {
  const std::string text = escape_html(check.text);
  std::string out = "    <testcase classname=\"specdec.validate" +
                    (check.segment.empty() ? "" : "." + escape_html(check.segment)) + "\" name=\"" +
                    escape_html(check.name) + "\" time=\"0\"";
  switch (check.state) {
    case State::kPass:
      return out + "><system-out>" + text + "</system-out></testcase>\n";
    case State::kFail:
      return out + "><failure type=\"" + escape_html(to_string(check.verdict)) + "\" message=\"" + text + "\">" + text +
             "</failure></testcase>\n";
    case State::kOpen:
      return out + "><error type=\"inconclusive\" message=\"" + text + "\">" + text + "</error></testcase>\n";
    default:
      return out + "><skipped message=\"" + escape_html(to_string(check.state)) + ": " + text + "\"/></testcase>\n";
  }
}

}  // namespace

std::string junit_xml(const ValidationReport& report) {
  std::vector<std::string> names;  // in order of appearance; "" stands for all requests and is first
  std::map<std::string, std::vector<Check>> suites;
  for (const Check& check : checks_of(report)) {
    if (!suites.count(check.segment)) names.push_back(check.segment);
    suites[check.segment].push_back(check);
  }
  const auto counts = [](const std::vector<Check>& checks) {
    std::array<size_t, 5> n{};
    for (const Check& check : checks) ++n[static_cast<size_t>(check.state)];
    return " tests=\"" + std::to_string(checks.size()) + "\" failures=\"" + std::to_string(n[1]) + "\" errors=\"" +
           std::to_string(n[2]) + "\" skipped=\"" + std::to_string(n[3] + n[4]) + "\"";
  };
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"specdec validate\"" +
                    counts(checks_of(report)) + " time=\"" + figure(report.seconds) + "\">\n";
  for (const std::string& segment : names) {
    const std::string suite = segment.empty() ? "all requests" : segment;
    out += "  <testsuite name=\"" + escape_html(suite) + "\"" + counts(suites[segment]) + " time=\"" +
           figure(segment.empty() ? report.seconds : 0) +
           (report.started.empty() ? "" : "\" timestamp=\"" + escape_html(report.started)) + "\">\n";
    for (const Check& check : suites[segment]) out += test_case(check);
    out += "  </testsuite>\n";
  }
  return out + "</testsuites>\n";
}

std::string github_annotations(const ValidationReport& report) {
  constexpr int kShown = 10;
  int errors = 0, warnings = 0;
  std::string out;
  const auto line = [&](const char* command, const std::string& title, const std::string& text) {
    out += std::string("::") + command + " title=" + escape_command("specdec validate: " + title, true) +
           "::" + escape_command(text, false) + "\n";
  };
  for (const Check& check : checks_of(report)) {
    const std::string title = check.name + (check.segment.empty() ? "" : " of " + check.segment);
    if (check.state == State::kFail && ++errors <= kShown) line("error", title, check.text);
    if (check.state == State::kOpen && ++warnings <= kShown) line("warning", title, check.text);
  }
  if (report.verdict == Verdict::kPass) line("notice", "pass", report.reason);
  if (report.verdict == Verdict::kInconclusive && warnings == 0) line("warning", "inconclusive", report.reason);
  return out;
}

std::string github_outputs(const ValidationReport& report, const std::string& directory) {
  std::string out = std::string("verdict=") + to_string(report.verdict) + "\n";
  if (report.alpha.n > 0)
    out += "acceptance=" + figure(report.alpha.value) + "\nacceptance_low=" + figure(report.alpha.ci.low) +
           "\nacceptance_high=" + figure(report.alpha.ci.high) + "\nrequests=" + std::to_string(report.alpha.n) + "\n";
  if (report.has_speed) out += "speedup=" + figure(report.speedup.value) + "\n";
  return out + "report=" + escape_control(directory) + "\n";
}

std::string github_summary(const std::string& markdown, size_t limit) {
  if (markdown.size() <= limit) return markdown;
  const std::string rest = "\n_The rest is in report.md._\n";
  if (limit <= rest.size()) return "";
  const size_t end = markdown.rfind('\n', limit - rest.size() - 1);
  return end == std::string::npos ? "" : markdown.substr(0, end + 1) + rest;
}

}  // namespace specdec::deploy
