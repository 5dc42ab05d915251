// `specdec serve`: loads the pair, then runs the server until it is asked to stop.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "deploy/serve/options.h"

namespace specdec::deploy {

struct ServeHooks {
  // memory plan, warnings, "listening on …": one line each; may be empty
  std::function<void(const std::string&)> on_note;
  std::function<bool()> stop_asked;  // polled; must not be empty
};

struct ServeOutcome {
  bool stale = false;  // the draft is bound to another target and that was not allowed: nothing was served
  std::string stale_reason;
};

// The chat template is vetted, then the port is bound and /health answers before the models are loaded; the "listening
// on" note comes when requests are taken. Returns after the drain. Throws Error(kUsage) for contradicting options, what
// load_pair, Server and Recorder throw.
ServeOutcome run_serve_command(const ServeOptions& options, const ServeHooks& hooks, const Clock& clock);

}  // namespace specdec::deploy
