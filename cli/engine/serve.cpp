// Runs deploy/serve until a signal or the admin socket tells it to drain: to finish its requests and end. Notes are
// written to stderr.
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/progress.h"
#include "base/reload_request.h"
#include "base/verdict.h"
#include "cli/engine/runners.h"
#include "cli/engine/tensor_rank.h"
#include "cli/error_report.h"
#include "cli/log.h"
#include "cli/stop_deadline.h"
#include "deploy/serve/engine/serve_command.h"

namespace specdec::cli {

int run_serve(const Global& global, const deploy::ServeOptions& options) {
  const SystemClock clock;
  deploy::ServeHooks hooks;
  // Scripts wait for the line with the address, so it is printed whatever the verbosity. Warnings follow --log-format.
  hooks.on_note = [&global](const std::string& line) {
    constexpr const char kWarning[] = "warning: ";
    if (line.rfind(kWarning, 0) == 0) return log(LogLevel::kWarn, line.substr(sizeof kWarning - 1));
    const bool listening = line.rfind("listening on", 0) == 0;
    if (global.verbosity >= 0 || listening) say(line);
    if (listening) set_stop_seconds(0);  // from now on a stop request drains the server, limited by --drain-seconds
  };
  hooks.stop_asked = stop_requested;
  hooks.progress = make_progress(global);
  hooks.reload_asked = take_reload_request;
  hooks.rank_command = tensor_rank_command(global);
  // Makes NCCL use the loopback interface, because all ranks are on this machine, even if the environment is set up for
  // several machines. Called before any thread starts, because setenv() is not thread-safe.
  if (options.tensor_parallel > 1) ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  hooks.on_lost = [&global](const Error& error) { std::_Exit(report_error(error, global, "serve")); };
  const deploy::ServeOutcome outcome = deploy::run_serve_command(options, hooks, clock);
  if (outcome.stale) {
    if (global.json)
      std::printf("%s\n", Json({{"schema", "specdec.serve/1"},
                                {"verdict", to_string(Verdict::kStale)},
                                {"reason", outcome.stale_reason}})
                              .dump(-1, ' ', false, Json::error_handler_t::replace)
                              .c_str());
    return report_stale(outcome.stale_reason);
  }
  if (global.verbosity >= 0) say("drained");
  return 0;
}

}  // namespace specdec::cli
