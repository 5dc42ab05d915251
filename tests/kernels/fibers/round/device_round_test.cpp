// Compares steps that run as rounds on the device, with the kernels on fibers, with the same steps on the host. In
// random schedules requests come, end, are preempted and change their draft. Both must give the same tokens, with
// chains, chains that stop early, and trees. 2,000 schedules have decoders as drafts, and 120 have EAGLE-3 heads.
#include "engine/decode/device/device_round.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/philox.h"
#include "engine/decode/runners/draft.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/step.h"
#include "engine/forward/memory_plan.h"
#include "tests/kernels/fibers/model/toy_decoders.h"

namespace specdec::decode {
namespace {

using model::Decoder;

constexpr int32_t kVocab = 32;

// A target and its drafts.
struct Models {
  std::shared_ptr<Decoder> target;
  std::vector<DraftPtr> drafts;
};

std::shared_ptr<Decoder> close_to(const Decoder& target, double noise, at::ScalarType dtype, uint64_t seed) {
  Decoder out = target;
  out.weights.visit(out.config, [&](const std::string&, at::Tensor& tensor) {
    at::manual_seed(static_cast<int64_t>(seed++));
    if (tensor.dim() == 2) tensor = tensor + noise * tensor.std() * at::randn(tensor.sizes());
  });
  return on_fibers(out, dtype);
}

Decoder narrow_target(int64_t layers) {
  Json config = model::toy_config("llama", layers);
  config["num_attention_heads"] = 1, config["hidden_size"] = 16, config["intermediate_size"] = 16;
  config["vocab_size"] = kVocab;
  return model::toy_decoder(config, 3);
}

const Models& decoders() {
  static const Models all = [] {
    const Decoder target = narrow_target(1);
    Models out{on_fibers(target, at::kBFloat16), {}};
    out.drafts.push_back(make_draft(close_to(target, 0.2, at::kBFloat16, 10)));
    out.drafts.push_back(make_draft(close_to(target, 0.6, at::kChar, 20)));
    const auto reduced = close_to(target, 0.3, at::kHalf, 30);
    for (int32_t id = 0; id < kVocab; ++id)
      if (id % 5 != 0) reduced->config.draft_vocab.push_back(id);
    reduce_head(*reduced);
    out.drafts.push_back(make_draft(reduced));
    return out;
  }();
  return all;
}

// Returns a target with three drafts: two EAGLE-3 heads of different kinds, and a decoder.
const Models& heads() {
  static const Models all = [] {
    const Decoder target = narrow_target(4);
    Models out{on_fibers(target, at::kBFloat16), {}};
    out.drafts.push_back(make_draft(model::head_on_fibers(target, {}, 5, at::kBFloat16)));
    std::vector<int32_t> kept;
    for (int32_t id = 0; id < kVocab; ++id)
      if (id % 5 != 1) kept.push_back(id);
    const auto reduced = model::head_on_fibers(target, kept, 6, at::kBFloat16);
    reduced->config.norm_before_residual = reduced->config.norm_output = true;
    reduced->config.taps = {0, 2, 4};
    out.drafts.push_back(make_draft(reduced));
    out.drafts.push_back(make_draft(close_to(target, 0.1, at::kBFloat16, 10)));
    return out;
  }();
  return all;
}

// Counts the rounds that ran on the device, and the nodes of their trees that were not drafted.
class CountedRounds final : public RoundRunner {
 public:
  explicit CountedRounds(std::unique_ptr<RoundRunner> runner) : runner_(std::move(runner)) {}
  bool takes(std::span<const RoundSlot> slots) override { return runner_->takes(slots); }
  bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) override {
    const bool ran = runner_->run(slots, outcomes, seconds);
    if (ran) ++count;
    for (size_t i = 0; ran && i < slots.size(); ++i)
      if (!slots[i].tree.empty()) absent += std::ranges::count(outcomes[i].drafted, kNotDrafted);
    return ran;
  }
  int64_t count = 0, absent = 0;

 private:
  std::unique_ptr<RoundRunner> runner_;
};

// Models, caches and answers of one side of the comparison: a World with rounds on the device, or one on the host.
class World {
 public:
  World(const Models& models, int64_t cache_tokens, bool rounds) {
    const auto bytes = [&](const model::DecoderConfig& config) {
      return cache_tokens == 0 ? 0 : model::cache_bytes(config, at::kBFloat16, 1, cache_tokens);
    };
    target_ = make_model_runner(models.target, bytes(models.target->config));
    for (const DraftPtr& draft : models.drafts)
      drafts_.push_back(make_draft_runner(draft, *target_, bytes(draft->config())));
    stepper_ = std::make_unique<Stepper>(*target_, drafts_[0].get());
    if (!rounds) return;
    rounds_ = std::make_unique<CountedRounds>(make_device_round(*target_));
    stepper_->use_rounds(rounds_.get());
  }

  ~World() { answers.clear(); }  // answers use the members that are destroyed first

  struct Answer {
    std::unique_ptr<Sequence> sequence;
    bool open = false;
  };
  std::vector<Answer> answers;

  void add(const Request& request, Drafting drafting, size_t draft, const Sequence* same_prompt = nullptr) {
    drafting.draft = drafts_[draft].get();
    answers.push_back({std::make_unique<Sequence>(*stepper_, request, drafting)});
    open(answers.back(), same_prompt);
  }
  // Opens a sequence and prefills its prompt. If the cache is full, the sequence is closed and waits.
  void open(Answer& answer, const Sequence* same_prompt = nullptr) {
    try {
      stepper_->open(*answer.sequence, same_prompt);
      while (stepper_->pending_prefill(*answer.sequence) > 0) stepper_->prefill(*answer.sequence, 50);
      answer.open = true;
    } catch (const CacheFull&) {
      close(answer);
    }
  }
  void close(Answer& answer) {
    stepper_->close(*answer.sequence);
    answer.open = false;
  }
  // Steps all open answers together. If the caches are full, preempts the last answer and tries again.
  void step() {
    for (;;) {
      std::vector<Sequence*> batch;
      for (Answer& answer : answers)
        if (answer.open && answer.sequence->remaining() > 0) batch.push_back(answer.sequence.get());
      if (batch.empty()) return;
      try {
        stepper_->step(batch);
        return;
      } catch (const CacheFull&) {
        const auto last = std::find_if(answers.rbegin(), answers.rend(),
                                       [](const Answer& a) { return a.open && a.sequence->remaining() > 0; });
        close(*last);
        if (batch.size() == 1) return;
      }
    }
  }
  int64_t rounds() const { return rounds_->count; }
  int64_t held_bytes(size_t draft) const { return drafts_[draft]->cache_counts().held_bytes; }
  int64_t absent() const { return rounds_->absent; }

 private:
  std::unique_ptr<CausalModel> target_;
  std::vector<std::unique_ptr<CausalModel>> drafts_;
  std::unique_ptr<CountedRounds> rounds_;
  std::unique_ptr<Stepper> stepper_;
};

struct Plan {
  Request request;
  Drafting drafting;
  size_t draft;
};

Plan draw_plan(PhiloxStream& random) {
  Plan plan;
  const auto length = static_cast<int64_t>(random.below(20) == 0 ? 60 + random.below(10) : 2 + random.below(12));
  for (int64_t i = 0; i < length; ++i)  // few token ids, so that the text repeats itself
    plan.request.prompt.push_back(static_cast<int32_t>(random.below(6) * 5));
  plan.request.seed = random.below(1000);
  RequestOptions& options = plan.request.options;
  options.max_tokens = static_cast<int64_t>(2 + random.below(9));
  const double temperatures[] = {0, 0, 0.5, 1, 1.5};
  options.sampling.temperature = temperatures[random.below(5)];
  if (random.below(3) == 0) options.sampling.top_k = static_cast<int64_t>(1 + random.below(20));
  if (random.below(3) == 0) options.sampling.top_p = 0.6 + 0.3 * random.uniform();
  if (random.below(4) == 0) options.sampling.min_p = 0.05;
  if (random.below(20) == 0) options.logprobs = 1;  // a step with logprobs cannot be a round
  const VerifyRule rules[] = {VerifyRule::kToken, VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget};
  plan.drafting.verify = rules[random.below(4)];
  if (random.below(8) != 0) {
    ControllerOptions& model = plan.drafting.model.emplace();
    const std::vector<int> trees[] = {{2, 2, 1}, {1, 3, 2}, {4, 1, 1, 1}, {3, 2}};
    const uint64_t kind = random.below(8);
    if (kind < 3) {
      model.tree = trees[random.below(4)];
      model.fixed_k = static_cast<int>(1 + random.below(model.tree.size()));
    } else if (kind == 3) {  // a chain that stops early
      model.max_k = 5;
      model.confidence_floor = 0.1 + 0.3 * random.uniform();
    } else {
      model.fixed_k = static_cast<int>(random.below(5));
    }
  }
  if (random.below(4) == 0) {
    plan.drafting.text.emplace();
    plan.drafting.text->fixed_k = 3;
  }
  plan.draft = random.below(3);
  return plan;
}

// Returns a text with everything about an answer that must be equal on host and device.
std::string state_of(const World::Answer& answer) {
  const Sequence& s = *answer.sequence;
  std::string out = answer.open ? "open" : "closed";
  for (const int32_t token : s.answer()) out += " " + std::to_string(token);
  const StepOutcome& o = s.outcome();
  out += " | drafted " + std::to_string(o.drafted) + " of " + std::to_string(o.decision.k) + ", from the text " +
         std::to_string(o.suffix_drafted) + ", kept " + std::to_string(o.accepted) + " + " +
         std::to_string(o.suffix_accepted) + ", reached " + std::to_string(o.overlaps.size()) +
         (o.decision.stopped_early ? ", stopped early" : "");
  return out;
}

struct Totals {
  int64_t steps = 0, rounds = 0, accepted = 0, drafted = 0, stopped = 0, trees = 0, absent = 0;
};

void run_schedule(const Models& models, uint64_t number, Totals& totals) {
  PhiloxStream random(77, number);
  const int64_t tokens = random.below(4) == 0 ? 64 * static_cast<int64_t>(3 + random.below(3)) : 0;
  World host(models, tokens, false), device(models, tokens, true);
  World* const worlds[] = {&host, &device};
  for (int event = 0; event < 7; ++event) {
    const uint64_t what = random.below(10), which = random.below(8);
    if (event == 0 || what < 3) {
      const Plan plan = draw_plan(random);
      for (World* w : worlds) w->add(plan.request, plan.drafting, plan.draft);
    } else if (what == 3 && which < host.answers.size()) {  // another answer to the same prompt
      Plan plan = draw_plan(random);
      plan.request.prompt = host.answers[which].sequence->request().prompt;
      for (World* w : worlds)
        w->add(plan.request, plan.drafting, plan.draft,
               w->answers[which].open ? w->answers[which].sequence.get() : nullptr);
    } else if (what == 4 && which < host.answers.size()) {  // the client disconnects
      for (World* w : worlds) w->answers.erase(w->answers.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (what == 5 && which < host.answers.size()) {  // an answer is preempted, or continues
      for (World* w : worlds) {
        World::Answer& answer = w->answers[which];
        answer.open ? w->close(answer) : w->open(answer);
      }
    }
    for (World* w : worlds) w->step();
    // On the device, a node that was not drafted still takes a cache slot. On the host it does not, so later nodes have
    // other slots, and attention adds up in another order.
    const double error = device.absent() > 0 ? 0.1 : 1e-6;
    for (size_t i = 0; i < host.answers.size(); ++i) {
      const World::Answer &a = host.answers[i], &b = device.answers[i];
      ASSERT_EQ(state_of(b), state_of(a)) << "schedule " << number << ", event " << event << ", answer " << i;
      for (size_t at = 0; at < a.sequence->outcome().overlaps.size(); ++at)
        ASSERT_NEAR(b.sequence->outcome().overlaps[at], a.sequence->outcome().overlaps[at], error);
      totals.accepted += a.sequence->outcome().accepted;
      totals.drafted += a.sequence->outcome().drafted;
      totals.stopped += a.sequence->outcome().decision.stopped_early ? 1 : 0;
      const KController* const controller = a.sequence->controller();
      totals.trees += controller && !controller->tree().empty() && a.sequence->outcome().accepted > 1 ? 1 : 0;
    }
    ++totals.steps;
  }
  totals.rounds += device.rounds();
  totals.absent += device.absent();
}

// Runs schedules 0 to `schedules` - 1. SPECDEC_SCHEDULES overrides their number.
Totals run_schedules(const Models& models, uint64_t schedules) {
  if (const char* const only = std::getenv("SPECDEC_SCHEDULES")) schedules = std::strtoull(only, nullptr, 10);
  Totals totals;
  for (uint64_t number = 0; number < schedules && !::testing::Test::HasFatalFailure(); ++number)
    run_schedule(models, number, totals);
  ::testing::Test::RecordProperty("rounds", std::to_string(totals.rounds));
  EXPECT_GT(totals.rounds * 2, totals.steps) << "most steps must be rounds";
  return totals;
}

TEST(DeviceRound, GivesTheTokensOfTheHostOverSchedules) {
  const Totals totals = run_schedules(decoders(), 2000);
  EXPECT_GT(totals.accepted * 5, totals.drafted) << "drafts must be accepted now and then";
  EXPECT_LT(totals.accepted * 5, totals.drafted * 4) << "and rejected";
  EXPECT_GT(totals.stopped, totals.steps / 50);
  EXPECT_GT(totals.trees, totals.steps / 50);
  EXPECT_GT(totals.absent, totals.steps / 100);
}

// While K is 0, an EAGLE-3 head must still read the text now and then, so that the target need not keep hidden states
// for it without end.
TEST(DeviceRound, HeadsReadAlongWhileTheyDraftNothing) {
  World host(heads(), 0, false), device(heads(), 0, true);
  Plan plan;
  plan.request = {{5, 10, 15}, 3, {.max_tokens = 90, .sampling = {.temperature = 0}}};
  plan.drafting.model.emplace().fixed_k = 0;
  for (World* w : {&host, &device}) w->add(plan.request, plan.drafting, 0);
  for (int step = 0; step < 80; ++step) host.step(), device.step();
  EXPECT_EQ(state_of(device.answers[0]), state_of(host.answers[0]));
  EXPECT_EQ(device.rounds(), 80);
  EXPECT_TRUE(device.answers[0].sequence->outcome().in_round);
  EXPECT_FALSE(host.answers[0].sequence->outcome().in_round);
  EXPECT_GT(host.held_bytes(0), 0);
  EXPECT_EQ(device.held_bytes(0), host.held_bytes(0));
}

// With few sequences, the controller's cost rule stops chains, and the draft passes after a stop skip their products.
TEST(DeviceRound, ChainsStopWhereAPassCostsMoreThanItGains) {
  int64_t stopped = 0;
  fibers::graph_counts() = {};
  for (uint64_t number = 0; number < 25; ++number) {
    PhiloxStream random(79, number);
    World host(decoders(), 0, false), device(decoders(), 0, true);
    for (uint64_t i = 0; i < 1 + number % 3; ++i) {
      Plan plan = draw_plan(random);
      plan.request.options.logprobs = -1;
      plan.drafting.text.reset();
      plan.drafting.model.emplace().max_k = 5;
      for (World* w : {&host, &device}) w->add(plan.request, plan.drafting, 0);
    }
    for (int step = 0; step < 5; ++step) {
      host.step(), device.step();
      for (size_t i = 0; i < host.answers.size(); ++i) {
        ASSERT_EQ(state_of(device.answers[i]), state_of(host.answers[i])) << "schedule " << number << ", step " << step;
        stopped += device.answers[i].sequence->outcome().decision.stopped_early ? 1 : 0;
      }
    }
    EXPECT_GT(device.rounds(), 0);
  }
  EXPECT_GT(stopped, 10);
  EXPECT_GT(fibers::graph_counts().products_at_rest, 100);
}

TEST(DeviceRound, GivesTheTokensOfTheHostWithHeads) {
  const Totals totals = run_schedules(heads(), 120);
  EXPECT_GT(totals.accepted * 10, totals.drafted) << "drafts must be accepted now and then";
  EXPECT_LT(totals.accepted * 5, totals.drafted * 4) << "and rejected";
}

}  // namespace
}  // namespace specdec::decode
