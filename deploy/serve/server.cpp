#include "deploy/serve/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "deploy/serve/http/http.h"
#include "deploy/serve/schedule/recorder.h"
#include "deploy/serve/schedule/scheduler.h"

namespace specdec::deploy {

namespace {

constexpr int64_t kBrokenAfter = 32;  // after this many device failures in a row the server ends
constexpr size_t kMostNameBytes = 256;
constexpr auto kPoll = std::chrono::milliseconds(20);

void check(const ServeOptions& o) {
  const auto range = [](const char* flag, double value, double low, double high) {
    if (value >= low && value <= high) return;
    std::ostringstream text;
    text.precision(12);  // prints counts with all their digits
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
  if (o.tls_cert.empty() != o.tls_key.empty())
    throw Error(ErrorKind::kUsage, o.tls_key.empty() ? "--tls-cert: give its private key, too: --tls-key FILE"
                                                     : "--tls-key: give its certificate, too: --tls-cert FILE");
  for (const std::string& name : o.model_names) {
    const bool control = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
    if (name.empty() || name.size() > kMostNameBytes || control)
      throw Error(ErrorKind::kUsage, "--served-model-name: expected names of 1 to " + std::to_string(kMostNameBytes) +
                                         " bytes without control characters, found one of " +
                                         std::to_string(name.size()) + " bytes");
  }
}

// If there are several tenants, one of them may by default fill half of the queue, so that half is left for requests of
// other tenants. A single tenant may fill the whole queue.
size_t tenant_queue(const ServeOptions& o, bool several_tenants) {
  if (o.tenant_queue > 0) return static_cast<size_t>(o.tenant_queue);
  return static_cast<size_t>(several_tenants ? std::max<int64_t>(1, o.queue_limit / 2) : o.queue_limit);
}

AllowedHosts allowed_hosts(const ServeOptions& o) {
  std::vector<std::string> names = o.allowed_hosts;
  names.push_back(o.host);
  return AllowedHosts(names, o.allowed_origins);
}

std::shared_ptr<const ApiKeys> load_keys(const ServeOptions& o) {
  if (!o.api_key_file.empty()) return std::make_shared<const ApiKeys>(ApiKeys::load(o.api_key_file));
  return std::make_shared<const ApiKeys>(o.api_key.empty() ? ApiKeys() : ApiKeys::single(o.api_key));
}

constexpr size_t kMostSpareDescriptors = 256, kLeastSpareDescriptors = 64;

// Raises the process's limit of open files to one per connection and some for files. If that is not allowed, lowers the
// limit of connections instead.
ServeLimits with_descriptors(ServeLimits limits) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return limits;
  const rlim_t wanted =
      std::min<rlim_t>(limit.rlim_max, limits.connections + limits.admin_connections + kMostSpareDescriptors);
  if (limit.rlim_cur < wanted) {
    const rlim_t before = std::exchange(limit.rlim_cur, wanted);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  const auto descriptors = static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 24));
  const size_t fit = connections_within(descriptors, limits.connections, limits.admin_connections);
  if (fit < limits.connections)
    log(LogLevel::kWarn, "this process may have only " + std::to_string(descriptors) + " open files, so it takes " +
                             std::to_string(fit) + " connections at once instead of " +
                             std::to_string(limits.connections) + ": raise the limit (ulimit -n)");
  limits.connections = fit;
  return limits;
}

}  // namespace

size_t connections_within(size_t descriptors, size_t connections, size_t admin_connections) {
  const size_t spare = std::clamp(descriptors / 4, kLeastSpareDescriptors, kMostSpareDescriptors) + admin_connections;
  return std::clamp<size_t>(descriptors - std::min(descriptors, spare), 1, connections);
}

struct Server::Impl {
  Impl(const ServeOptions& o, const ServeLimits& l, const Clock& c, const std::shared_ptr<const ApiKeys>& keys)
      : options(o),
        limits(l),
        clock(c),
        queue(static_cast<size_t>(o.queue_limit)),
        budget(limits.held_bytes, limits.held_bytes),
        masks(limits.masks, budget, [this](const std::string& t, double seconds) { queue.masked(t, seconds); }),
        api({keys, allowed_hosts(o), queue, budget, masks}, limits, metrics, clock,
            {[this] { return running_sequences(); }, [this] { return http.connections(); },
             [this] { return broken.load(); }, [this] { return serving_draft(); },
             [this](const std::string& serving) { return read_gate(serving); }}),
        admin([this] { drain_asked.store(true); }),
        http(limits) {
    if (!o.tls_cert.empty()) identity.emplace(o.tls_cert, o.tls_key);
    share_among_tenants(*keys);
  }

  // Sets what one tenant may use of each shared resource: half if there are several tenants, else all.
  void share_among_tenants(const ApiKeys& keys) {
    several_tenants = keys.tenants().size() > 1;
    gate.set_limit_of_one_tenant(several_tenants ? LiveGate::kConversations / 2 : LiveGate::kConversations);
    queue.set_tenant_limit(tenant_queue(options, several_tenants));
    budget.set_limit_of_one_party(several_tenants ? limits.held_bytes / 2 : limits.held_bytes);
    if (DraftControl* const d = drafts.load()) d->set_several_tenants(several_tenants);
  }

  void reload();

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
  const ServeLimits limits;
  bool several_tenants = false;
  const Clock& clock;
  Metrics metrics;
  LiveGate gate;
  RequestQueue queue;
  ByteBudget budget;
  MaskWorkers masks;
  std::atomic<bool> drain_asked{false}, broken{false};
  std::atomic<Scheduler*> scheduler{nullptr};
  std::atomic<DraftControl*> drafts{nullptr};
  Api api;
  AdminApi admin;
  std::optional<TlsIdentity> identity;  // TLS identity of the public listener; none: plain HTTP
  HttpServer http;
  int port = 0;
};

Server::Server(const ServeOptions& options, const ServeLimits& limits, const Clock& clock) {
  check(options);
  const std::shared_ptr<const ApiKeys> keys = load_keys(options);
  check_exposure(options.host, *keys);
  impl_ = std::make_unique<Impl>(options, with_descriptors(limits), clock, keys);
  impl_->port =
      impl_->http.listen(options.host, options.port, impl_->api, impl_->identity ? &*impl_->identity : nullptr);
  if (!options.admin_socket.empty()) impl_->http.listen_unix(options.admin_socket, impl_->admin);
  impl_->http.start();
}

Server::~Server() = default;

int Server::port() const { return impl_->port; }

std::string Server::address() const {
  const std::string& host = impl_->options.host;
  return (impl_->identity ? "https://" : "http://") + (host.find(':') == std::string::npos ? host : "[" + host + "]") +
         ":" + std::to_string(impl_->port);
}

// Reads the key file and the TLS files again. If one of them is invalid, its old content stays in use.
void Server::Impl::reload() {
  if (options.api_key_file.empty() && !identity)
    return log(LogLevel::kWarn, "reload: there is nothing to read again, without --api-key-file and --tls-cert");
  const auto attempt = [](const std::string& what, const std::function<void()>& read) {
    try {
      read();
      log(LogLevel::kInfo, "reload: " + what + ": the new content is in force");
    } catch (const std::exception& e) {
      log(LogLevel::kError, "reload: " + what + ": the old content stays in force: " + e.what());
    }
  };
  if (!options.api_key_file.empty())
    attempt("--api-key-file", [this] {
      const std::shared_ptr<const ApiKeys> keys = load_keys(options);
      api.set_keys(keys);
      share_among_tenants(*keys);
    });
  if (identity) attempt("--tls-cert, --tls-key", [this] { identity->reload(); });
}

void Server::run(ServedModel model, StepRunner& runner, const ServerHooks& hooks, DraftControl* drafts) {
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
  const SchedulerParts parts{.runner = runner,
                             .queue = s.queue,
                             .tokenizer = *model.tokenizer,
                             .metrics = s.metrics,
                             .clock = s.clock,
                             .masks = &s.masks};
  Scheduler scheduler(options, parts, [&recorder, &s](const FinishedAnswer& answer) {
    s.gate.observe(answer);
    recorder.record(answer);
  });
  s.scheduler.store(&scheduler);
  s.drafts.store(drafts);
  if (drafts) drafts->set_several_tenants(s.several_tenants);
  s.admin.set_drafts(drafts);
  s.api.set_ready(std::move(model));
  std::atomic<bool> engine_done{false};
  std::thread engine([&] {
    scheduler.run();
    engine_done.store(true);
  });
  if (hooks.on_ready) hooks.on_ready();
  const auto failing = [&] {
    return scheduler.failures_in_a_row() >= kBrokenAfter || (engine_done.load() && scheduler.lost());
  };
  while (!hooks.stop_asked() && !s.drain_asked.load() && !failing()) {
    if (hooks.reload_asked && hooks.reload_asked()) s.reload();
    std::this_thread::sleep_for(kPoll);
  }

  s.broken.store(failing());
  s.api.set_draining();
  s.http.stop_accepting();
  s.queue.close();
  const double deadline = s.clock.seconds() + (s.broken.load() ? 0 : s.options.drain_seconds);
  while (!engine_done.load() && s.clock.seconds() < deadline) std::this_thread::sleep_for(kPoll);
  scheduler.stop_now();
  engine.join();
  // Allows a short time for the last events to reach the clients, then closes all connections.
  for (int i = 0; i < 100 && s.http.connections() > 0; ++i) std::this_thread::sleep_for(kPoll);
  s.http.stop();
  s.drafts.store(nullptr);
  s.scheduler.store(nullptr);
  recorder.stop();
  if (scheduler.lost()) throw DeviceLost(*scheduler.lost());
  if (s.broken.load())
    throw Error(ErrorKind::kDevice,
                std::to_string(kBrokenAfter) +
                    " sequences failed one after the other: the device no longer works (see the log)");
}

}  // namespace specdec::deploy
