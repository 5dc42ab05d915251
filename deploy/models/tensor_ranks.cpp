#include "deploy/models/tensor_ranks.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/child.h"
#include "base/clock.h"
#include "base/device_lost.h"
#include "base/json.h"
#include "base/socket_bytes.h"
#include "engine/decode/runners/mirrored_model.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/forward/device_errors.h"
#include "engine/parallel/ranks.h"
#include "engine/parallel/shard_ranks.h"

namespace specdec::deploy {

// Owns a file descriptor and closes it in the destructor.
class RankDescriptor {
 public:
  explicit RankDescriptor(int file = -1) : file_(file) {}
  RankDescriptor(RankDescriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  ~RankDescriptor() {
    if (file_ >= 0) ::close(file_);
  }
  int get() const { return file_; }

 private:
  int file_;
};

namespace {

constexpr const char* kNext = "start the server again";
// A message from rank 0 is a list of numbers. It begins with one of these orders, or it describes a call that rank 0
// made on its runner and that the receiving rank repeats (decode::repeat_call()).
enum Order : int64_t { kMake = -1, kEnd = -2 };
constexpr int64_t kMaxNumbers = int64_t{1} << 27;  // limit of numbers in one message: 1 GiB

// Sends a message: the count of numbers, then the numbers.
bool send_numbers(int file, std::span<const int64_t> numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  return send_all(file, &count, sizeof count) && send_all(file, numbers.data(), numbers.size_bytes());
}
// Receives a message. Returns nothing if the connection is closed or the count is invalid.
std::optional<std::vector<int64_t>> receive_numbers(int file) {
  int64_t count = 0;
  if (!receive_all(file, &count, sizeof count) || count < 0 || count > kMaxNumbers) return std::nullopt;
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  if (!receive_all(file, numbers.data(), numbers.size() * sizeof(int64_t))) return std::nullopt;
  return numbers;
}

struct RankZeroGone : Error {
  RankZeroGone() : Error(ErrorKind::kNetwork, std::string("rank 0 is gone: ") + kNext) {}
};

// A socket that listens on 127.0.0.1, at a free port that the system chooses.
struct Listener {
  RankDescriptor file;
  int port = 0;
};
Listener listen_locally() {
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Listener listener{RankDescriptor(file), 0};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (file < 0 || ::bind(file, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(file, SOMAXCONN) != 0 ||
      ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw Error(ErrorKind::kInternal, std::string("no socket for the ranks: ") + std::strerror(errno));
  listener.port = ntohs(address.sin_port);
  return listener;
}

parallel::Launch launch_of(int rank, int ranks, int port) {
  parallel::Launch launch;
  launch.launcher = "specdec";
  launch.rank = launch.local_rank = rank;
  launch.ranks = launch.local_ranks = ranks;
  launch.address = "127.0.0.1";
  launch.port = port;
  return launch;
}

parallel::RankHooks hooks_of(const std::function<void(const Error&)>& on_lost) {
  parallel::RankHooks hooks;
  hooks.on_lost = on_lost;
  hooks.next = kNext;
  return hooks;
}

}  // namespace

// A rank with its device and its shard of the target.
struct RankShare {
  parallel::Ranks ranks;
  std::shared_ptr<const model::ShardGroup> group = parallel::make_shard_group(ranks);
  at::Device device = at::kCPU;

  RankShare(const parallel::Launch& launch, const parallel::RankHooks& hooks) : ranks(launch, hooks, clock()) {}

  // Loads this rank's shard, and waits until the other ranks have loaded theirs.
  std::shared_ptr<const model::Decoder> load(const std::filesystem::path& target, const std::string& device_flag,
                                             at::ScalarType dtype, int threads, bool exact) {
    return model::with_device_errors([&] {
      const int cores = static_cast<int>(std::thread::hardware_concurrency());
      at::set_num_threads(threads > 0 ? threads : std::max(1, cores / ranks.count()));
      device = model::resolve_device(ranks.device(device_flag));
      ranks.use_device(device);
      // The first all-reduce connects the devices. It runs here so that a failure shows before weights are read and
      // memory is allocated.
      const at::Tensor one = at::ones({1}, at::TensorOptions(device).dtype(at::kFloat));
      if (group->sum(one).item<float>() != static_cast<float>(ranks.count()))
        throw Error(ErrorKind::kDevice, "the ranks' devices do not add up what they have");
      auto decoder = model::load_shard_for_decoding(target, device, dtype, group, exact);
      ranks.any(false);
      return decoder;
    });
  }
  // Makes the runner of this rank's shard, and waits until the other ranks have made theirs.
  std::unique_ptr<decode::CausalModel> make_runner(std::shared_ptr<const model::Decoder> share, int64_t cache_bytes) {
    return model::with_device_errors([&] {
      auto runner = decode::make_model_runner(std::move(share), cache_bytes);
      ranks.any(false);
      return runner;
    });
  }

  static const Clock& clock() {
    static const SystemClock clock;
    return clock;
  }
};

struct TensorRanks::State {
  struct Other {
    Child process;
    RankDescriptor socket;
  };
  explicit State(TensorRankOptions given) : options(std::move(given)) {}

  const TensorRankOptions options;
  std::vector<Other> processes;
  decode::OtherRanks others{[this](std::span<const int64_t> call) { send(call); }};
  std::optional<RankShare> share;
  bool loaded = false;
  std::atomic<bool> ends = false;  // the other ranks have been told to end, so `watch` ignores their exits
  std::jthread watch;              // the last member, so it is destroyed first

  void start(int port) {
    for (int rank = 1; rank < options.ranks; ++rank) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        throw Error(ErrorKind::kInternal, std::string("no socket for a rank: ") + std::strerror(errno));
      const RankDescriptor theirs(ends[1]);
      RankDescriptor ours(ends[0]);
      std::vector<std::string> argv = options.command;
      argv.push_back(std::to_string(theirs.get()));
      processes.push_back({Child({.argv = argv, .keep = theirs.get()}), std::move(ours)});
      const std::string job = Json({{"rank", rank},
                                    {"ranks", options.ranks},
                                    {"port", port},
                                    {"target", options.target.string()},
                                    {"device", options.device},
                                    {"dtype", model::dtype_flag(options.dtype)},
                                    {"threads", options.threads},
                                    {"exact", options.exact}})
                                  .dump();
      const std::vector<int64_t> numbers(job.begin(), job.end());
      send_numbers(processes.back().socket.get(), numbers);  // if the rank has already ended, look() reports it
    }
  }
  // Throws Error(kNetwork) if the process of any other rank has ended.
  void look() {
    for (size_t i = 0; i < processes.size(); ++i)
      if (const auto code = processes[i].process.code())
        throw Error(ErrorKind::kNetwork,
                    "rank " + std::to_string(i + 1) + " ended with exit code " + std::to_string(*code) + ": " + kNext);
  }
  // Calls on_lost, which ends this process, if another rank's process has ended and no request notices it within
  // kGraceSeconds, for example because the server is idle.
  void watch_others() {
    watch = std::jthread([this](const std::stop_token& stop) {
      constexpr double kGraceSeconds = 5;
      std::optional<Error> seen;
      for (double since = 0; !stop.stop_requested() && !ends;) {
        const double now = RankShare::clock().seconds();
        try {
          if (!seen) look();
        } catch (const Error& e) {
          seen.emplace(e);
          since = now;
        }
        if (seen && now - since > kGraceSeconds && options.on_lost) options.on_lost(*seen);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
    });
  }
  void send(std::span<const int64_t> numbers) const {
    for (size_t i = 0; i < processes.size(); ++i)
      if (!send_numbers(processes[i].socket.get(), numbers))
        throw DeviceLost("rank " + std::to_string(i + 1) + " is gone: " + kNext, ErrorKind::kNetwork);
  }
};

TensorRanks::TensorRanks(const TensorRankOptions& options) : state_(std::make_unique<State>(options)) {
  const Listener listener = listen_locally();
  State& s = *state_;
  s.start(listener.port);
  parallel::Launch launch = launch_of(0, options.ranks, listener.port);
  launch.listener = listener.file.get();
  parallel::RankHooks hooks = hooks_of(options.on_lost);
  hooks.look = [&s] { s.look(); };
  s.share.emplace(launch, hooks);
  s.watch_others();
}

TensorRanks::~TensorRanks() {
  State& s = *state_;
  if (!s.share) return;
  s.ends = true;
  try {
    if (s.loaded) s.others.tell(std::vector<int64_t>{kEnd});
  } catch (const DeviceLost&) {
  }
  // A rank could wait for ever for a message of a rank that has ended. So all ranks meet in together(): it runs end()
  // on rank 0, waits for the other ranks, and passes an error of end() on to them. end() throws if rank 0 knows of a
  // failure.
  const auto end = [&] {
    if (s.others.lost()) throw Error(s.others.lost()->kind(), s.others.lost()->what());
    if (!s.loaded) throw Error(ErrorKind::kNetwork, "the target was not loaded");
    return 0;
  };
  try {
    s.share->ranks.together(end);
  } catch (const Error&) {  // a failure was reported earlier, and the other ranks have ended or are ending
  }
}

int TensorRanks::count() const { return state_->options.ranks; }

at::Device TensorRanks::device() const { return state_->share->device; }

std::shared_ptr<const model::Decoder> TensorRanks::load() {
  State& s = *state_;
  auto share = s.share->load(s.options.target, s.options.device, s.options.dtype, s.options.threads, s.options.exact);
  s.loaded = true;
  return share;
}

std::unique_ptr<decode::CausalModel> TensorRanks::make_runner(std::shared_ptr<const model::Decoder> share,
                                                              int64_t cache_bytes) {
  State& s = *state_;
  s.others.tell(std::vector<int64_t>{kMake, cache_bytes});
  try {
    return decode::make_mirrored_model(s.share->make_runner(std::move(share), cache_bytes), s.others);
  } catch (const Error& e) {
    s.others.lose(DeviceLost(e.what(), e.kind()));
    throw;
  }
}

bool run_tensor_rank(int socket, const std::function<void(const Error&)>& on_lost) {
  const RankDescriptor file(socket);
  const auto first = receive_numbers(file.get());
  if (!first) return false;
  const Json job = Json::parse(std::string(first->begin(), first->end()));
  const auto number = [&](const char* key) { return job.at(key).get<int>(); };
  const auto word = [&](const char* key) { return job.at(key).get<std::string>(); };
  parallel::RankHooks hooks = hooks_of(on_lost);
  hooks.look = [&] {
    char byte = 0;
    if (::recv(file.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) throw RankZeroGone();
  };
  const auto receive = [&] {
    auto numbers = receive_numbers(file.get());
    if (!numbers) throw RankZeroGone();
    return *std::move(numbers);
  };
  try {
    RankShare share(launch_of(number("rank"), number("ranks"), number("port")), hooks);
    share.ranks.together([&] {
      const auto decoder = share.load(word("target"), word("device"), model::resolve_dtype(word("dtype"), {}),
                                      number("threads"), job.at("exact").get<bool>());
      std::unique_ptr<decode::CausalModel> runner;
      decode::LogitRows unread;
      for (;;) {
        const std::vector<int64_t> told = receive();
        if (told.size() == 1 && told[0] == kEnd) return 0;
        if (told.size() == 2 && told[0] == kMake)
          runner = share.make_runner(decoder, told[1]);
        else if (runner)
          decode::repeat_call(*runner, told, unread);
        else
          throw Error(ErrorKind::kInternal, "rank 0 told a call before there was a runner");
      }
    });
    return true;
  } catch (const RankZeroGone&) {
    return false;
  } catch (const parallel::RankError&) {
    return false;
  } catch (const DeviceLost& lost) {
    if (lost.kind() == ErrorKind::kNetwork) return false;
    throw DeviceLost("rank " + std::to_string(number("rank")) + ": " + lost.what(), lost.kind());
  } catch (const Error& e) {
    throw Error(e.kind(), "rank " + std::to_string(number("rank")) + ": " + e.what());
  }
}

}  // namespace specdec::deploy
