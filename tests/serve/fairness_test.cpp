// Tests of fairness between tenants, from the queue to the steps. A tenant is charged per answer, so it does not matter
// how answers are grouped into requests.
#include <gtest/gtest.h>

#include <map>

#include "deploy/serve/schedule/scheduler.h"
#include "tests/base/manual_clock.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {
namespace {

// Counts what each tenant is charged, by the same rule as RequestQueue.
class CountingRunner final : public StepRunner {
 public:
  SequenceKey start(const SequenceSpec& spec) override {
    const SequenceKey key = runner.start(spec);
    of_[key] = {spec.request.options.tenant, 0, 0, false, spec.request.options.max_tokens};
    ++started[spec.request.options.tenant];
    service[spec.request.options.tenant] += 1;  // for the prompt's last token, which the first step prefills
    forked += spec.same_prompt >= 0;
    return key;
  }
  PrefillResult prefill(SequenceKey key, int64_t most) override {
    const PrefillResult part = runner.prefill(key, most);
    Of& of = of_.at(key);
    of.read += part.tokens;
    if (of.read > of.counted && !of.begun) {
      service[of.tenant] += of.read - of.counted;
      of.counted = of.read;
    }
    of.begun |= part.whole;
    return part;
  }
  void preempt(SequenceKey key) override {
    of_.at(key).read = 0;
    runner.preempt(key);
  }
  void step(std::span<const SequenceKey> batch, std::span<StepResult> results) override {
    runner.step(batch, results);
    for (size_t i = 0; i < batch.size(); ++i) {
      Of& of = of_.at(batch[i]);
      const int64_t tokens = std::min(of.left, static_cast<int64_t>(results[i].emitted.size()));
      of.left -= tokens;
      service[of.tenant] += 2 * tokens;
    }
  }
  void finish(SequenceKey key) override { runner.finish(key); }
  StageSeconds stage_seconds() const override { return {}; }

  FakeRunner runner;
  std::map<uint64_t, int64_t> service;
  std::map<uint64_t, size_t> started;
  int forked = 0;

 private:
  struct Of {
    uint64_t tenant;
    int64_t read, counted;
    bool begun = false;
    int64_t left = 0;  // tokens left of the answer; further tokens of a step are not counted
  };
  std::map<SequenceKey, Of> of_;
};

struct FairnessBench {
  explicit FairnessBench(size_t max_batch) {
    SchedulerOptions options;
    options.max_batch = max_batch;
    options.prompt_budget_tokens = 32;
    const SchedulerParts parts{
        .runner = runner, .queue = queue, .tokenizer = byte_tokenizer(), .metrics = metrics, .clock = clock};
    scheduler = std::make_unique<Scheduler>(options, parts);
  }
  CountingRunner runner;
  RequestQueue queue{1024};
  Metrics metrics;
  specdec::testing::ManualClock clock;
  std::unique_ptr<Scheduler> scheduler;
};

std::shared_ptr<GenerationRequest> asked(const std::string& tenant, const std::vector<std::string>& prompts, int64_t n,
                                         int64_t max_tokens) {
  auto r = std::make_shared<GenerationRequest>();
  r->id = "req-" + tenant;
  r->tenant = tenant;
  for (const std::string& prompt : prompts) r->prompts.push_back(byte_tokenizer().encode(prompt, true));
  r->n = n;
  r->options.max_tokens = max_tokens;
  r->seed = 1;
  r->channel = std::make_shared<Channel>(1 << 20);
  return r;
}

// Tenant "flood" asks for many answers, in one request or in many. After the first turn() of the scheduler, tenant
// "other" sends one request. Returns the number of further calls of turn() until the request of "other" is answered.
int turns_of_the_other(bool one_request) {
  FairnessBench b(4);
  std::vector<std::string> prompts;
  for (int i = 0; i < 64; ++i) prompts.push_back("a prompt of the flood, number " + std::to_string(i));
  if (one_request) {
    b.queue.push(asked("flood", prompts, 2, 12));
  } else {
    for (const std::string& prompt : prompts)
      for (int n = 0; n < 2; ++n) b.queue.push(asked("flood", {prompt}, 1, 12));
  }
  b.scheduler->turn();
  const auto other = asked("other", {"one"}, 1, 4);
  b.queue.push(other);
  for (int turns = 1; turns < 10000; ++turns) {
    EXPECT_TRUE(b.scheduler->turn());
    for (const ChoiceEvent& event : other->channel->take())
      if (event.result) return turns;
  }
  ADD_FAILURE() << "never answered";
  return 0;
}

TEST(Fairness, ManyAnswersOfOneRequestDelayOthersNoMoreThanManyRequests) {
  const int singles = turns_of_the_other(false), together = turns_of_the_other(true);
  EXPECT_LE(together, 2 * singles);
  EXPECT_LE(singles, 40) << "and that is soon";
}

// One request fills the batch with long answers. The answer of another tenant must still get a place (seat) in the
// batch soon, and the answer that lost its place must be complete in the end.
TEST(Fairness, ATenantWithoutASeatSoonGetsOne) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i * i % 26);
  for (const int others : {1, 3, 5}) {
    FairnessBench b(4);
    const auto long_one = asked("long", {"say:" + text}, 4, 300);
    b.queue.push(long_one);
    for (int turn = 0; turn < 20; ++turn, b.clock.now += 0.1) ASSERT_TRUE(b.scheduler->turn());
    std::vector<std::shared_ptr<GenerationRequest>> sent;
    for (int i = 0; i < others; ++i) {
      sent.push_back(asked("other" + std::to_string(i), {"say:yes"}, 1, 10));
      b.queue.push(sent.back());
    }
    size_t answered = 0;
    int turns = 0;
    for (; answered < sent.size() && turns < 100; ++turns, b.clock.now += 0.1) {
      ASSERT_TRUE(b.scheduler->turn());
      for (const auto& request : sent)
        for (const ChoiceEvent& event : request->channel->take()) answered += event.result.has_value();
    }
    EXPECT_LE(turns, 25) << others << " other tenants";
    for (int turn = 0; turn < 2000 && b.scheduler->turn(); ++turn) b.clock.now += 0.1;
    std::map<size_t, std::string> texts;
    for (const ChoiceEvent& event : long_one->channel->take()) texts[event.choice] += event.text;
    ASSERT_EQ(texts.size(), 4u);
    for (const auto& [choice, got] : texts) EXPECT_EQ(got, text) << "choice " << choice;
    EXPECT_GT(b.runner.runner.preempted(), 0u);
  }
  // A single tenant's further answers wait while its first answers run, and a tenant never loses its only place in the
  // batch.
  FairnessBench alone(1);
  alone.queue.push(asked("one", {"say:" + text}, 2, 1000));
  for (int turn = 0; turn < 8; ++turn, alone.clock.now += 1) alone.scheduler->turn();
  alone.queue.push(asked("other", {"say:yes"}, 1, 10));
  for (int turn = 0; turn < 8; ++turn, alone.clock.now += 1) alone.scheduler->turn();
  EXPECT_EQ(alone.runner.runner.preempted(), 0u);
}

// Two tenants always have requests waiting. Tenant "many" asks for many answers per request, its answers share prompts,
// and in every second run the caches are sometimes full. The charges of the two tenants never differ by more than the
// bound in docs/serve.md.
TEST(Fairness, ServiceStaysWithinTheBoundWhateverRequestsAreMadeOf) {
  constexpr int64_t kBatch = 4, kLongestPrompt = 60, kLongestAnswer = 24;
  constexpr int64_t kBound = 2 * std::max(kLongestPrompt + 1, 2 * kBatch * kLongestAnswer);
  int forked = 0;
  size_t preempted = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    PhiloxStream random(seed, 9);
    FairnessBench b(kBatch);
    if (seed % 2) b.runner.runner.limit_room(95);
    std::vector<std::shared_ptr<GenerationRequest>> sent;
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random.below(static_cast<uint64_t>(n))); };
    std::map<std::string, size_t> pushed;
    const auto waiting = [&](const std::string& tenant) {
      return pushed[tenant] - b.runner.started[std::hash<std::string>{}(tenant)];
    };
    const auto push = [&](const std::string& tenant, const std::vector<std::string>& prompts, int64_t n,
                          int64_t max_tokens) {
      b.queue.push(sent.emplace_back(asked(tenant, prompts, n, max_tokens)));
      pushed[tenant] += sent.back()->choices();
    };
    const auto refill = [&] {  // keeps both tenants waiting; a turn starts at most four answers
      while (waiting("many") <= kBatch) {
        std::vector<std::string> prompts;
        for (int64_t i = 1 + below(8); i > 0; --i)
          prompts.push_back(std::string(static_cast<size_t>(1 + below(kLongestPrompt)), 'p'));
        push("many", prompts, 1 + below(8), 1 + below(kLongestAnswer));
      }
      while (waiting("single") <= kBatch) push("single", {"s"}, 1, 1 + below(5));
    };
    refill();
    for (int turn = 0; turn < 1500; ++turn) {
      refill();
      ASSERT_TRUE(b.scheduler->turn());
      const int64_t many = b.runner.service[std::hash<std::string>{}("many")],
                    single = b.runner.service[std::hash<std::string>{}("single")];
      ASSERT_LE(std::abs(many - single), kBound) << "seed " << seed << ", turn " << turn;
    }
    EXPECT_GT(b.runner.service[std::hash<std::string>{}("single")], 2000);
    forked += b.runner.forked;
    preempted += b.runner.runner.preempted();
  }
  EXPECT_GT(forked, 100) << "prompts were shared";
  EXPECT_GT(preempted, 50u) << "caches were full";
}

}  // namespace
}  // namespace specdec::deploy
