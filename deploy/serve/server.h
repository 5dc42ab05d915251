// The whole server but the model: listeners, queue, engine thread, records. Start to drain:
//   Server server(options, limits, clock);      // keys, ports bound, /health answers, /ready says 503
//   server.run(model, runner, stop_asked);      // ready → serves → drains; returns when done
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
  // Throws Error(kUsage) for an open host without keys and options out of range, kConfig for a bad key file, kIo for a
  // port in use.
  Server(const ServeOptions& options, const ServeLimits& limits, const Clock& clock);
  ~Server();

  int port() const;             // the one bound, when 0 was asked for
  size_t tenants() const;       // names in the key file; 0: none
  std::string address() const;  // "http://127.0.0.1:8000"

  // Serves until stop_asked() is true or a drain is asked for on the admin socket, then drains: no new connections or
  // requests, what is accepted goes on for up to drain_seconds, records are published. `on_ready` is called once
  // requests are taken. Throws Error(kDevice) when the runner failed so often in a row that it cannot be the requests'
  // fault. `drafts`: what /admin/draft acts on; null: it answers 503.
  void run(ServedModel model, StepRunner& runner, const std::function<bool()>& stop_asked,
           const std::function<void()>& on_ready = {}, DraftControl* drafts = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::deploy
