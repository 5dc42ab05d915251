// Runs deploy/generate and prints its result: text to stdout as it is generated, or one JSON object; notes and figures
// to stderr.
#include "base/clock.h"
#include "cli/engine/runners.h"
#include "cli/error_report.h"
#include "cli/log.h"
#include "cli/output.h"
#include "deploy/generate/generate_command.h"

namespace specdec::cli {

int run_generate(const Global& global, const deploy::GenerateOptions& options) {
  const SystemClock clock;
  const std::string started = format_utc(clock.unix_seconds());
  deploy::GenerateHooks hooks;
  if (global.verbosity >= 0) hooks.on_note = [](const std::string& line) { say(line); };
  if (!global.json) hooks.on_text = write_output;
  hooks.progress = make_progress(global);
  deploy::GenerateOutput output = deploy::run_generate_command(options, hooks, clock);
  output.started = started;
  if (global.json) write_output(json_of(output).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (output.stale) {
    return report_stale(output.stale_reason);
  }
  if (!global.json) write_output("\n");
  if (global.verbosity >= 0) say(deploy::summary(output));
  return 0;
}

}  // namespace specdec::cli
