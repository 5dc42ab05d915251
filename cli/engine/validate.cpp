// Runs the gate, writes its files and prints the result: text or one JSON object.
#include "deploy/validate/validate.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/verdict.h"
#include "cli/engine/runners.h"
#include "cli/output.h"
#include "deploy/report/gate_ci.h"

namespace specdec::cli {

namespace {

constexpr size_t kStepSummary = 1 << 20;  // the largest summary that GitHub accepts from one step, in bytes

// Appends `text` to the file that the environment variable `variable` names; other steps of the job write to the same
// file. Does nothing if the variable is not set.
void append_to(const char* variable, const std::string& text) {
  const char* path = std::getenv(variable);
  if (!path || !*path) return;
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << text;
  if (!file.flush()) throw Error(ErrorKind::kIo, std::string(path) + " (" + variable + "): write failed");
}

// Reports the result to GitHub Actions if this process runs in one of its jobs. Annotations go to stderr, which GitHub
// also reads, because stdout carries the result.
void tell_github(const deploy::Validation& v, const std::string& directory) {
  const char* there = std::getenv("GITHUB_ACTIONS");
  if (!there || std::string(there) != "true") return;
  std::fputs(deploy::github_annotations(v.report).c_str(), stderr);
  append_to("GITHUB_OUTPUT", deploy::github_outputs(v.report, directory));
  const char* summary = std::getenv("GITHUB_STEP_SUMMARY");
  std::error_code error;
  const uintmax_t written = summary && *summary ? std::filesystem::file_size(summary, error) : 0;
  const size_t room =
      error ? kStepSummary : kStepSummary - static_cast<size_t>(std::min<uintmax_t>(written, kStepSummary));
  append_to("GITHUB_STEP_SUMMARY",
            deploy::github_summary(render_markdown(deploy::report_page(v.report, v.details)), room));
}

}  // namespace

int run_validate(const Global& global, const deploy::ValidateOptions& options) {
  const SystemClock clock;
  const deploy::SystemCpuMeter meter;
  const deploy::Validation v = deploy::run_validate(options, clock, meter, make_progress(global));
  deploy::write_validation(v, options.out);
  tell_github(v, options.out);
  const std::string text =
      global.json ? to_json(v.report).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                  : deploy::report_text(v.report, v.details) + "  report             " + options.out + "/report.html\n";
  write_output(text);
  return options.exit_zero ? 0 : exit_code(v.report.verdict);
}

}  // namespace specdec::cli
