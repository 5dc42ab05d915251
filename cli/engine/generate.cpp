// Runs deploy/generate and prints its result: text to stdout as it is generated, or one JSON object; notes and figures
// to stderr.
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "cli/engine/runners.h"
#include "cli/error_report.h"
#include "cli/log.h"
#include "deploy/generate/generate_command.h"

namespace specdec::cli {

namespace {

void put(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Error(ErrorKind::kIo, "standard output: write failed");
}

}  // namespace

int run_generate(const Global& global, const deploy::GenerateOptions& options) {
  const SystemClock clock;
  const std::string started = format_utc(clock.unix_seconds());
  deploy::GenerateHooks hooks;
  if (global.verbosity >= 0) hooks.on_note = [](const std::string& line) { say(line); };
  if (!global.json) hooks.on_text = put;
  hooks.progress = make_progress(global);
  const deploy::GenerateOutput output = deploy::run_generate_command(options, hooks, clock);
  if (global.json) put(deploy::to_json(output, started).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (output.stale) {
    return report_stale(output.stale_reason);
  }
  if (!global.json) put("\n");
  if (global.verbosity >= 0) say(deploy::summary(output));
  return 0;
}

}  // namespace specdec::cli
