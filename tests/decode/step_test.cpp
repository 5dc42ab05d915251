#include "engine/decode/step.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "engine/decode/sampling/sampler.h"
#include "tests/base/manual_clock.h"
#include "tests/decode/step_request.h"

namespace specdec::decode {
namespace {

TEST(Step, CachesHoldExactlyTheAcceptedPrefix) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, mostly_right(toy::random_logits(1)));
  Stepper stepper(target, &draft);
  for (const double temperature : {0.0, 1.0}) {
    Toy r(stepper, {1, 2, 3}, 4, 60, {.temperature = temperature});
    stepper.start(r.s);
    expect_caches(target, draft, r.s);
    bool all = false, some = false;
    while (r.s.remaining() > 0) {
      const size_t before = r.s.tokens().size();
      Sequence* const batch[] = {&r.s};
      stepper.step(batch);
      expect_caches(target, draft, r.s);
      EXPECT_EQ(r.s.tokens().size(), before + r.s.outcome().emitted.size());
      EXPECT_EQ(static_cast<int>(r.s.outcome().emitted.size()), r.s.outcome().accepted + 1);
      EXPECT_EQ(static_cast<int>(r.s.outcome().overlaps.size()),
                std::min(r.s.outcome().accepted + 1, r.s.outcome().drafted));
      (r.s.outcome().accepted == r.s.outcome().drafted ? all : some) = true;
    }
    EXPECT_TRUE(all && some) << "both ends must be met";
    EXPECT_EQ(r.s.tokens().size(), 63u);
    EXPECT_EQ(r.s.counts().emitted, 60);
    EXPECT_EQ(r.s.counts().emitted, r.s.counts().accepted + r.s.counts().steps + r.s.counts().plain_steps);
    if (temperature == 0) {
      EXPECT_EQ(r.s.counts().overlap(0), r.s.counts().conditional(0));
      EXPECT_EQ(r.s.counts().overlap(2), r.s.counts().conditional(2));
    }
    stepper.close(r.s);
    stepper.close(r.s);
    EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
  }
}

TEST(Step, GreedyIsThePlainTextForEveryKAndBatchMix) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, mostly_right(toy::random_logits(1)));
  Stepper stepper(target, &draft);
  std::vector<toy::Tokens> plain;
  for (int32_t first = 0; first < 6; ++first) {
    Toy r(stepper, {first, 7}, 0, 40);
    plain.push_back(run(stepper, r));
    EXPECT_EQ(r.s.counts().plain_steps, 40);
    EXPECT_EQ(r.s.counts().steps, 0);
  }
  for (int k = 1; k <= 8; ++k) {
    Toy r(stepper, {0, 7}, k, 40);
    EXPECT_EQ(run(stepper, r), plain[0]) << "K=" << k;
  }
  // Runs six sequences with K = 0 to 5 in one batch. They finish at different times.
  std::vector<std::unique_ptr<Toy>> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(std::make_unique<Toy>(stepper, toy::Tokens{i, 7}, i, 40));
  for (auto& r : requests) stepper.start(r->s);
  for (;;) {
    std::vector<Sequence*> batch;
    for (auto& r : requests)
      if (r->s.remaining() > 0) batch.push_back(&r->s);
    if (batch.empty()) break;
    stepper.step(batch);
    for (const Sequence* s : batch) expect_caches(target, draft, *s);
  }
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(requests[i]->s.tokens(), plain[i]) << "K=" << i;
}

TEST(Step, DraftPassesAreShared) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  Stepper stepper(target, &draft);
  Toy a(stepper, {1}, 4, 30), b(stepper, {2}, 2, 30), c(stepper, {3}, 0, 30);
  for (Toy* r : {&a, &b, &c}) stepper.start(r->s);
  const int64_t target_before = target.passes, draft_before = draft.passes;
  Sequence* const batch[] = {&a.s, &b.s, &c.s};
  stepper.step(batch);
  EXPECT_EQ(target.passes - target_before, 1);
  EXPECT_EQ(draft.passes - draft_before, 4);
  EXPECT_EQ(a.s.outcome().drafted, 4);
  EXPECT_EQ(b.s.outcome().drafted, 2);
  EXPECT_EQ(c.s.outcome().drafted, 0);
}

TEST(Step, SampledTextDependsOnSeedAndKOnlyNotOnNeighbours) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  Stepper stepper(target, &draft);
  Toy alone(stepper, {1}, 3, 30, {}, 77), again(stepper, {1}, 3, 30, {}, 77), other(stepper, {1}, 3, 30, {}, 78);
  const toy::Tokens text = run(stepper, alone);
  EXPECT_NE(run(stepper, other), text);
  Toy neighbour(stepper, {5}, 2, 30, {}, 9);
  stepper.start(again.s);
  stepper.start(neighbour.s);
  while (again.s.remaining() > 0) {
    std::vector<Sequence*> batch = {&again.s};
    if (neighbour.s.remaining() > 0) batch.insert(batch.begin(), &neighbour.s);
    stepper.step(batch);
  }
  EXPECT_EQ(again.s.tokens(), text);
}

TEST(Step, NeverBeyondRemainingOrTheModelsLengths) {
  // toy::Model throws if a cache grows beyond its max_length.
  for (const int64_t draft_max : {4, 9, 100}) {
    toy::Model target(kVocab, toy::random_logits(1), 20), draft(kVocab, toy::random_logits(1), draft_max);
    Stepper stepper(target, &draft);
    Toy r(stepper, {1, 2, 3}, 5, 100);
    run(stepper, r);
    EXPECT_EQ(r.s.tokens().size(), 20u);
    EXPECT_FALSE(r.s.draft_failed());
    EXPECT_GT(r.s.counts().steps, 0);
    Toy exact(stepper, {1}, 8, 5);
    EXPECT_EQ(run(stepper, exact).size(), 6u);
    for (const int32_t t : exact.s.outcome().emitted) EXPECT_LT(t, kVocab);
  }
}

TEST(Step, PromptsThatCannotBeServed) {
  toy::Model target(kVocab, toy::random_logits(1), 8), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  for (const toy::Tokens& prompt : {toy::Tokens{}, toy::Tokens(8, 1), toy::Tokens{1, 12}, toy::Tokens{-1}}) {
    Toy r(stepper, prompt, 2, 5);
    try {
      stepper.start(r.s);
      ADD_FAILURE() << "accepted a prompt of " << prompt.size();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData);
    }
  }
  EXPECT_EQ(target.open_sequences(), 0u);
  Toy r(stepper, {1}, 2, 3);
  run(stepper, r);
  Sequence* const batch[] = {&r.s};
  EXPECT_THROW(stepper.step(batch), Error);  // the sequence has finished
  toy::Model other(kVocab + 1, toy::random_logits(1));
  EXPECT_THROW(Stepper(target, &other), Error);
}

TEST(Step, LongPromptsGoInChunks) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  Toy r(stepper, toy::Tokens(1300, 4), 2, 10);
  size_t longest = 0;
  const auto note = [&](std::span<const Extension> e) { longest = std::max(longest, e[0].tokens.size()); };
  target.before_pass = draft.before_pass = note;
  stepper.start(r.s, 100);
  EXPECT_EQ(longest, 100u);
  longest = 0;
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  EXPECT_LE(longest, 512u);
  EXPECT_EQ(r.s.outcome().accepted, 2);
  expect_caches(target, draft, r.s);
}

TEST(Step, DraftCatchesUpAfterFullAcceptanceAndAfterPlainSteps) {
  // The draft equals the target, so every step must accept all drafted tokens. A token missing in the draft's cache
  // would lead to a rejection.
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  Toy r(stepper, {1, 2}, 3, 41);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  while (r.s.remaining() > 0) {
    if (r.s.remaining() == 21) {  // makes a few plain steps in between
      r.s.replace_controller({.fixed_k = 0});
      for (int i = 0; i < 5; ++i) stepper.step(batch);
      r.s.replace_controller({.fixed_k = 3});
    }
    stepper.step(batch);
    EXPECT_EQ(r.s.outcome().accepted, r.s.outcome().drafted);
  }
  EXPECT_EQ(r.s.counts().conditional(0), 1.0);
}

TEST(Step, AFailingDraftCostsOnlyItsOwnSequenceTheDraft) {
  const auto logits = toy::random_logits(1);
  toy::Model target(kVocab, logits);
  Stepper alone(target, nullptr);
  Toy plain_a(alone, {1}, 0, 30), plain_b(alone, {2}, 0, 30);
  const toy::Tokens text_a = run(alone, plain_a), text_b = run(alone, plain_b);
  enum class Way { kThrow, kNan };
  for (const Way way : {Way::kThrow, Way::kNan}) {
    // A draft that fails in the middle of a pass, after the caches of both sequences have grown. It either throws or
    // returns a NaN logit.
    toy::Model draft(kVocab, [&](std::span<const int32_t> context, std::span<float> l) {
      logits(context, l);
      if (context[0] != 1 || context.size() <= 6) return;
      if (way == Way::kThrow) throw std::runtime_error("the device lost it");
      l[3] = std::numeric_limits<float>::quiet_NaN();
    });
    Stepper stepper(target, &draft);
    Toy a(stepper, {1}, 4, 30), b(stepper, {2}, 4, 30);
    stepper.start(a.s);
    stepper.start(b.s);
    for (;;) {
      std::vector<Sequence*> batch;
      for (Toy* r : {&b, &a})
        if (r->s.remaining() > 0) batch.push_back(&r->s);
      if (batch.empty()) break;
      stepper.step(batch);
      for (const Sequence* s : batch) expect_caches(target, draft, *s);
    }
    EXPECT_TRUE(a.s.draft_failed());
    EXPECT_FALSE(b.s.draft_failed());
    EXPECT_EQ(a.s.tokens(), text_a);
    EXPECT_EQ(b.s.tokens(), text_b);
    EXPECT_GT(a.s.counts().plain_steps, 5);
    EXPECT_EQ(b.s.counts().accepted, b.s.counts().drafted) << "the draft is the target: its cache was left wrong";
    // At most one plain step, which emits the last token.
    EXPECT_EQ(b.s.counts().plain_steps, b.s.counts().plain_steps > 0 ? 1 : 0);
    EXPECT_EQ(draft.open_sequences(), 1u);
  }
}

TEST(Step, ADraftThatThrowsAloneInItsBatchIsDroppedToo) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper alone(target, nullptr), stepper(target, &draft);
  Toy plain(alone, {1}, 0, 30), r(stepper, {1}, 4, 30);
  draft.before_pass = [&](auto) {
    if (draft.passes > 3) throw std::runtime_error("the device lost it");
  };
  EXPECT_EQ(run(stepper, r), run(alone, plain));
  EXPECT_TRUE(r.s.draft_failed());
  EXPECT_GT(r.s.counts().accepted, 0);
  EXPECT_EQ(draft.open_sequences(), 0u);
}

TEST(Step, SequencesOfSeveralDraftsGoTogether) {
  toy::Model target(kVocab, toy::random_logits(1)), right(kVocab, toy::random_logits(1)),
      wrong(kVocab, toy::random_logits(2)), shadow(kVocab, toy::random_logits(1));
  Stepper alone(target, nullptr), stepper(target, &wrong);
  std::vector<std::unique_ptr<Toy>> requests;
  std::vector<toy::Tokens> texts;
  for (int32_t i = 0; i < 6; ++i) {
    Toy plain(alone, {i}, 0, 30);
    texts.push_back(run(alone, plain));
    Drafting drafts = drafting({.k = 4});
    (i % 2 == 0 ? drafts.draft : drafts.shadow) = i % 2 == 0 ? &right : &shadow;
    const Request request{{i}, 1, {.max_tokens = 30, .sampling = {.temperature = 0}}};
    stepper.start(requests.emplace_back(std::make_unique<Toy>(stepper, request, drafts))->s);
  }
  for (;;) {
    std::vector<Sequence*> batch;
    for (const auto& r : requests)
      if (r->s.remaining() > 0) batch.push_back(&r->s);
    if (batch.empty()) break;
    stepper.step(batch);
    for (const Sequence* s : batch) {
      const bool even = s->request().prompt[0] % 2 == 0;
      expect_caches(target, even ? right : wrong, *s);
      EXPECT_EQ(s->outcome().shadow_overlaps, std::vector<double>(even ? 0 : s->outcome().overlaps.size(), 1.0))
          << "the shadow is the target";
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    Sequence& s = requests[i]->s;
    EXPECT_EQ(s.tokens(), texts[i]);
    EXPECT_EQ(s.counts().accepted == s.counts().drafted, i % 2 == 0) << i;
    stepper.close(s);
  }
  EXPECT_EQ(target.open_sequences() + right.open_sequences() + wrong.open_sequences() + shadow.open_sequences(), 0u);
}

TEST(Step, ATargetThatThrowsLeavesEverythingAsItWas) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  Stepper stepper(target, &draft);
  Toy r(stepper, {1, 2}, 3, 20);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  const toy::Tokens tokens = r.s.tokens();
  target.before_pass = [](std::span<const Extension>) { throw std::runtime_error("out of memory"); };
  EXPECT_THROW(stepper.step(batch), std::runtime_error);
  EXPECT_EQ(r.s.tokens(), tokens);
  expect_caches(target, draft, r.s);
  target.before_pass = nullptr;
  Toy plain(stepper, {1, 2}, 0, 20);
  while (r.s.remaining() > 0) stepper.step(batch);
  EXPECT_EQ(r.s.tokens(), run(stepper, plain));
}

// A model that fails once in truncate(), which is called after the shadow draft (a second draft on trial) has scored
// the step.
class FailsWhenCut : public ForwardingModel {
 public:
  using ForwardingModel::ForwardingModel;
  void truncate(SequenceId sequence, int64_t length) override {
    if (std::exchange(fails, false)) throw std::runtime_error("the device lost it");
    ForwardingModel::truncate(sequence, length);
  }
  bool fails = false;
};

TEST(Step, AFailureAfterTheShadowScoredLeavesItsCacheRight) {
  toy::Model model(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1)),
      shadow(kVocab, toy::random_logits(1));
  FailsWhenCut target(model);
  Stepper stepper(target, &draft);
  Drafting drafts = drafting({.k = 4});
  drafts.shadow = &shadow;
  Toy r(stepper, {{1}, 1, {.max_tokens = 30, .sampling = {.temperature = 0}}}, drafts);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  for (int i = 0; i < 3; ++i) stepper.step(batch);
  target.fails = true;
  EXPECT_THROW(stepper.step(batch), std::runtime_error);
  stepper.step(batch);
  EXPECT_EQ(r.s.outcome().shadow_overlaps, std::vector<double>(r.s.outcome().overlaps.size(), 1.0));
  EXPECT_FALSE(r.s.outcome().overlaps.empty());
  EXPECT_EQ(shadow.open_sequences(), 1u);
}

TEST(Step, OneSequenceWithoutFiniteLogitsFailsAlone) {
  const auto logits = toy::random_logits(1);
  toy::Model target(kVocab, [&](std::span<const int32_t> context, std::span<float> l) {
    logits(context, l);
    if (context[0] == 1 && context.size() > 4) l[0] = std::numeric_limits<float>::quiet_NaN();
  });
  toy::Model draft(kVocab, logits);
  Stepper stepper(target, &draft);
  for (const double temperature : {0.0, 1.0}) {
    Toy bad(stepper, {1}, 2, 20, {.temperature = temperature}), good(stepper, {2}, 2, 20, {.temperature = temperature});
    stepper.start(bad.s);
    stepper.start(good.s);
    Sequence* const batch[] = {&bad.s, &good.s};
    bool threw = false;
    for (int i = 0; i < 4 && !threw; ++i) {
      const size_t before = good.s.tokens().size();
      try {
        stepper.step(batch);
      } catch (const Error&) {
        threw = true;
      }
      EXPECT_GT(good.s.tokens().size(), before);
    }
    EXPECT_TRUE(threw);
    EXPECT_TRUE(bad.s.outcome().failure);
    EXPECT_FALSE(good.s.outcome().failure);
    expect_caches(target, draft, good.s);
    expect_caches(target, draft, bad.s);
  }
}

TEST(Step, RecordsTheCostOfItsPasses) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  CostModel costs;
  const specdec::testing::ManualClock clock(0, 0.001);
  Stepper stepper(target, &draft, &costs, &clock);
  Toy r(stepper, {1}, 3, 40), plain(stepper, {1}, 0, 4);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  EXPECT_FALSE(costs.ready());
  run(stepper, plain);
  EXPECT_TRUE(costs.ready());
  // The test's clock advances by one tick per reading, so all passes cost the same.
  EXPECT_NEAR(costs.draft_cost(1), 1.0, 1e-9);
  EXPECT_EQ(costs.read_cost(1), 0);
}

// The draft's first pass prefills the prompt. Its time is recorded as prefill, even for a short prompt, and not as the
// cost of a draft pass.
TEST(Step, RecordsWhatTheDraftReadsBeforeItDrafts) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  CostModel costs;
  const specdec::testing::ManualClock clock(0, 0.001);
  Stepper stepper(target, &draft, &costs, &clock);
  Toy r(stepper, std::vector<int32_t>(40, 1), 3, 40), plain(stepper, {1}, 0, 4);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  run(stepper, plain);
  EXPECT_NEAR(costs.read_cost(1), 1.0 / 39, 1e-9);
  EXPECT_NEAR(costs.draft_cost(1), 1.0, 1e-9);
}

}  // namespace
}  // namespace specdec::decode
