// The whole server except the model: listeners, queue, engine thread, records. The constructor reads keys and
// certificate and binds the ports; from then on /health answers, and /ready returns 503. run() makes the server ready,
// serves, drains, and returns when that is done.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "deploy/serve/api/api.h"
#include "deploy/serve/options.h"
#include "deploy/serve/queue/step_runner.h"
#include "deploy/serve/request/limits.h"

namespace specdec::deploy {

// Returns how many of `connections` fit into this many file descriptors: a quarter of them, at least 64 and at most
// 256, and those of the admin socket are left to files, models and child processes.
size_t connections_within(size_t descriptors, size_t connections, size_t admin_connections);

struct ServerHooks {
  std::function<bool()> stop_asked;         // called repeatedly; must not be empty
  std::function<void()> on_ready = {};      // called once requests are accepted
  std::function<bool()> reload_asked = {};  // called repeatedly; true: the files of keys and TLS are read again
};

class Server {
 public:
  // Throws Error(kUsage) for options out of range and for a host that other machines can reach without keys, kConfig
  // for a bad file of keys or TLS, kIo for a port in use.
  Server(const ServeOptions& options, const ServeLimits& limits, const Clock& clock);
  ~Server();

  int port() const;             // the one bound, also if port 0 was given
  std::string address() const;  // "http://127.0.0.1:8000"

  // Serves until a stop is asked for or a drain is requested on the admin socket, then drains: accepts no new
  // connections or requests, continues the accepted ones for up to drain_seconds, and publishes the records. When a
  // reload is asked for, a file that cannot be used is logged, and what was read before stays in force. `drafts`
  // carries out the orders of /admin/draft; if it is null, that route returns 503. Throws Error(kDevice) if the runner
  // failed so many times in a row that the requests cannot be the cause, and DeviceLost as the runner does.
  void run(ServedModel model, StepRunner& runner, const ServerHooks& hooks, DraftControl* drafts = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::deploy
