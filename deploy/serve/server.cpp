#include "deploy/serve/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "deploy/serve/http.h"
#include "deploy/serve/recorder.h"
#include "deploy/serve/scheduler.h"

namespace specdec::deploy {

namespace {

constexpr int64_t kBrokenAfter = 32;  // sequences that failed in a row
constexpr auto kPoll = std::chrono::milliseconds(20);

void check(const ServeOptions& o) {
  const auto range = [](const char* flag, double value, double low, double high) {
    if (value >= low && value <= high) return;
    std::ostringstream text;
    text.precision(12);  // enough for all digits of the counts
    text << flag << ": expected " << low << " to " << high << ", found " << value;
    throw Error(ErrorKind::kUsage, text.str());
  };
  range("--port", o.port, 0, 65535);
  range("--max-batch", static_cast<double>(o.max_batch), 1, 1024);
  range("--queue-limit", static_cast<double>(o.queue_limit), 1, 1 << 20);
  range("--tenant-queue", static_cast<double>(o.tenant_queue), 0, 1 << 20);
  range("--max-context", static_cast<double>(o.max_context), 0, 1 << 24);
  range("--drain-seconds", o.drain_seconds, 0, 86400);
  range("--record-rejects", o.record_rejects, 0, 1);
  range("--cache", static_cast<double>(o.cache_mib), 0, 1 << 30);
  range("--record-quota", static_cast<double>(o.record_quota_mib), 0, 1 << 30);
}

// By default one tenant may fill half of the queue, so that its burst leaves the other half to the others. A single
// tenant has the whole queue.
size_t tenant_queue(const ServeOptions& o, const ApiKeys& keys) {
  if (o.tenant_queue > 0) return static_cast<size_t>(o.tenant_queue);
  return static_cast<size_t>(keys.tenants() > 1 ? std::max<int64_t>(1, o.queue_limit / 2) : o.queue_limit);
}

// Returns the bytes that one tenant's requests may hold: half of all bytes if there are several tenants.
size_t tenant_bytes(const ServeLimits& limits, const ApiKeys& keys) {
  return keys.tenants() > 1 ? limits.held_bytes / 2 : limits.held_bytes;
}

AllowedHosts allowed_hosts(const ServeOptions& o) {
  std::vector<std::string> names = o.allowed_hosts;
  names.push_back(o.host);
  return AllowedHosts(names);
}

// Raises the limit of open files to one per connection plus some for files.
void raise_descriptor_limit(size_t connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, connections + 256);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) log(LogLevel::kWarn, "the limit of open files could not be raised");
}

}  // namespace

struct Server::Impl {
  Impl(const ServeOptions& o, const ServeLimits& limits, const Clock& c, ApiKeys keys)
      : options(o),
        tenants(keys.tenants()),
        clock(c),
        gate(keys.tenants() > 1 ? LiveGate::kConversations / 2 : LiveGate::kConversations),
        queue(static_cast<size_t>(o.queue_limit), tenant_queue(o, keys)),
        budget(limits.held_bytes, tenant_bytes(limits, keys)),
        api({std::move(keys), allowed_hosts(o), queue, budget}, limits, metrics, clock,
            {[this] { return running_sequences(); }, [this] { return http.connections(); },
             [this] { return broken.load(); }, [this] { return serving_draft(); },
             [this](const std::string& serving) { return read_gate(serving); }}),
        admin([this] { drain_asked.store(true); }),
        http(limits) {}

  std::optional<std::string> serving_draft() const {
    const DraftControl* d = drafts.load();
    return d ? std::optional(d->serving()) : std::nullopt;
  }

  LiveGate::Reading read_gate(const std::string& serving) const {
    const DraftControl* d = drafts.load();
    return gate.read(serving, d ? d->status() : Json());
  }

  size_t running_sequences() const {
    const Scheduler* s = scheduler.load();
    return s ? s->running() : 0;
  }

  ServeOptions options;
  const size_t tenants;
  const Clock& clock;
  Metrics metrics;
  LiveGate gate;
  RequestQueue queue;
  ByteBudget budget;
  std::atomic<bool> drain_asked{false}, broken{false};
  std::atomic<Scheduler*> scheduler{nullptr};
  std::atomic<DraftControl*> drafts{nullptr};
  Api api;
  AdminApi admin;
  HttpServer http;
  int port = 0;
};

Server::Server(const ServeOptions& options, const ServeLimits& limits, const Clock& clock) {
  check(options);
  ApiKeys keys = options.api_key_file.empty() ? ApiKeys() : ApiKeys::load(options.api_key_file);
  check_exposure(options.host, keys);
  raise_descriptor_limit(limits.connections + limits.admin_connections);
  impl_ = std::make_unique<Impl>(options, limits, clock, std::move(keys));
  impl_->port = impl_->http.listen(options.host, options.port, impl_->api);
  if (!options.admin_socket.empty()) impl_->http.listen_unix(options.admin_socket, impl_->admin);
  impl_->http.start();
}

Server::~Server() = default;

int Server::port() const { return impl_->port; }

size_t Server::tenants() const { return impl_->tenants; }

std::string Server::address() const {
  const std::string& host = impl_->options.host;
  return "http://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(impl_->port);
}

void Server::run(ServedModel model, StepRunner& runner, const std::function<bool()>& stop_asked,
                 const std::function<void()>& on_ready, DraftControl* drafts) {
  Impl& s = *impl_;
  RecorderOptions records;
  records.record_dir = s.options.record_dir;
  records.acceptance_log = s.options.acceptance_log;
  records.target = model.card.target;
  records.draft = model.card.draft;
  records.rejects = s.options.record_rejects > 0;
  records.quota_bytes = static_cast<uint64_t>(s.options.record_quota_mib) << 20;
  Recorder recorder(records, s.metrics, s.clock);
  SchedulerOptions options;
  options.max_batch = static_cast<size_t>(s.options.max_batch);
  options.reject_share = s.options.record_dir.empty() ? 0 : s.options.record_rejects;
  const SchedulerParts parts{
      .runner = runner, .queue = s.queue, .tokenizer = *model.tokenizer, .metrics = s.metrics, .clock = s.clock};
  Scheduler scheduler(options, parts, [&recorder, &s](const FinishedAnswer& answer) {
    s.gate.observe(answer);
    recorder.record(answer);
  });
  s.scheduler.store(&scheduler);
  s.drafts.store(drafts);
  s.admin.set_drafts(drafts);
  s.api.set_ready(std::move(model));
  std::atomic<bool> engine_done{false};
  std::thread engine([&] {
    scheduler.run();
    engine_done.store(true);
  });
  if (on_ready) on_ready();
  const auto failing = [&] { return scheduler.failures_in_a_row() >= kBrokenAfter; };
  while (!stop_asked() && !s.drain_asked.load() && !failing()) std::this_thread::sleep_for(kPoll);

  s.broken.store(failing());
  s.api.set_draining();
  s.http.stop_accepting();
  s.queue.close();
  const double deadline = s.clock.seconds() + (s.broken.load() ? 0 : s.options.drain_seconds);
  while (!engine_done.load() && s.clock.seconds() < deadline) std::this_thread::sleep_for(kPoll);
  scheduler.stop_now();
  engine.join();
  // Gives the last events a little time to reach the clients; clients that do not read get no more.
  for (int i = 0; i < 100 && s.http.connections() > 0; ++i) std::this_thread::sleep_for(kPoll);
  s.http.stop();
  s.drafts.store(nullptr);
  s.scheduler.store(nullptr);
  recorder.stop();
  if (s.broken.load())
    throw Error(ErrorKind::kDevice,
                std::to_string(kBrokenAfter) +
                    " sequences failed one after the other: the device no longer works (see the log)");
}

}  // namespace specdec::deploy
