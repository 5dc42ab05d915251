// `specdec serve`: loads target and draft, then runs the server until it is asked to stop.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/progress.h"
#include "deploy/serve/options.h"

namespace specdec::deploy {

struct ServeHooks {
  // Receives the memory plan, warnings and "listening on …", one line each. May be empty.
  std::function<void(const std::string&)> on_note;
  std::function<bool()> stop_asked;         // called repeatedly; must not be empty
  std::function<bool()> reload_asked = {};  // as in ServerHooks
  // Used if tensor_parallel is above 1; as in TensorRankOptions.
  std::vector<std::string> rank_command = {};
  std::function<void(const Error&)> on_lost = {};
  ProgressFn progress = {};  // progress of loading the models
};

struct ServeOutcome {
  bool stale = false;  // the draft is bound to another target and allow_stale was not set, so nothing was served
  std::string stale_reason;
};

// Runs the server until it is asked to stop and has drained. Checks the chat template first, then binds the port, so
// that /health answers, and then loads the models. Calls on_note with "listening on …" once requests are accepted.
// Throws Error(kUsage) for contradictory options, and what load_pair, Server and Recorder throw.
ServeOutcome run_serve_command(const ServeOptions& options, const ServeHooks& hooks, const Clock& clock);

}  // namespace specdec::deploy
