#include "cli/demo/story.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/output_directory.h"
#include "base/verdict.h"
#include "cli/child_process.h"

namespace specdec::cli {

namespace fs = std::filesystem;

fs::path demo_assets(const Global& global, const std::string& file) {
  const fs::path found = fs::path(global.program).parent_path().parent_path() / "share" / "specdec" / "demo";
  if (!fs::exists(found / file))
    throw Error(ErrorKind::kIo, found.string() + ": " + file +
                                    " is not there: run the installed or built specdec, not a copy of the file");
  return found;
}

std::string with_interval(const Estimate& e) { return decimals(e.value) + " " + interval_text(e.ci); }

Story::Story(const Global& global, const fs::path& out)
    : global_(global), out_(fs::absolute(out)), log_(out_ / "log.txt") {
  const bool earlier =
      check_output_directory(out_, {.flag = "--out", .command = "specdec demo", .results = {{"demo.marker", ""}}});
  if (earlier) remove_tree(out_);
  result_.passed = true;
  make_private_directory(out_);
  make_directories(out_ / "logs");
  write_file_atomic(out_ / "demo.marker", "specdec demo writes here and removes this directory when it runs again\n");
}

void Story::begin(const std::string& step) {
  step_ = step;
  started_ = clock_.seconds();
  ++line_;
  if (global_.verbosity >= 0 && ::isatty(2)) std::fprintf(stderr, "%2d %-12s …\r", line_, step.c_str());
}

void Story::check(const std::string& what, bool holds) {
  result_.passed = result_.passed && holds;
  result_.checks.push_back({what, holds});
}

void Story::say(const std::string& text) {
  const double seconds = clock_.seconds() - started_;
  if (!global_.json) std::printf("%2d %-12s %5.1f s  %s\n", line_, step_.c_str(), seconds, text.c_str());
  std::fflush(stdout);
  result_.story.push_back({step_, seconds, text});
}

Json Story::run_json(std::vector<std::string> arguments, const std::vector<int>& allowed, int* code) const {
  arguments.insert(arguments.begin(), "--json");
  const ChildResult child = run_child(global_.program, arguments, {log_});
  if (std::find(allowed.begin(), allowed.end(), child.exit_code) == allowed.end())
    throw Error(ErrorKind::kInternal, "demo: specdec " + arguments[1] + " ended with exit code " +
                                          std::to_string(child.exit_code) + "; its messages are in " + log_.string());
  if (code) *code = child.exit_code;
  const Json result = Json::parse(child.output, nullptr, false);
  return result.is_discarded() ? Json(nullptr) : result;
}

Story::Gate Story::validate(std::vector<std::string> arguments, const std::string& name) const {
  arguments.insert(arguments.begin(), "validate");
  arguments.insert(arguments.end(), {"--out", (out_ / name).string()});
  Gate gate;
  run_json(arguments, {0, 3, 4, 5, 6}, &gate.exit_code);
  const fs::path report = out_ / name / "report.json";
  gate.report = validation_report_from_json(read_json(report), report.string());
  return gate;
}

Json Story::monitor(const std::vector<std::string>& more, int* code) const {
  std::vector<std::string> arguments = {
      "monitor",          "check", "--package", channel(), "--source", out_ / "recorded" / "acceptance", "--state",
      out_ / "monitor.db"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_json(arguments, {0, 3, 4, 5}, code);
}

int Story::finish(const std::string& table) {
  const int code = exit_code(result_.passed ? Verdict::kPass : Verdict::kFail);
  if (global_.json) {
    std::printf("%s\n", json_of(result_).dump().c_str());
    return code;
  }
  std::printf("\n");
  for (const auto& [what, holds] : result_.checks) std::printf("%s %s\n", holds ? "ok  " : "FAIL", what.c_str());
  std::printf("\n%s\nreport: %s\n", table.c_str(), result_.report.c_str());
  return code;
}

}  // namespace specdec::cli
