// The whole server except the model: listeners, queue, engine thread, records. The constructor reads keys and
// certificate and binds the ports; from then on /health answers, and /ready returns 503. run() makes the server ready,
// serves, drains, and then returns.
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

// Returns how many of `connections` the given number of file descriptors allows. Reserves the descriptors of the admin
// socket, and a quarter of all (at least 64, at most 256) for files, models and child processes.
size_t connections_within(size_t descriptors, size_t connections, size_t admin_connections);

struct ServerHooks {
  std::function<bool()> stop_asked;         // called repeatedly; must not be empty
  std::function<void()> on_ready = {};      // called when the server begins to accept requests
  std::function<bool()> reload_asked = {};  // called repeatedly; true: read the key and TLS files again
};

class Server {
 public:
  // Throws Error(kUsage) for options out of range and for a host that other machines can reach without keys,
  // Error(kConfig) for an invalid key or TLS file, Error(kIo) for a port in use.
  Server(const ServeOptions& options, const ServeLimits& limits, const Clock& clock);
  ~Server();

  int port() const;             // the bound port, also if port 0 was requested
  std::string address() const;  // "http://127.0.0.1:8000"

  // Serves until `stop_asked` returns true or a drain is requested on the admin socket. Then drains: refuses new
  // connections and requests, continues the accepted requests for up to drain_seconds, and publishes the records. On a
  // reload, an invalid file is logged and its old content stays in use. `drafts` executes the orders of /admin/draft;
  // null: that route returns 503. Throws DeviceLost if the runner does, and Error(kDevice) if the runner failed so
  // often in a row that the requests cannot be the cause.
  void run(ServedModel model, StepRunner& runner, const ServerHooks& hooks, DraftControl* drafts = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::deploy
