// Runs deploy/serve until a signal or the admin socket requests the drain. Notes are written to stderr.
#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/reload_request.h"
#include "base/verdict.h"
#include "cli/engine/runners.h"
#include "cli/stop_deadline.h"
#include "deploy/serve/engine/serve_command.h"

namespace specdec::cli {

int run_serve(const Global& global, const deploy::ServeOptions& options) {
  const SystemClock clock;
  deploy::ServeHooks hooks;
  // The address is the command's result, which scripts wait for, so it is printed whatever the verbosity. Warnings
  // follow --log-format.
  hooks.on_note = [&global](const std::string& line) {
    constexpr const char kWarning[] = "warning: ";
    if (line.rfind(kWarning, 0) == 0) return log(LogLevel::kWarn, line.substr(sizeof kWarning - 1));
    const bool listening = line.rfind("listening on", 0) == 0;
    if (global.verbosity >= 0 || listening) std::fprintf(stderr, "%s\n", line.c_str());
    if (listening) set_stop_seconds(0);  // from now on a stop request drains the server, limited by --drain-seconds
  };
  hooks.stop_asked = stop_requested;
  hooks.reload_asked = take_reload_request;
  const deploy::ServeOutcome outcome = deploy::run_serve_command(options, hooks, clock);
  if (outcome.stale) {
    std::fprintf(stderr, "specdec: stale draft: %s; distil it anew, or use --allow-stale\n",
                 outcome.stale_reason.c_str());
    return exit_code(Verdict::kStale);
  }
  if (global.verbosity >= 0) std::fprintf(stderr, "drained\n");
  return 0;
}

}  // namespace specdec::cli
