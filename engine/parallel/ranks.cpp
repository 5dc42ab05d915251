// This is the only file that includes c10d. Gloo's headers are Debian's and older than the Gloo inside LibTorch. So
// this file must not use any inline function of these headers. It uses only ProcessGroupGloo's constructor, the
// functions that create devices, and collectives, all of which are compiled into LibTorch.
#include "engine/parallel/ranks.h"

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/progress.h"
#include "engine/kernels/cuda.h"
#include "engine/parallel/addresses.h"
#include "engine/parallel/rank_watch.h"

namespace specdec::parallel {

namespace {

using Store = c10::intrusive_ptr<c10d::Store>;
using Backend = c10::intrusive_ptr<c10d::Backend>;
using std::chrono::milliseconds;

// The maximum time that a collective waits for the slowest rank. It is long because the other ranks wait while rank 0
// prepares and publishes; RankWatch notices a lost rank much earlier.
constexpr milliseconds kCollectiveTimeout = std::chrono::minutes(60);
constexpr milliseconds kStoreTimeout = std::chrono::seconds(20), kLook = milliseconds(100);
constexpr double kLeaveSeconds = 10;
constexpr int64_t kBucketValues = int64_t{1} << 24;

std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

// Logs what a rank waits for while it joins the others, once, if the wait is long.
class LongWait {
 public:
  LongWait(const RankHooks& hooks, const Clock& clock) : hooks_(hooks), clock_(clock), begin_(clock.seconds()) {}

  double seconds() const { return clock_.seconds() - begin_; }
  // Must be called repeatedly while this rank waits for `what`. Throws Error(kNetwork), the kind that means "try
  // again", if a signal asks this process to stop. Also throws what the caller's hook throws.
  void look(const std::string& what) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while " + what + ": " + hooks_.next);
    if (hooks_.look) hooks_.look();
    if (seconds() >= hooks_.wait_seconds) tell(what);
  }
  // Calls f(), which blocks, so that this rank cannot check meanwhile whether it should stop waiting. If f() has not
  // returned after join_seconds, on_lost ends the process.
  template <class F>
  auto during(const std::string& what, const F& f) {
    const std::jthread timer([&](const std::stop_token& done) {
      std::mutex mutex;
      std::condition_variable_any never;
      std::unique_lock lock(mutex);
      const auto passed = [&](double seconds) {
        never.wait_for(lock, done, std::chrono::duration<double>(seconds), [] { return false; });
        return !done.stop_requested();
      };
      if (!passed(hooks_.wait_seconds)) return;
      tell(what);
      if (passed(std::max(0.0, hooks_.join_seconds - seconds())) && hooks_.on_lost)
        hooks_.on_lost(Error(ErrorKind::kNetwork, what));
    });
    return f();
  }

 private:
  void tell(const std::string& what) {
    if (!told_.exchange(true) && hooks_.on_wait) hooks_.on_wait(what);
  }
  const RankHooks& hooks_;
  const Clock& clock_;
  const double begin_;
  std::atomic<bool> told_{false};
};

std::string name_of(const Launch& launch) { return "rank " + std::to_string(launch.rank); }

// Connects to the store through which the ranks find each other. Rank 0 also creates the store, unless torchrun's agent
// has created it.
Store open_store(const Launch& launch, double join_seconds, LongWait& wait) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = launch.rank == 0 && !launch.agent_store;
  options.waitWorkers = false;
  if (launch.listener >= 0) options.masterListenFd = ::fcntl(launch.listener, F_DUPFD_CLOEXEC, 0);
  options.timeout = kStoreTimeout;
  const std::string where = launch.address + ":" + std::to_string(launch.port);
  while (!options.isServer && !answers(launch.address, launch.port)) {
    wait.look(name_of(launch) + " waits for rank 0: nothing answers at " + where + " yet");
    if (wait.seconds() > join_seconds)
      throw Error(ErrorKind::kNetwork, name_of(launch) + " does not reach rank 0 at " + where + " within " +
                                           std::to_string(static_cast<int>(join_seconds)) + " s");
    std::this_thread::sleep_for(kLook);
  }
  try {
    return wait.during(name_of(launch) + " waits for rank 0: what listens at " + where +
                           " is silent; is that the MASTER_PORT of this run?",
                       [&] { return c10::make_intrusive<c10d::TCPStore>(launch.address, options); });
  } catch (const std::exception& e) {
    if (!options.isServer)
      throw Error(ErrorKind::kNetwork,
                  "what listens at " + where + " is not rank 0 of this run (" + first_line(e) + ")");
    throw Error(ErrorKind::kConfig, "rank 0 cannot listen at " + where + ", which all ranks were given (" +
                                        first_line(e) + "): set MASTER_PORT to a free port");
  }
}

std::string key_of(const char* kind, int rank) { return std::string(kind) + "/" + std::to_string(rank); }

// Tells the other ranks that this rank has started, and returns its name.
std::string announce(const Store& store, const Launch& launch) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  if (store->add(key_of("join", launch.rank), 1) != 1)
    throw Error(ErrorKind::kConfig, "two processes are rank " + std::to_string(launch.rank) + " at " + launch.address +
                                        ":" + std::to_string(launch.port) + ", one of them on " + host);
  const std::string name =
      "rank " + std::to_string(launch.rank) + " (" + host + ", process " + std::to_string(::getpid()) + ")";
  store->set(key_of("name", launch.rank), name + "\n" + std::to_string(launch.ranks));
  return name;
}

// Waits until every rank has announced itself in the ranks' shared store. From then on `watch` expects a rank's
// heartbeat.
void meet_all(const Store& store, const Launch& launch, double join_seconds, LongWait& wait, RankWatch& watch) {
  const double begin = wait.seconds();
  for (int rank = 0; rank < launch.ranks;) {
    const std::string key = key_of("name", rank);
    if (store->check({key})) {
      const std::string text = store->get_to_str(key), name = text.substr(0, text.find('\n'));
      if (text.substr(text.find('\n') + 1) != std::to_string(launch.ranks))
        throw Error(ErrorKind::kConfig, name + " was told of " + text.substr(text.find('\n') + 1) +
                                            " ranks, and rank " + std::to_string(launch.rank) + " of " +
                                            std::to_string(launch.ranks));
      watch.meet(rank++, name);
      continue;
    }
    wait.look(name_of(launch) + " waits for rank " + std::to_string(rank) + " of " + std::to_string(launch.ranks) +
              ", which has not started yet");
    if (wait.seconds() - begin > join_seconds)
      throw Error(ErrorKind::kNetwork, "rank " + std::to_string(rank) + " of " + std::to_string(launch.ranks) +
                                           " did not start within " + std::to_string(static_cast<int>(join_seconds)) +
                                           " s");
    std::this_thread::sleep_for(kLook);
  }
}

using Gloo = c10d::ProcessGroupGloo;

c10::intrusive_ptr<Gloo::Options> gloo_options(const Launch& launch) {
  const auto options = Gloo::Options::create(kCollectiveTimeout);
  // Ranks that the server starts itself are on one machine, so GLOO_SOCKET_IFNAME does not apply to them.
  const char* interface = launch.launcher == "specdec" ? nullptr : std::getenv("GLOO_SOCKET_IFNAME");
  const std::string address = address_for_others(launch.address, launch.port);
  options->devices.push_back(interface && *interface ? Gloo::createDeviceForInterface(interface)
                             : !address.empty()      ? Gloo::createDeviceForHostname(address)
                                                     : Gloo::createDefaultDevice());
  return options;
}

// Connects to the other ranks, which must call this function too.
Backend gloo_group(const Store& store, const Launch& launch, const c10::intrusive_ptr<Gloo::Options>& options) {
  return c10::make_intrusive<Gloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store), launch.rank, launch.ranks,
                                   options);
}

Board board_on(const Store& store) {
  return {[store](const std::string& key, const std::string& note) { store->set(key, note); },
          [store](const std::string& key) -> std::optional<std::string> {
            if (!store->check({key})) return std::nullopt;
            return store->get_to_str(key);
          }};
}

// Switches off c10d's logs of the exceptions that it throws, which contain stack traces. The errors of this file give
// the same information in one line.
void silence_c10d() {
  constexpr int kFatal = 3;
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = kFatal;
}

// Returns the tensors' values in one flat fp32 tensor.
at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& t : tensors) parts.push_back(t.flatten().to(at::kFloat));
  return at::cat(parts);
}

}  // namespace

struct Ranks::Group {
  Launch launch;
  const Clock& clock;
  Store server, store;               // `store` is `server` with a key prefix; the watch connects separately
  Backend control;                   // for collectives between CPUs
  Backend data;                      // for collectives between the devices
  std::shared_ptr<RankWatch> watch;  // watches for lost ranks; a team (Ranks::team()) uses the watch of all ranks
  std::unique_ptr<Ranks> team;
  bool failed = false;

  Group(const Launch& given, const Clock& time) : launch(given), clock(time) {}

  void connect_devices() {
    // Keeps c10d from aborting the process when a rank is lost. RankWatch ends the process instead, with a message and
    // an exit code.
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
    const Store own = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
    std::string error(512, '\0');
    void* made = kernels::cuda_library().nccl_group(own.get(), launch.rank, launch.ranks, kCollectiveTimeout.count(),
                                                    error.data(), static_cast<int64_t>(error.size()));
    if (!made) throw Error(ErrorKind::kDevice, std::string("NCCL cannot be used: ") + error.c_str());
    data = Backend::reclaim(static_cast<c10d::Backend*>(made));
  }
  // Closes the connections, so that other ranks that wait for this rank in a collective notice at once.
  void close() {
    if (team) team->group_->close();
    if (data == control) data.reset();
    control.reset();
  }

  template <class F>
  void wait(const F& start) const {
    try {
      start()->wait();
    } catch (const std::exception& e) {
      throw RankError(watch->reason(first_line(e)));
    }
  }
  void sum(at::Tensor tensor) const {
    std::vector<at::Tensor> one = {std::move(tensor)};
    wait([&] { return (one[0].is_cpu() ? control : data)->allreduce(one); });
  }
  std::vector<at::Tensor> gather(at::Tensor own) const {
    std::vector<at::Tensor> one = {std::move(own)};
    std::vector<std::vector<at::Tensor>> all(1);
    for (int r = 0; r < launch.ranks; ++r) all[0].push_back(at::empty_like(one[0]));
    wait([&] { return (one[0].is_cpu() ? control : data)->allgather(all, one); });
    return all[0];
  }
  void broadcast(at::Tensor bytes, int from = 0) const {
    std::vector<at::Tensor> one = {std::move(bytes)};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    wait([&] { return (one[0].is_cpu() ? control : data)->broadcast(one, options); });
  }
};

Ranks::Ranks() = default;

Ranks::~Ranks() {
  // After a failure NCCL's destructor can wait for other ranks forever, so the group is not destroyed. The process ends
  // anyway.
  if (group_ && group_->failed && group_->data) static_cast<void>(group_.release());
}

const Ranks& Ranks::alone() {
  static const Ranks ranks;
  return ranks;
}

Ranks::Ranks(const Launch& launch, const RankHooks& hooks, const Clock& clock)
    : rank_(launch.rank), count_(launch.ranks) {
  if (count_ == 1) return;
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes without MSG_NOSIGNAL, also to ranks that have left
  silence_c10d();
  group_ = std::make_unique<Group>(launch, clock);
  Group& g = *group_;
  LongWait wait(hooks, clock);
  g.server = open_store(launch, hooks.join_seconds, wait);
  // torchrun's agent keeps the ranks' key-value store when it restarts the ranks, so the keys of each start need their
  // own prefix.
  const std::string prefix = "specdec/" + std::to_string(launch.restarts);
  g.store = c10::make_intrusive<c10d::PrefixStore>(prefix, g.server);
  WatchOptions options;
  options.rank = rank_;
  options.ranks = count_;
  options.on_lost = hooks.on_lost;
  options.next = hooks.next;
  options.names.resize(static_cast<size_t>(count_));
  try {
    const auto gloo = gloo_options(launch);
    options.names[static_cast<size_t>(rank_)] = announce(g.store, launch);
    const Store own = c10::make_intrusive<c10d::PrefixStore>(prefix, g.server->clone());
    g.watch = std::make_shared<RankWatch>(std::move(options), board_on(own), clock);
    meet_all(g.store, launch, hooks.join_seconds, wait, *g.watch);
    g.control = g.data = gloo_group(g.store, launch, gloo);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    if (g.watch) throw Error(g.watch->reason(first_line(e)));
    throw Error(ErrorKind::kNetwork, "rank " + std::to_string(rank_) + " cannot join the others: " + first_line(e));
  }
}

std::string Ranks::device(const std::string& flag) const {
  if (count_ == 1 || (flag != "auto" && flag != "cuda")) return flag;
  return device_of_rank(flag, group_->launch, kernels::cuda_device_count());
}

void Ranks::use_device(at::Device device) const {
  if (count_ == 1 || device.is_cpu()) return;
  group_->connect_devices();
}

Ranks::Ranks(std::unique_ptr<Group> team)
    : rank_(team->launch.rank), count_(team->launch.ranks), group_(std::move(team)) {}

const Ranks& Ranks::team(int size) const {
  if (size < 1 || count_ % size != 0)
    throw Error(ErrorKind::kUsage,
                std::to_string(count_) + " processes cannot be divided into teams of " + std::to_string(size));
  if (size == 1) return alone();
  if (size == count_) return *this;
  Group& all = *group_;
  if (all.team && all.team->count_ == size) return *all.team;
  auto own = std::make_unique<Group>(all.launch, all.clock);
  own->launch.rank = rank_ % size;
  own->launch.ranks = size;
  own->store = c10::make_intrusive<c10d::PrefixStore>(
      "team/" + std::to_string(size) + "/" + std::to_string(rank_ / size), all.store);
  own->watch = all.watch;
  try {
    own->control = own->data = gloo_group(own->store, own->launch, gloo_options(own->launch));
  } catch (const std::exception& e) {
    throw RankError(all.watch->reason(first_line(e)));
  }
  if (all.data != all.control) own->connect_devices();
  all.team.reset(new Ranks(std::move(own)));
  return *all.team;
}

void Ranks::sum(std::span<double> values) const {
  if (count_ == 1 || values.empty()) return;
  group_->sum(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble));
}

void Ranks::sum(const at::Tensor& tensor) const {
  if (count_ > 1) group_->sum(tensor);
}

std::vector<at::Tensor> Ranks::gather(const at::Tensor& own) const {
  return count_ > 1 ? group_->gather(own.contiguous()) : std::vector<at::Tensor>{own};
}

bool Ranks::any(bool value) const {
  double one = value;
  sum(std::span(&one, 1));
  return one > 0;
}

void Ranks::sum(std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& shapes) const {
  if (count_ == 1 || tensors.empty()) return;
  const at::NoGradGuard guard;
  std::vector<double> defined;
  for (const at::Tensor& t : tensors) defined.push_back(t.defined());
  sum(std::span(defined));
  std::vector<at::Tensor> bucket;
  int64_t values = 0;
  const auto send = [&] {
    if (bucket.empty()) return;
    if (bucket.size() == 1 && bucket[0].scalar_type() == at::kFloat && bucket[0].is_contiguous()) {
      group_->sum(bucket[0]);
    } else {
      const at::Tensor all = flat(bucket);
      group_->sum(all);
      int64_t begin = 0;
      for (const at::Tensor& t : bucket) {
        t.copy_(all.slice(0, begin, begin + t.numel()).view_as(t));
        begin += t.numel();
      }
    }
    bucket.clear();
    values = 0;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (defined[i] == 0) continue;
    if (!tensors[i].defined()) tensors[i] = at::zeros_like(shapes[i]);
    if (values + tensors[i].numel() > kBucketValues) send();
    bucket.push_back(tensors[i]);
    values += tensors[i].numel();
  }
  send();
}

void Ranks::broadcast(const std::vector<at::Tensor>& tensors, int from) const {
  if (count_ == 1) return;
  const at::NoGradGuard guard;
  std::vector<at::Tensor> bucket;  // small tensors of one dtype and device are sent together
  int64_t values = 0;
  const auto send = [&] {
    if (bucket.size() == 1 && bucket[0].is_contiguous()) {
      group_->broadcast(bucket[0].flatten().view(at::kByte), from);
    } else if (!bucket.empty()) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& t : bucket) parts.push_back(t.flatten());
      const at::Tensor all = at::cat(parts);
      group_->broadcast(all.view(at::kByte), from);
      int64_t begin = 0;
      for (const at::Tensor& t : bucket) {
        if (rank_ != from) t.copy_(all.slice(0, begin, begin + t.numel()).view_as(t));
        begin += t.numel();
      }
    }
    bucket.clear();
    values = 0;
  };
  for (const at::Tensor& given : tensors) {
    if (given.numel() == 0) continue;
    const at::Tensor t = given.detach();
    if (values + t.numel() > kBucketValues ||
        (!bucket.empty() && (t.scalar_type() != bucket[0].scalar_type() || t.device() != bucket[0].device())))
      send();
    bucket.push_back(t);
    values += t.numel();
  }
  send();
}

std::string Ranks::broadcast(const std::string& text) const {
  if (count_ == 1) return text;
  auto size = static_cast<int64_t>(text.size());
  group_->broadcast(at::from_blob(&size, {1}, at::kLong));
  std::string out = is_first() ? text : std::string(static_cast<size_t>(size), '\0');
  if (size > 0) group_->broadcast(at::from_blob(out.data(), {size}, at::kByte));
  return out;
}

void Ranks::leave() const {
  if (count_ == 1) return;
  any(false);  // a barrier: all ranks are done
  group_->watch->leave();
  if (!is_first()) return;
  const double begin = group_->clock.seconds();
  while (!group_->watch->others_left() && group_->clock.seconds() - begin < kLeaveSeconds)
    std::this_thread::sleep_for(kLook);
}

void Ranks::fail(const Error& error) const {
  if (count_ == 1) return;
  group_->failed = true;
  group_->watch->fail(error);
  group_->watch->leave();
  group_->close();
  if (!is_first() || group_->launch.agent_store) return;
  // The ranks' shared store ends with this process, so this process gives the other ranks time to read the error.
  const double begin = group_->clock.seconds();
  while (!group_->watch->others_left() && group_->clock.seconds() - begin < kLeaveSeconds / 2)
    std::this_thread::sleep_for(kLook);
}

}  // namespace specdec::parallel
