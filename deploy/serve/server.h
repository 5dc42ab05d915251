// The whole server except the model: listeners, queue, engine thread, records. Its life:
//   Server server(options, limits, clock);      // reads keys, binds ports; /health answers, /ready returns 503
//   server.run(model, runner, stop_asked);      // ready, serves, drains; returns when done
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "deploy/serve/api.h"
#include "deploy/serve/limits.h"
#include "deploy/serve/options.h"
#include "deploy/serve/step_runner.h"

namespace specdec::deploy {

class Server {
 public:
  // Throws Error(kUsage) for options out of range and for a host that other machines can reach without keys, kConfig
  // for a bad key file, kIo for a port in use.
  Server(const ServeOptions& options, const ServeLimits& limits, const Clock& clock);
  ~Server();

  int port() const;             // the one bound, also if port 0 was given
  size_t tenants() const;       // distinct names in the key file; 0: no keys
  std::string address() const;  // "http://127.0.0.1:8000"

  // Serves until stop_asked() is true or a drain is requested on the admin socket, then drains: accepts no new
  // connections or requests, continues the accepted ones for up to drain_seconds, and publishes the records. `on_ready`
  // is called once requests are accepted. `drafts` carries out the orders of /admin/draft; if it is null, that route
  // returns 503. Throws Error(kDevice) if the runner failed so many times in a row that the requests cannot be the
  // cause.
  void run(ServedModel model, StepRunner& runner, const std::function<bool()>& stop_asked,
           const std::function<void()>& on_ready = {}, DraftControl* drafts = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::deploy
