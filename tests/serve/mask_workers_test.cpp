#include "deploy/serve/schedule/mask_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "deploy/serve/schedule/scheduler.h"
#include "tests/base/manual_clock.h"
#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

using decode::MaskState;

constexpr int64_t kIds = 40;
constexpr size_t kWords = 2;

// Allows only the token whose id equals the number of tokens so far. If it has a gate, it waits there before each mask.
class Counting final : public decode::Constraint {
 public:
  struct Shared {
    std::shared_future<void> gate = {};
    std::atomic<size_t> bytes{0};
    std::atomic<int> masks{0}, alive{0};
    std::atomic<double> cost{0};  // seconds that a mask adds to the simulated CPU clock
  };
  explicit Counting(Shared& shared, std::atomic<double>& clock) : shared_(shared), clock_(clock) { ++shared_.alive; }
  ~Counting() override { --shared_.alive; }
  MaskState allowed(std::span<uint32_t> bits) override {
    if (shared_.gate.valid()) shared_.gate.wait();
    ++shared_.masks;
    clock_.store(clock_.load() + shared_.cost.load());
    std::fill(bits.begin(), bits.end(), 0u);
    bits[tokens_.size() / 32] = 1u << (tokens_.size() % 32);
    return MaskState::kReady;
  }
  void push(int32_t token) override { tokens_.push_back(token); }
  void pop(int64_t count) override { tokens_.resize(tokens_.size() - static_cast<size_t>(count)); }
  size_t bytes() const override { return shared_.bytes.load(); }

 private:
  Shared& shared_;
  std::atomic<double>& clock_;
  std::vector<int32_t> tokens_;
};

struct Bench {
  explicit Bench(MaskLimits limits = {}, size_t held_bytes = 1 << 30)
      : budget(held_bytes, held_bytes),
        workers(
            limits, budget,
            [this](const std::string& tenant, double seconds) {
              const std::lock_guard lock(mutex);
              charged[tenant] += seconds;
              ++done;
            },
            [this] { return clock.load(); }) {}
  std::unique_ptr<decode::Constraint> constraint(Counting::Shared& shared, const std::string& tenant = "alice") {
    return workers.off_thread([this, &shared] { return std::make_unique<Counting>(shared, clock); }, tenant, kIds)();
  }
  int masks_done() {
    const std::lock_guard lock(mutex);
    return done;
  }
  // Asks repeatedly until the mask is no longer late.
  MaskState await(decode::Constraint& c) {
    MaskState state = c.prepare();
    wait_until([&] { return (state = c.prepare()) != MaskState::kLate; });
    return state;
  }
  size_t allowed(decode::Constraint& c) {
    EXPECT_EQ(await(c), MaskState::kReady);
    std::vector<uint32_t> bits(kWords, 7);
    EXPECT_EQ(c.allowed(bits), MaskState::kReady);
    for (size_t id = 0; id < 32 * kWords; ++id)
      if (bits[id / 32] >> (id % 32) & 1) return id;
    return 32 * kWords;
  }

  std::atomic<double> clock{0};
  std::mutex mutex;
  std::map<std::string, double> charged;
  int done = 0;
  ByteBudget budget;
  MaskWorkers workers;
};

TEST(MaskWorkers, GiveTheMaskOfThePositionHoweverItWasReached) {
  Bench b;
  Counting::Shared shared;
  const auto c = b.constraint(shared);
  EXPECT_EQ(b.allowed(*c), 0u);
  c->push(5), c->push(6);
  EXPECT_EQ(b.allowed(*c), 2u);
  const int masks = shared.masks;
  c->pop(2), c->push(5), c->push(6);
  EXPECT_EQ(b.allowed(*c), 2u);
  EXPECT_EQ(shared.masks, masks) << "the same tokens again";
  c->pop(1), c->push(7), c->push(8);
  EXPECT_EQ(b.allowed(*c), 3u);
  c->pop(3);
  EXPECT_EQ(b.allowed(*c), 0u);
  for (int32_t i = 0; i < 33; ++i) c->push(i);
  EXPECT_EQ(b.allowed(*c), 33u);
}

TEST(MaskWorkers, ASlowMaskIsLateAndDelaysNobodyElse) {
  Bench b;
  std::promise<void> gate;
  Counting::Shared slow{gate.get_future().share()}, quick;
  const auto a = b.constraint(slow), other = b.constraint(quick, "bob");
  EXPECT_EQ(a->prepare(), MaskState::kLate);
  std::vector<uint32_t> bits(kWords);
  EXPECT_EQ(a->allowed(bits), MaskState::kLate) << "without begin_step() nobody waits";
  b.workers.begin_step();
  EXPECT_EQ(a->allowed(bits), MaskState::kLate);
  b.workers.settle();  // returns after its time limit although the mask is late
  EXPECT_EQ(b.allowed(*other), 0u);
  a->push(1), a->push(2);  // the position changes while the first mask is being computed
  EXPECT_EQ(a->prepare(), MaskState::kLate);
  gate.set_value();
  EXPECT_EQ(b.allowed(*a), 2u);
}

TEST(MaskWorkers, AnAnswersTimeHasALimitAndIsCharged) {
  Bench b({.seconds = 1, .seconds_per_mask = 0.5});
  Counting::Shared shared;
  shared.cost = 0.75;
  const auto c = b.constraint(shared);
  EXPECT_EQ(b.await(*c), MaskState::kReady);
  for (int32_t i = 0; i < 3; ++i) {  // 4 masks may take 3 s: 1 s plus 0.5 s each
    c->push(i);
    EXPECT_EQ(b.await(*c), MaskState::kReady) << i;
  }
  c->push(3);
  EXPECT_EQ(b.await(*c), MaskState::kSpent);
  EXPECT_EQ(shared.alive, 0) << "its memory is given back at once";
  c->push(4);
  EXPECT_EQ(c->prepare(), MaskState::kSpent);
  wait_until([&] { return b.masks_done() == 5; });
  EXPECT_DOUBLE_EQ(b.charged["alice"], 5 * 0.75);
}

// A grammar that restarts in the middle of an answer (logits_processors.h) gets several tokens at once, and each token
// adds the time allowed for one mask.
TEST(MaskWorkers, TokensThatComeTogetherBringTheTimeOfTheirMasks) {
  Bench b({.seconds = 1, .seconds_per_mask = 0.5});
  Counting::Shared shared;
  shared.cost = 3;
  const auto c = b.constraint(shared);
  for (int32_t i = 0; i < 4; ++i) c->push(i);
  EXPECT_EQ(b.await(*c), MaskState::kReady);
  c->push(4);
  EXPECT_EQ(b.await(*c), MaskState::kSpent);
}

TEST(MaskWorkers, AnAnswersMemoryHasALimitAndCountsForItsTenant) {
  Bench b({.bytes = 1000}, 1500);
  Counting::Shared large, first, second;
  large.bytes = 1001;
  first.bytes = second.bytes = 800;
  EXPECT_EQ(b.await(*b.constraint(large)), MaskState::kSpent);
  auto holder = b.constraint(first);
  EXPECT_EQ(b.await(*holder), MaskState::kReady);
  EXPECT_EQ(b.budget.held(), 800u);
  const auto other = b.constraint(second);
  EXPECT_EQ(b.await(*other), MaskState::kReady) << "the budget is full, but the answer was admitted";
  EXPECT_EQ(b.budget.held(), 1600u);
  EXPECT_FALSE(b.budget.hold("bob")->resize(1)) << "newcomers wait";
  holder.reset();
  wait_until([&] { return b.budget.held() == 800; });
  EXPECT_TRUE(b.budget.hold("bob")->resize(1));
}

TEST(MaskWorkers, AnAnswerMayEndWhileItsMaskIsComputed) {
  Bench b;
  std::promise<void> gate;
  Counting::Shared shared{gate.get_future().share()};
  auto c = b.constraint(shared);
  EXPECT_EQ(c->prepare(), MaskState::kLate);
  c.reset();
  gate.set_value();
  wait_until([&] { return b.masks_done() == 1 && shared.alive == 0; });
}

// A scheduler whose runner reports late grammar masks.
struct LateMasks {
  LateMasks()
      : scheduler(
            {}, {.runner = runner, .queue = queue, .tokenizer = byte_tokenizer(), .metrics = metrics, .clock = clock}) {
    runner.set_late(true);
  }
  std::shared_ptr<GenerationRequest> push(const std::string& prompt) {
    auto r = std::make_shared<GenerationRequest>();
    r->prompts = {byte_tokenizer().encode(prompt, true)};
    r->options.max_tokens = 200;
    r->options.eos_ids = {kEos};
    r->channel = std::make_shared<Channel>(1 << 20);
    EXPECT_EQ(queue.push(r), RequestQueue::Push::kAccepted);
    return r;
  }
  void run_all() {
    while (scheduler.turn()) {
    }
  }
  // Returns the text received so far, with a dot at the end if the answer has ended.
  static std::string take(const GenerationRequest& r) {
    std::string text;
    for (const ChoiceEvent& event : r.channel->take()) text += event.text + (event.result ? "." : "");
    return text;
  }

  FakeRunner runner;
  RequestQueue queue{64};
  Metrics metrics;
  specdec::testing::ManualClock clock;
  Scheduler scheduler;
};

TEST(LateMasks, TheirSequenceSitsOutAndTheOthersGoOn) {
  LateMasks b;
  const auto late = b.push("masked say:Hello"), other = b.push("say:Bob is quick");
  b.run_all();  // stops with one answer running, which waits for its mask
  EXPECT_EQ(b.take(*other), "Bob is quick.");
  EXPECT_EQ(b.take(*late), "");
  EXPECT_EQ(b.scheduler.running(), 1u);
  const auto third = b.push("say:third");
  b.run_all();
  EXPECT_EQ(b.take(*third), "third.") << "new answers begin meanwhile";
  b.runner.set_late(false);
  b.run_all();
  EXPECT_EQ(b.take(*late), "Hello.");
}

TEST(LateMasks, AreWaitedForAndNothingElseIs) {  // a failure of this test shows as a hang
  LateMasks b;
  const auto late = b.push("masked say:Hello");
  std::thread engine([&] { b.scheduler.run(); });
  while (b.scheduler.running() == 0) std::this_thread::yield();
  b.queue.close();  // running answers are still finished
  b.runner.set_late(false);
  b.queue.masked("", 0.001);
  engine.join();
  EXPECT_EQ(b.take(*late), "Hello.");
}

}  // namespace
}  // namespace specdec::deploy
