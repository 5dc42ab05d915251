// Runs 10,000 random schedules through scheduler, runner and step. Requests arrive, are cancelled and are preempted,
// and drafts are swapped in the middle of a request. Every text must equal the text of the same request running alone.
// - Greedy and seeded (coupled) text does not depend on the draft, K, tree, verification rule or other sequences, so
//   it is compared with plain decoding.
// - Text without a seed also depends on the tokens drafted in each step. So it is compared only in "steady"
//   schedules, with a fixed K, one draft that always drafts K levels, and caches that are never full.
#include <gtest/gtest.h>

#include <bit>
#include <future>
#include <map>
#include <optional>

#include "base/philox.h"
#include "deploy/serve/engine/stepper_runner.h"
#include "deploy/serve/schedule/scheduler.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/rules.h"
#include "tests/serve/engine/toy_server.h"

namespace specdec::deploy {
namespace {

using decode::Extension;
using decode::toy::Model;
using decode::toy::Tokens;

constexpr int kSchedules = 10000, kTexts = 60, kShortest = 32, kLongest = 40, kLongestPrompt = 12;
// Cache capacity in tokens in which every text fits if it runs alone.
constexpr int64_t kLeastRoom = kLongestPrompt + kLongest + 1;

// Makes logits that depend on the whole context. If they depended only on the last two letters, two different texts
// would soon continue alike, and the test could miss the difference.
Model::Logits whole_context(uint64_t noise) {
  return [noise](std::span<const int32_t> context, std::span<float> logits) {
    static const Model::Logits shared = decode::toy::random_logits(31, 1.5);
    shared(context, logits);
    if (noise > 0) {
      std::array<float, kToyVocab> own;
      decode::toy::random_logits(noise, 1.0)(context, own);
      for (size_t i = 0; i < own.size(); ++i) logits[i] += own[i];
    }
    logits[kToyBos] = -std::numeric_limits<float>::infinity();
  };
}

enum class Kind { kGreedy, kSeeded, kFree };

Kind kind_of(int text) { return static_cast<Kind>(text % 3); }

// Makes request number `text` (0 to kTexts − 1). Its prompt, options and logits processors depend only on this number.
std::shared_ptr<GenerationRequest> make_request(int text) {
  PhiloxStream random(7, static_cast<uint64_t>(text));
  auto r = std::make_shared<GenerationRequest>();
  r->id = "text-" + std::to_string(text);
  for (uint64_t prompts = text % 7 == 0 ? 2 : 1; prompts > 0; --prompts) {
    Tokens& prompt = r->prompts.emplace_back(1, kToyBos);
    for (uint64_t n = random.below(kLongestPrompt); n > 0; --n) prompt.push_back(static_cast<int32_t>(random.below(4)));
    r->texts.push_back("prompt");
  }
  r->n = text % 5 == 0 ? 2 : 1;
  r->options.max_tokens = kShortest + static_cast<int64_t>(random.below(kLongest - kShortest + 1));
  r->seed = static_cast<uint64_t>(text);
  r->options.seeded = kind_of(text) == Kind::kSeeded;
  if (kind_of(text) == Kind::kGreedy) r->options.sampling.temperature = 0;
  if (text % 4 == 1) r->options.sampling.top_p = 0.9;
  decode::LogitsProcessors rules;
  if (text % 4 == 2) rules.frequency_penalty = 0.4;
  if (text % 4 == 3) rules.bad_words = {{0, 1}, {2, 2}};
  if (text % 8 == 4) rules.constraint = [] { return std::make_unique<decode::toy::Automaton>(); };
  if (rules.any()) r->options.rules = std::make_shared<decode::LogitsProcessors>(rules);
  if (text % 6 < 2) r->options.logprobs = text % 2;
  r->echo = text % 12 < 3;
  r->channel = std::make_shared<Channel>(1 << 20);
  return r;
}

// What a client receives of one answer.
struct Answer {
  std::string text;
  Tokens ids;
  std::vector<uint32_t> logprobs;  // bit patterns of floats
  std::optional<FinishReason> reason;
  bool operator==(const Answer&) const = default;
};

void collect(const GenerationRequest& request, std::vector<Answer>& answers) {
  answers.resize(request.choices());
  for (const ChoiceEvent& e : request.channel->take()) {
    Answer& a = answers[e.choice];
    EXPECT_FALSE(a.reason) << "an event after the last";
    a.text += e.text;
    a.ids.insert(a.ids.end(), e.token_ids.begin(), e.token_ids.end());
    for (const auto& position : e.logprobs) {
      a.logprobs.push_back(std::bit_cast<uint32_t>(position.token.logprob));
      for (const auto& top : position.top) a.logprobs.push_back(std::bit_cast<uint32_t>(top.logprob));
    }
    if (e.result) a.reason = e.result->reason;
  }
}

struct Counts {
  int64_t overlapping = 0, cancelled = 0, preempted = 0, swapped = 0, tried = 0, target_full = 0, draft_full = 0,
          compared = 0;
};

// Forwards every call to `inner`. Counts preemptions of sequences that have emitted tokens, and checks how many prompt
// tokens are prefilled between two steps.
class Watched final : public StepRunner {
 public:
  Watched(StepRunner& inner, int64_t budget, Counts& counts) : inner_(inner), budget_(budget), counts_(counts) {}
  SequenceKey start(const SequenceSpec& spec) override { return inner_.start(spec); }
  PrefillResult prefill(SequenceKey key, int64_t most) override {
    PrefillResult part = inner_.prefill(key, most);
    EXPECT_LE(read_ += part.tokens, budget_) << "what runs waits for longer than for one share of prompts";
    return part;
  }
  void preempt(SequenceKey key) override {
    counts_.preempted += emitted_.contains(key);
    inner_.preempt(key);
  }
  void step(std::span<const SequenceKey> batch, std::span<StepResult> results) override {
    in_a_step_ = true;
    inner_.step(batch, results);
    in_a_step_ = false;
    for (size_t i = 0; i < batch.size(); ++i)
      if (!results[i].emitted.empty()) emitted_.insert(batch[i]);
  }
  void finish(SequenceKey key) override {
    emitted_.erase(key);
    inner_.finish(key);
  }
  StageSeconds stage_seconds() const override { return inner_.stage_seconds(); }
  void next_turn() { read_ = 0; }
  bool in_a_step() const { return in_a_step_; }
  bool in_the_middle() const { return !emitted_.empty(); }

 private:
  StepRunner& inner_;
  const int64_t budget_;
  Counts& counts_;
  std::set<SequenceKey> emitted_;
  int64_t read_ = 0;
  bool in_a_step_ = false;
};

struct Shape {
  int k = 0;
  VerifyRule rule = VerifyRule::kToken;
  std::vector<int> tree = {};
  bool suffix = false;
  std::string name() const {
    std::string name = std::to_string(k) + " " + to_string(rule);
    for (const int width : tree) name += " " + std::to_string(width);
    return name;
  }
};

struct Engine {
  Engine(const Shape& shape, size_t max_batch, int64_t budget, Counts& counts)
      : runner(target, NamedDraft{"first", "first", draft}, {{shape.k, 4, shape.rule, shape.tree, shape.suffix}},
               clock),
        watched(runner, budget, counts),
        queue(64) {
    static Metrics metrics;
    SchedulerOptions options;
    options.max_batch = max_batch;
    options.prompt_budget_tokens = budget;
    const SchedulerParts parts{
        .runner = watched, .queue = queue, .tokenizer = toy_tokenizer(), .metrics = metrics, .clock = clock};
    scheduler.emplace(options, parts);
    runner.drafts().set_loader([this](const std::string& name) {
      auto model = std::make_shared<Model>(kToyVocab, whole_context(40 + name.size()));
      model->before_pass = draft->before_pass;
      return NamedDraft{name, name, std::move(model)};
    });
  }
  bool turn() {
    watched.next_turn();
    return scheduler->turn();
  }
  void order(DraftOrder::Action action, const std::string& draft_name, double score) {
    std::promise<void> done;
    runner.drafts().order({action, draft_name, score, 0.0}, [&done](const std::optional<Error>& e) {
      EXPECT_FALSE(e) << e->what();
      done.set_value();
    });
    done.get_future().wait();
  }

  specdec::testing::ManualClock clock{0, 1e-4};
  Model target{kToyVocab, whole_context(0)};
  std::shared_ptr<Model> draft = std::make_shared<Model>(kToyVocab, whole_context(32));
  StepperRunner runner;
  Watched watched;
  RequestQueue queue;
  std::optional<Scheduler> scheduler;
};

std::vector<Answer> alone(int text, const Shape& shape) {
  Counts ignored;
  Engine engine(shape, 1, 512, ignored);
  const auto request = make_request(text);
  engine.queue.push(request);
  std::vector<Answer> answers;
  while (engine.turn()) {
  }
  collect(*request, answers);
  return answers;
}

class Schedule {
 public:
  Schedule(uint64_t number, Counts& counts)
      : random_(number, 1),
        counts_(counts),
        steady_(number % 4 == 0),
        shape_(make_shape()),
        engine_(shape_, 2 + random_.below(5), 1 + static_cast<int64_t>(random_.below(24)), counts) {
    crowd();
    const size_t requests = 4 + random_.below(3);
    for (size_t i = 0; i < requests; ++i) {
      Sent& s = sent_.emplace_back();
      s.text = static_cast<int>(random_.below(kTexts));
      s.request = make_request(s.text);
      s.arrives = i == 0 ? 0 : static_cast<int>(random_.below(4));
      s.cancelled_at = random_.below(6) == 0 ? 5 + static_cast<int>(random_.below(12)) : -1;
    }
  }

  void run(std::map<std::string, std::vector<Answer>>& known) {
    bool working = true;
    for (int turn = 0; working || turn < 4; ++turn) {
      ASSERT_LT(turn, 4000) << "a livelock";
      for (Sent& s : sent_) arrive_or_cancel(s, turn);
      if (turn > 4 && random_.below(16) == 0) swap();
      working = engine_.turn();
      counts_.overlapping += turn == 4 && outstanding() >= 4;
    }
    for (Sent& s : sent_) compare(s, known);
    EXPECT_EQ(engine_.target.open_sequences() + engine_.draft->open_sequences(), 0u);
  }

 private:
  struct Sent {
    int text = 0, arrives = 0, cancelled_at = -1;
    std::shared_ptr<GenerationRequest> request;
    std::vector<Answer> answers;
    bool ended() const {
      return !answers.empty() &&
             std::all_of(answers.begin(), answers.end(), [](const Answer& a) { return a.reason.has_value(); });
    }
  };

  Shape make_shape() {
    static const std::vector<int> kTrees[] = {{}, {}, {2, 2}, {3, 1, 1}, {1, 2}};
    Shape s;
    s.rule = static_cast<VerifyRule>(random_.below(4));
    s.tree = kTrees[random_.below(5)];
    s.k = !s.tree.empty() ? static_cast<int>(s.tree.size()) : static_cast<int>(random_.below(5));
    if (!steady_ && random_.below(3) == 0) s.k = -1;
    s.suffix = !steady_ && random_.below(3) == 0;
    return s;
  }

  // Makes passes throw CacheFull at random, and always if the caches would hold more than `room` tokens. Every text
  // alone fits, but perhaps not together with all tokens that are drafted for it.
  void crowd() {
    const int64_t room = steady_ ? 1 << 20 : kLeastRoom + static_cast<int64_t>(random_.below(120));
    engine_.target.before_pass = [this, room](std::span<const Extension> extensions) {
      int64_t tokens = 0;
      for (const Extension& e : extensions) tokens += static_cast<int64_t>(e.tokens.size());
      // When the cache is full, a step of a single sequence drafts fewer tokens, which would change a text without a
      // seed.
      const bool step_of_one = engine_.watched.in_a_step() && extensions.size() == 1;
      const bool may_fail = step_of_one ? !steady_ && tokens > 1 : engine_.target.open_sequences() > 1;
      if (engine_.target.held() + tokens <= room && !(may_fail && random_.below(24) == 0)) return;
      ++counts_.target_full;
      throw decode::CacheFull("full");
    };
    engine_.target.before_fork = [this](int64_t) {
      if (random_.below(4) == 0) throw decode::CacheFull("full");
    };
    if (steady_) return;
    engine_.draft->before_pass = [this](std::span<const Extension>) {
      if (random_.below(40) > 0) return;
      ++counts_.draft_full;
      throw decode::CacheFull("full");
    };
  }

  void arrive_or_cancel(Sent& s, int turn) {
    if (turn == s.arrives) engine_.queue.push(s.request);
    if (turn != s.cancelled_at) return;
    collect(*s.request, s.answers);
    if (!s.ended()) s.request->channel->cancel();
  }

  // In steady schedules a new draft is put on trial and dropped, which does not change the drafted tokens. In other
  // schedules it may also be promoted.
  void swap() {
    if (shape_.k == 0) return;
    engine_.order(DraftOrder::Action::kLoad, std::string(1 + random_.below(5), 'd'), 0.5);
    const bool promote = !steady_ && random_.below(2) == 0;
    (promote ? counts_.swapped : counts_.tried) += engine_.watched.in_the_middle();
    for (uint64_t turns = random_.below(4); turns > 0; --turns) engine_.turn();
    engine_.order(promote ? DraftOrder::Action::kPromote : DraftOrder::Action::kDrop, "", 0);
  }

  int outstanding() {
    int count = 0;
    for (Sent& s : sent_) {
      collect(*s.request, s.answers);
      count += !s.ended();
    }
    return count;
  }

  void compare(Sent& s, std::map<std::string, std::vector<Answer>>& known) {
    collect(*s.request, s.answers);
    const bool is_free = kind_of(s.text) == Kind::kFree, same = !is_free || steady_;
    const Shape shape = is_free ? shape_ : Shape{};
    std::vector<Answer>* expected = nullptr;
    if (same) {
      const auto [at, fresh] = known.try_emplace(std::to_string(s.text) + " " + (is_free ? shape.name() : ""));
      if (fresh) at->second = alone(s.text, shape);
      expected = &at->second;
    }
    bool in_the_middle = false;
    for (size_t c = 0; c < s.answers.size(); ++c) {
      const Answer& found = s.answers[c];
      const std::string what =
          s.request->id + ", answer " + std::to_string(c) + ", " + shape_.name() + (steady_ ? ", steady" : "");
      if (found.reason == FinishReason::kLength) {
        EXPECT_EQ(static_cast<int64_t>(found.ids.size()), s.request->options.max_tokens) << what;
        counts_.compared += same;
        EXPECT_TRUE(!same || found == expected->at(c))
            << what << ": " << found.text << " is not " << expected->at(c).text;
      } else {
        EXPECT_TRUE(s.request->channel->cancelled()) << what;
        EXPECT_TRUE(!found.reason || found.reason == FinishReason::kCancelled)
            << what << ": " << to_string(*found.reason);
        in_the_middle |= !found.ids.empty();
        EXPECT_TRUE(!same || std::equal(found.ids.begin(), found.ids.end(), expected->at(c).ids.begin()))
            << what << ", cancelled";
      }
    }
    counts_.cancelled += in_the_middle;
  }

  PhiloxStream random_;
  Counts& counts_;
  const bool steady_;
  const Shape shape_;
  Engine engine_;
  std::vector<Sent> sent_;
};

TEST(Schedules, EveryTextIsTheOneThatItHasAlone) {
  Counts counts;
  std::map<std::string, std::vector<Answer>> known;
  for (uint64_t number = 0; number < kSchedules; ++number) {
    Schedule(number, counts).run(known);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "schedule " << number;
  }
  EXPECT_EQ(counts.overlapping, kSchedules) << "at least four requests at once, each of at least 32 tokens";
  for (const int64_t count : {counts.cancelled, counts.preempted, counts.swapped, counts.draft_full})
    EXPECT_GE(count, 1000);
  EXPECT_GT(counts.tried, 0);
  EXPECT_GT(counts.target_full, 0);
  EXPECT_GE(counts.compared, 4 * kSchedules);
}

}  // namespace
}  // namespace specdec::deploy
