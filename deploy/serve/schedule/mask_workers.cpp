#include "deploy/serve/schedule/mask_workers.h"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"

namespace specdec::deploy {

namespace {

using decode::MaskState;

// Beyond this size a freed matcher's memory is returned to the system at once, because the allocator would keep it.
constexpr size_t kTrimmedBytes = 4 << 20;

double cpu_seconds_of_thread() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// State of the masks of one answer. The members before `busy` are used by one worker thread at a time;
// MaskWorkers::mutex_ guards `busy` and the members after it.
struct MaskWorkers::Answer {
  ~Answer() { free_matcher(); }
  void free_matcher() {
    matcher.reset();
    if (held && counted + held->bytes() > kTrimmedBytes) ::malloc_trim(0);
    held.reset();
  }

  Make make;  // makes the matcher; empty after the first mask
  std::string tenant;
  std::unique_ptr<Constraint> matcher;
  size_t counted = 0;                      // bytes of the matcher that the request has charged already
  std::shared_ptr<ByteBudget::Hold> held;  // charges the matcher's other bytes to the memory budget
  double seconds = 0;
  size_t masks = 0;
  std::vector<uint32_t> next;

  bool busy = false;
  MaskState state = MaskState::kLate;  // state of `mask`, valid if not busy
  std::vector<uint32_t> mask;          // the mask that was computed last or is being computed
};

class MaskWorkers::OffThread final : public decode::Constraint {
 public:
  OffThread(MaskWorkers& workers, std::shared_ptr<Answer> answer) : workers_(workers), answer_(std::move(answer)) {}
  // Frees the matcher on a worker thread, because freeing a large matcher takes long.
  ~OffThread() override {
    workers_.workers_.submit({answer_->tenant, false, [answer = std::move(answer_)] {}});
  }

  MaskState allowed(std::span<uint32_t> bits) override {
    MaskState state = prepare();
    std::unique_lock lock(workers_.mutex_);
    while (state == MaskState::kLate && workers_.may_wait_ > 0) {
      workers_.wait(lock, [this] { return !answer_->busy; });
      if (answer_->busy) break;
      lock.unlock();
      state = prepare();  // the computed mask may be for another position than the current one
      lock.lock();
    }
    if (state == MaskState::kReady) std::copy_n(answer_->mask.begin(), bits.size(), bits.begin());
    return state;
  }

  MaskState prepare() override {
    {
      const std::lock_guard lock(workers_.mutex_);
      if (answer_->busy) return MaskState::kLate;
      if (answer_->state == MaskState::kSpent) return MaskState::kSpent;
      if (begun_ && common_ == told_.size() && common_ == path_.size()) return answer_->state;
      answer_->busy = true;
      ++workers_.outstanding_;
    }
    begun_ = true;
    const auto first = static_cast<std::ptrdiff_t>(common_);
    std::vector<int32_t> pushes(path_.begin() + first, path_.end());
    const auto pops = static_cast<int64_t>(told_.size() - common_);
    told_.resize(common_);
    told_.insert(told_.end(), pushes.begin(), pushes.end());
    common_ = told_.size();
    workers_.submit(answer_, pops, std::move(pushes));
    return MaskState::kLate;
  }

  void push(int32_t token) override {
    if (common_ == path_.size() && common_ < told_.size() && told_[common_] == token) ++common_;
    path_.push_back(token);
  }

  void pop(int64_t count) override {
    path_.resize(path_.size() - static_cast<size_t>(count));
    common_ = std::min(common_, path_.size());
  }

 private:
  MaskWorkers& workers_;
  std::shared_ptr<Answer> answer_;
  bool begun_ = false;
  // path_: the answer's tokens up to the caller's position. told_: the answer's tokens up to the position for which a
  // mask was last requested. common_: length of the common prefix of path_ and told_.
  std::vector<int32_t> path_, told_;
  size_t common_ = 0;
};

MaskWorkers::MaskWorkers(const MaskLimits& limits, ByteBudget& budget, Done done)
    : MaskWorkers(limits, budget, std::move(done), cpu_seconds_of_thread) {}

MaskWorkers::MaskWorkers(const MaskLimits& limits, ByteBudget& budget, Done done,
                         std::function<double()> thread_seconds)
    : limits_(limits),
      budget_(budget),
      done_(std::move(done)),
      thread_seconds_(std::move(thread_seconds)),
      workers_(limits.threads) {}

MaskWorkers::~MaskWorkers() = default;

MaskWorkers::Make MaskWorkers::off_thread(Make make, const std::string& tenant, int64_t vocab, size_t counted) {
  return [this, make = std::move(make), tenant, vocab, counted] {
    const auto answer = std::make_shared<Answer>();
    answer->make = make;
    answer->tenant = tenant;
    answer->counted = counted;
    answer->held = budget_.hold(tenant);
    answer->next.resize(static_cast<size_t>((vocab + 31) / 32));
    return std::make_unique<OffThread>(*this, answer);
  };
}

void MaskWorkers::submit(const std::shared_ptr<Answer>& answer, int64_t pops, std::vector<int32_t> pushes) {
  workers_.submit(
      {answer->tenant, false, [this, answer, pops, pushes = std::move(pushes)] { compute(*answer, pops, pushes); }});
}

// Moves the matcher to the next position and computes its mask. If the answer exceeds its limits, its matcher is freed
// at once.
void MaskWorkers::compute(Answer& answer, int64_t pops, const std::vector<int32_t>& pushes) {
  const double before = thread_seconds_();
  MaskState state = MaskState::kSpent;
  try {
    if (answer.make) answer.matcher = std::exchange(answer.make, {})();
    if (pops > 0) answer.matcher->pop(pops);
    for (const int32_t token : pushes) answer.matcher->push(token);
    state = answer.matcher->allowed(answer.next);
  } catch (const std::exception& e) {
    log(LogLevel::kError, std::string("a grammar's mask failed: ") + e.what());
  }
  const double seconds = thread_seconds_() - before;
  if (state == MaskState::kReady && !within_limits(answer, seconds, pushes.size())) state = MaskState::kSpent;
  if (state == MaskState::kSpent) answer.free_matcher();
  {
    const std::lock_guard lock(mutex_);
    answer.mask.swap(answer.next);
    answer.next.resize(answer.mask.size());
    answer.state = state;
    answer.busy = false;
    --outstanding_;
  }
  changed_.notify_all();
  done_(answer.tenant, seconds);
}

// Adds the seconds of a mask to the answer's total, and returns whether the answer stays within its limits. `tokens` is
// the number of tokens since the last mask. Each token adds the time allowed for one mask, because a grammar that
// restarts in the middle of an answer (logits_processors.h) gets all its tokens at once.
bool MaskWorkers::within_limits(Answer& answer, double seconds, size_t tokens) const {
  answer.seconds += seconds;
  answer.masks += std::max<size_t>(1, tokens);
  const size_t bytes = answer.matcher->bytes();
  // The answer is running already, so a full budget does not end it; new requests wait instead.
  if (bytes > answer.counted + answer.held->bytes()) answer.held->force(bytes - answer.counted);
  return bytes <= limits_.bytes &&
         answer.seconds <= limits_.seconds + limits_.seconds_per_mask * static_cast<double>(answer.masks);
}

void MaskWorkers::begin_step() {
  const std::lock_guard lock(mutex_);
  may_wait_ = limits_.wait_seconds_per_step;
}

void MaskWorkers::settle() {
  std::unique_lock lock(mutex_);
  wait(lock, [this] { return outstanding_ == 0; });
}

void MaskWorkers::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& over) {
  if (over() || may_wait_ <= 0) return;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point began = Clock::now();
  changed_.wait_for(lock, std::chrono::duration<double>(may_wait_), over);
  may_wait_ -= std::chrono::duration<double>(Clock::now() - began).count();
}

}  // namespace specdec::deploy
