#include "tests/kernels/fibers/fibers.h"

#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "tests/kernels/fibers/context.h"
#include "tests/kernels/fibers/device_memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The linker sets these to the bounds of the section with all __shared__ variables (cuda/cuda_runtime.h). Both are null
// in a program without such variables.
extern "C" {
__attribute__((weak, visibility("hidden"))) extern volatile unsigned char __start_specdec_shared[];
__attribute__((weak, visibility("hidden"))) extern volatile unsigned char __stop_specdec_shared[];
}

namespace specdec::fibers {

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kMaxThreads = 1024;
constexpr unsigned kMaxHeight = 65535;  // the limit of a grid's y and z
// The limit of dynamic shared memory on every GPU, unless cudaFuncAttributeMaxDynamicSharedMemorySize is set for the
// kernel.
constexpr size_t kMaxSharedBytes = 48 << 10;

std::string text_of(const Site& site) {
  const std::string_view file = site.file;
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(site.line);
}

// Random numbers for the order in which threads run. Drawing one must cost less than running a thread.
class Order {
 public:
  Order(uint64_t seed, uint64_t number) : state_(seed * 0xd1342543de82ef95ull + number * 0x2545f4914f6cdd1dull) {}
  // Returns a uniform number from 0 to n - 1, for n < 2^32, by splitmix64 (Steele et al. 2014).
  uint64_t below(uint64_t n) {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return ((x ^ x >> 31) >> 32) * n >> 32;
  }

 private:
  uint64_t state_;
};

enum class State { kReady, kAtBarrier, kAtExchange, kReturned };

// The values of a finished warp operation, kept until each of its lanes comes to its next operation.
struct Gathered {
  LaneValues values{};
  int readers = 0;
};

struct Fiber {
  Context context;
  void* stack = nullptr;
  void* fake_stack = nullptr;  // for the address sanitizer
  State state = State::kReady;
  Site waits_at;
  Index3 thread;
  unsigned number = 0;
  Gathered* gathered = nullptr;
};

// A warp operation for which some lanes of `mask` have arrived and wait for the others.
struct Meeting {
  unsigned warp = 0, mask = 0, arrived = 0;
  Site site;
  LaneValues values{};
};

// Keeps the memory of stacks from launch to launch. The system provides a stack's pages only when they are used.
class Stacks {
 public:
  // Returns stack `i`, after clearing the address sanitizer's marks in the frames that an earlier fiber left: only the
  // first frames, or after a fault any frames.
  void* at(size_t i, [[maybe_unused]] bool after_fault) {
    void* stack = memory(i);
#if defined(__SANITIZE_ADDRESS__)
    const size_t used = after_fault ? kStackBytes : kFirstFrames;
    __asan_unpoison_memory_region(static_cast<std::byte*>(stack) + kStackBytes - used, used);
#endif
    return stack;
  }

 private:
  static constexpr size_t kFirstFrames = 4096;  // bytes of the frames of functions that never return

  void* memory(size_t i) {
    while (stacks_.size() <= i) {
      void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      stacks_.push_back(memory);
    }
    return stacks_[i];
  }

  std::vector<void*> stacks_;
};

// Fills all __shared__ variables with NaN bytes, because no kernel may rely on their content. The address sanitizer is
// off here, because its own borders lie between the variables.
__attribute__((no_sanitize("address"))) void spoil_shared_variables() {
  for (volatile unsigned char* at = __start_specdec_shared; at < __stop_specdec_shared; ++at) *at = 0xFF;
}

// Runs the blocks of one launch, one after the other.
class Grid {
 public:
  Grid(const LaunchShape& shape, const std::function<void()>& body)
      : shape_(shape), body_(body), order_(settings().seed, static_cast<uint64_t>(settings().launches)) {
    if (shape.grid.volume() == 0 || shape.block.volume() == 0) throw KernelFault("a launch without blocks or threads");
    if (shape.block.volume() > kMaxThreads)
      throw KernelFault("a block of " + std::to_string(shape.block.volume()) + " threads, at most 1024 are possible");
    if (std::max(shape.grid.y, shape.grid.z) > kMaxHeight)
      throw KernelFault("a grid of " + std::to_string(shape.grid.y) + " by " + std::to_string(shape.grid.z) +
                        " rows of blocks, at most 65535 by 65535 are possible");
    if (shape.shared_bytes > kMaxSharedBytes)
      throw KernelFault(std::to_string(shape.shared_bytes) + " bytes of shared memory, at most 49152 are possible");
    fibers_.resize(shape.block.volume());
  }

  void run() {
    std::vector<uint64_t> blocks(shape_.grid.volume());
    for (uint64_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    for (uint64_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[order_.below(i)]);
    for (const uint64_t block : blocks) run_block(block);
  }

  static Grid*& current() {
    static Grid* grid = nullptr;
    return grid;
  }

  Fiber& fiber() { return *running_; }
  const Index3& block() const { return block_; }
  const LaunchShape& shape() const { return shape_; }
  void* shared() { return shared_ ? shared_->data() : nullptr; }

  void barrier(const Site& site) {
    std::vector<Site>& met = settings().barriers;
    if (std::find(met.begin(), met.end(), site) == met.end()) met.push_back(site);
    if (site == settings().without) return;
    if (at_barrier_ > 0 && barrier_ != site)
      throw KernelFault("threads of one block wait at different barriers, " + text_of(site) + " and " +
                        text_of(barrier_));
    barrier_ = site;
    running_->state = State::kAtBarrier;
    running_->waits_at = site;
    if (++at_barrier_ == fibers_.size()) {
      at_barrier_ = 0;
      for (Fiber& other : fibers_) make_ready(other);
    }
    leave();
  }

  const LaneValues& exchange(unsigned mask, uint64_t value, const Site& site) {
    const unsigned warp = running_->number / 32, lane = running_->number % 32;
    if ((mask >> lane & 1) == 0)
      throw KernelFault("a lane that is not in its own mask of a warp operation at " + text_of(site));
    if (warp * 32 + 31 - static_cast<unsigned>(__builtin_clz(mask)) >= fibers_.size())
      throw KernelFault("the mask of a warp operation at " + text_of(site) + " names lanes that the block has not");
    release(*running_);
    Meeting& meeting = join(warp, mask, site);
    meeting.values[lane] = value;
    meeting.arrived |= 1u << lane;
    running_->state = State::kAtExchange;
    running_->waits_at = site;
    if (meeting.arrived == mask) {
      Gathered& gathered = free_gathered();
      gathered.values = meeting.values;
      for (unsigned other = 0; other < 32; ++other) {
        if ((mask >> other & 1) == 0) continue;
        fibers_[warp * 32 + other].gathered = &gathered;
        ++gathered.readers;
        make_ready(fibers_[warp * 32 + other]);
      }
      std::erase_if(meetings_, [&](const Meeting& m) { return m.warp == warp && m.mask == mask && m.site == site; });
    }
    leave();
    return running_->gathered->values;
  }

  void may_yield() {
    if (order_.below(2) == 0) return;
    make_ready(*running_);
    leave();
  }

 private:
  // Returns the warp operation for which lanes of `mask` wait at `site`, or a new one. If an operation never gets all
  // of its lanes, report_waiting() throws in the end.
  Meeting& join(unsigned warp, unsigned mask, const Site& site) {
    for (Meeting& m : meetings_)
      if (m.warp == warp && m.mask == mask && m.site == site) return m;
    return meetings_.emplace_back(Meeting{.warp = warp, .mask = mask, .site = site});
  }

  void release(Fiber& fiber) {
    if (Gathered* const read = std::exchange(fiber.gathered, nullptr); read && --read->readers == 0)
      free_.push_back(read);
  }
  Gathered& free_gathered() {
    if (free_.empty()) free_.push_back(gathered_.emplace_back(std::make_unique<Gathered>()).get());
    Gathered& out = *free_.back();
    free_.pop_back();
    return out;
  }

  void make_ready(Fiber& fiber) {
    fiber.state = State::kReady;
    ready_.push_back(fiber.number);
    if (fiber.number / 32 == favourite_) ++favoured_;
  }

  // Switches from the running fiber to the scheduler. Returns when the scheduler continues this fiber.
  void leave() {
    Fiber& me = *running_;
#if defined(__SANITIZE_ADDRESS__)
    const bool ends = me.state == State::kReturned;
    __sanitizer_start_switch_fiber(ends ? nullptr : &me.fake_stack, main_stack_, main_bytes_);
#endif
    switch_stacks(me.context, main_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(me.fake_stack, &main_stack_, &main_bytes_);
#endif
  }

  // Switches from the scheduler to `fiber`. Returns when the fiber waits or ends.
  void enter(Fiber& fiber) {
    running_ = &fiber;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack, kStackBytes);
#endif
    switch_stacks(main_, fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  static void thread_main() {
    Grid& grid = *current();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &grid.main_stack_, &grid.main_bytes_);
#endif
    try {
      grid.body_();
    } catch (...) {
      if (!grid.failure_) grid.failure_ = std::current_exception();
    }
    grid.running_->state = State::kReturned;
    grid.leave();
  }

  void start_fibers() {
    static Stacks stacks;
    const bool after_fault = std::exchange(faulted(), false);
    ready_.clear();
    meetings_.clear();
    at_barrier_ = 0;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      Fiber& f = fibers_[i];
      release(f);
      f.stack = stacks.at(i, after_fault);
      f.number = i;
      const Size3& size = shape_.block;
      f.thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      prepare(f.context, f.stack, kStackBytes, &thread_main);
      make_ready(f);
    }
  }

  static bool& faulted() {
    static bool last = false;
    return last;
  }

  void run_block(uint64_t number) {
    const Size3& size = shape_.grid;
    block_ = {static_cast<unsigned>(number % size.x), static_cast<unsigned>(number / size.x % size.y),
              static_cast<unsigned>(number / size.x / size.y)};
    shared_ = shape_.shared_bytes == 0 ? nullptr : std::make_unique<DeviceMemory<std::byte>>(shape_.shared_bytes);
    spoil_shared_variables();
    // In half of the blocks one warp runs whenever it can, so that it gets far ahead of the other warps.
    const uint64_t warps = (fibers_.size() + 31) / 32;
    favourite_ = order_.below(2) == 0 ? order_.below(warps) : warps;
    favoured_ = 0;
    start_fibers();
    faulted() = true;  // reset once all threads have returned
    while (!ready_.empty() && !failure_) {
      const bool favours = favoured_ > 0;
      const auto preferred = favours ? std::find_if(ready_.begin(), ready_.end(),
                                                    [&](unsigned number) { return number / 32 == favourite_; })
                                     : ready_.end();
      std::swap(favours ? *preferred : ready_[order_.below(ready_.size())], ready_.back());
      if (favours) --favoured_;
      Fiber& next = fibers_[ready_.back()];
      ready_.pop_back();
      enter(next);
    }
    if (failure_) std::rethrow_exception(failure_);
    report_waiting();
    faulted() = false;
    if (shared_) shared_->check_borders();
  }

  // Throws KernelFault if threads still wait now that no thread can run.
  void report_waiting() const {
    size_t waiting = 0, returned = 0;
    const Fiber* first = nullptr;
    for (const Fiber& f : fibers_) {
      if (f.state == State::kReturned) {
        ++returned;
        continue;
      }
      ++waiting;
      if (!first) first = &f;
    }
    if (waiting == 0) return;
    throw KernelFault(std::to_string(waiting) + " of " + std::to_string(fibers_.size()) +
                      " threads wait for ever, the first at the " +
                      (first->state == State::kAtBarrier ? "barrier " : "warp operation ") + text_of(first->waits_at) +
                      "; " + std::to_string(returned) + " threads have returned");
  }

  const LaunchShape& shape_;
  const std::function<void()>& body_;
  Order order_;
  std::vector<Fiber> fibers_;
  std::vector<unsigned> ready_;
  uint64_t favourite_ = 0;  // warp that runs whenever it can; the number of warps if there is none
  size_t favoured_ = 0;     // threads of `favourite_` that are ready
  std::vector<Meeting> meetings_;
  std::vector<std::unique_ptr<Gathered>> gathered_;
  std::vector<Gathered*> free_;  // those that nobody reads any more
  std::unique_ptr<DeviceMemory<std::byte>> shared_;
  size_t at_barrier_ = 0;
  Site barrier_;  // the place of the barrier at which threads wait
  Index3 block_;
  Fiber* running_ = nullptr;
  Context main_;
  const void* main_stack_ = nullptr;  // the scheduler's stack, for the address sanitizer
  size_t main_bytes_ = 0;
  std::exception_ptr failure_;
};

Site site_of(const std::source_location& where) { return {where.file_name(), where.line()}; }

Grid& grid() {
  if (!Grid::current()) throw KernelFault("a kernel's function was called outside of a launch");
  return *Grid::current();
}

}  // namespace

Settings& settings() {
  static Settings all;
  return all;
}

CUstream_st* stream() {
  static char place;  // nobody looks into a stream
  return reinterpret_cast<CUstream_st*>(&place);
}

void launch(const LaunchShape& shape, const std::function<void()>& body) {
  ++settings().launches;
  Grid grid(shape, body);
  Grid* const outer = std::exchange(Grid::current(), &grid);
  try {
    grid.run();
  } catch (...) {
    Grid::current() = outer;
    throw;
  }
  Grid::current() = outer;
}

const Index3& thread_index() { return grid().fiber().thread; }
const Index3& block_index() { return grid().block(); }
const Size3& block_size() { return grid().shape().block; }
const Size3& grid_size() { return grid().shape().grid; }
void* dynamic_shared() { return grid().shared(); }
void block_barrier(std::source_location where) { grid().barrier(site_of(where)); }
void may_yield() { grid().may_yield(); }
const LaneValues& exchange(unsigned mask, uint64_t value, std::source_location where) {
  return grid().exchange(mask, value, site_of(where));
}
unsigned lane() { return grid().fiber().number % 32; }
void fault(const std::string& message) { throw KernelFault(message); }

}  // namespace specdec::fibers
