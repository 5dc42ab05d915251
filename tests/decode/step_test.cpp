#include "engine/decode/step.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "base/error.h"
#include "engine/decode/sampler.h"
#include "tests/base/manual_clock.h"
#include "tests/decode/step_request.h"

namespace specdec::decode {
namespace {

TEST(Step, CachesHoldExactlyTheAcceptedPrefix) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, mostly_right(toy::random_logits(1)));
  Stepper stepper(target, &draft);
  for (const double temperature : {0.0, 1.0}) {
    Request r({1, 2, 3}, 4, 60, {.temperature = temperature});
    stepper.start(r.s);
    expect_caches(target, draft, r.s);
    bool all = false, some = false;
    while (r.s.remaining > 0) {
      const size_t before = r.s.tokens.size();
      Sequence* const batch[] = {&r.s};
      stepper.step(batch);
      expect_caches(target, draft, r.s);
      EXPECT_EQ(r.s.tokens.size(), before + r.s.emitted.size());
      EXPECT_EQ(static_cast<int>(r.s.emitted.size()), r.s.accepted + 1);
      EXPECT_EQ(static_cast<int>(r.s.overlaps.size()), std::min(r.s.accepted + 1, r.s.drafted));
      (r.s.accepted == r.s.drafted ? all : some) = true;
    }
    EXPECT_TRUE(all && some) << "both ends must be met";
    EXPECT_EQ(r.s.tokens.size(), 63u);
    EXPECT_EQ(r.s.counts.emitted, 60);
    EXPECT_EQ(r.s.counts.emitted, r.s.counts.accepted + r.s.counts.steps + r.s.counts.plain_steps);
    if (temperature == 0) {
      EXPECT_EQ(r.s.counts.overlap(0), r.s.counts.conditional(0));
      EXPECT_EQ(r.s.counts.overlap(2), r.s.counts.conditional(2));
    }
    stepper.finish(r.s);
    stepper.finish(r.s);
    EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
  }
}

TEST(Step, GreedyIsThePlainTextForEveryKAndBatchMix) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, mostly_right(toy::random_logits(1)));
  Stepper stepper(target, &draft);
  std::vector<toy::Tokens> plain;
  for (int32_t first = 0; first < 6; ++first) {
    Request r({first, 7}, 0, 40);
    plain.push_back(run(stepper, r));
    EXPECT_EQ(r.s.counts.plain_steps, 40);
    EXPECT_EQ(r.s.counts.steps, 0);
  }
  for (int k = 1; k <= 8; ++k) {
    Request r({0, 7}, k, 40);
    EXPECT_EQ(run(stepper, r), plain[0]) << "K=" << k;
  }
  // Six sequences with K = 0..5 in one batch, finishing at different times.
  std::vector<std::unique_ptr<Request>> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(std::make_unique<Request>(toy::Tokens{i, 7}, i, 40));
  for (auto& r : requests) stepper.start(r->s);
  for (;;) {
    std::vector<Sequence*> batch;
    for (auto& r : requests)
      if (r->s.remaining > 0) batch.push_back(&r->s);
    if (batch.empty()) break;
    stepper.step(batch);
    for (const Sequence* s : batch) expect_caches(target, draft, *s);
  }
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(requests[i]->s.tokens, plain[i]) << "K=" << i;
}

TEST(Step, DraftPassesAreShared) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  Stepper stepper(target, &draft);
  Request a({1}, 4, 30), b({2}, 2, 30), c({3}, 0, 30);
  for (Request* r : {&a, &b, &c}) stepper.start(r->s);
  const int64_t target_before = target.passes, draft_before = draft.passes;
  Sequence* const batch[] = {&a.s, &b.s, &c.s};
  stepper.step(batch);
  EXPECT_EQ(target.passes - target_before, 1);
  EXPECT_EQ(draft.passes - draft_before, 4);
  EXPECT_EQ(a.s.drafted, 4);
  EXPECT_EQ(b.s.drafted, 2);
  EXPECT_EQ(c.s.drafted, 0);
}

TEST(Step, SampledTextDependsOnSeedAndKOnlyNotOnNeighbours) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  Stepper stepper(target, &draft);
  Request alone({1}, 3, 30, {}, 77), again({1}, 3, 30, {}, 77), other({1}, 3, 30, {}, 78);
  const toy::Tokens text = run(stepper, alone);
  EXPECT_NE(run(stepper, other), text);
  Request neighbour({5}, 2, 30, {}, 9);
  stepper.start(again.s);
  stepper.start(neighbour.s);
  while (again.s.remaining > 0) {
    std::vector<Sequence*> batch = {&again.s};
    if (neighbour.s.remaining > 0) batch.insert(batch.begin(), &neighbour.s);
    stepper.step(batch);
  }
  EXPECT_EQ(again.s.tokens, text);
}

TEST(Step, NeverBeyondRemainingOrTheModelsLengths) {
  // toy::Model throws when a cache grows beyond its max_length.
  for (const int64_t draft_max : {4, 9, 100}) {
    toy::Model target(kVocab, toy::random_logits(1), 20), draft(kVocab, toy::random_logits(1), draft_max);
    Stepper stepper(target, &draft);
    Request r({1, 2, 3}, 5, 100);
    run(stepper, r);
    EXPECT_EQ(r.s.tokens.size(), 20u);
    EXPECT_FALSE(r.s.draft_failed);
    EXPECT_GT(r.s.counts.steps, 0);
    Request exact({1}, 8, 5);
    EXPECT_EQ(run(stepper, exact).size(), 6u);
    for (const int32_t t : exact.s.emitted) EXPECT_LT(t, kVocab);
  }
}

TEST(Step, PromptsThatCannotBeServed) {
  toy::Model target(kVocab, toy::random_logits(1), 8), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  for (const toy::Tokens& prompt : {toy::Tokens{}, toy::Tokens(8, 1), toy::Tokens{1, 12}, toy::Tokens{-1}}) {
    Request r(prompt, 2, 5);
    try {
      stepper.start(r.s);
      ADD_FAILURE() << "accepted a prompt of " << prompt.size();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData);
    }
  }
  EXPECT_EQ(target.open_sequences(), 0u);
  Request r({1}, 2, 3);
  run(stepper, r);
  Sequence* const batch[] = {&r.s};
  EXPECT_THROW(stepper.step(batch), Error);  // finished
  toy::Model other(kVocab + 1, toy::random_logits(1));
  EXPECT_THROW(Stepper(target, &other), Error);
}

TEST(Step, LongPromptsGoInChunks) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  Request r(toy::Tokens(1300, 4), 2, 10);
  size_t longest = 0;
  const auto note = [&](std::span<const Extension> e) { longest = std::max(longest, e[0].tokens.size()); };
  target.before_pass = draft.before_pass = note;
  stepper.start(r.s, 100);
  EXPECT_EQ(longest, 100u);
  longest = 0;
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  EXPECT_LE(longest, 512u);
  EXPECT_EQ(r.s.accepted, 2);
  expect_caches(target, draft, r.s);
}

TEST(Step, DraftCatchesUpAfterFullAcceptanceAndAfterPlainSteps) {
  // A draft equal to the target is accepted whole each time only if its cache never lacks a token.
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  Request r({1, 2}, 3, 41);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  while (r.s.remaining > 0) {
    if (r.s.remaining == 21) {  // a few plain steps in between
      r.s.controller = nullptr;
      for (int i = 0; i < 5; ++i) stepper.step(batch);
      r.s.controller = &r.controller;
    }
    stepper.step(batch);
    EXPECT_EQ(r.s.accepted, r.s.drafted);
  }
  EXPECT_EQ(r.s.counts.conditional(0), 1.0);
}

TEST(Step, AFailingDraftCostsOnlyItsOwnSequenceTheDraft) {
  const auto logits = toy::random_logits(1);
  toy::Model target(kVocab, logits);
  Stepper alone(target, nullptr);
  Request plain_a({1}, 0, 30), plain_b({2}, 0, 30);
  const toy::Tokens text_a = run(alone, plain_a), text_b = run(alone, plain_b);
  enum class Way { kThrow, kNan };
  for (const Way way : {Way::kThrow, Way::kNan}) {
    // Thrown in the middle of a pass, when the caches of both have grown.
    toy::Model draft(kVocab, [&](std::span<const int32_t> context, std::span<float> l) {
      logits(context, l);
      if (context[0] != 1 || context.size() <= 6) return;
      if (way == Way::kThrow) throw std::runtime_error("the device lost it");
      l[3] = std::numeric_limits<float>::quiet_NaN();
    });
    Stepper stepper(target, &draft);
    Request a({1}, 4, 30), b({2}, 4, 30);
    stepper.start(a.s);
    stepper.start(b.s);
    for (;;) {
      std::vector<Sequence*> batch;
      for (Request* r : {&b, &a})
        if (r->s.remaining > 0) batch.push_back(&r->s);
      if (batch.empty()) break;
      stepper.step(batch);
      for (const Sequence* s : batch) expect_caches(target, draft, *s);
    }
    EXPECT_TRUE(a.s.draft_failed);
    EXPECT_FALSE(b.s.draft_failed);
    EXPECT_EQ(a.s.tokens, text_a);
    EXPECT_EQ(b.s.tokens, text_b);
    EXPECT_GT(a.s.counts.plain_steps, 5);
    EXPECT_EQ(b.s.counts.accepted, b.s.counts.drafted) << "the draft is the target: its cache was left wrong";
    EXPECT_EQ(b.s.counts.plain_steps, b.s.counts.plain_steps > 0 ? 1 : 0);  // at most the last token
    EXPECT_EQ(draft.open_sequences(), 1u);
  }
}

TEST(Step, ADraftThatThrowsAloneInItsBatchIsDroppedToo) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper alone(target, nullptr), stepper(target, &draft);
  Request plain({1}, 0, 30), r({1}, 4, 30);
  draft.before_pass = [&](auto) {
    if (draft.passes > 3) throw std::runtime_error("the device lost it");
  };
  EXPECT_EQ(run(stepper, r), run(alone, plain));
  EXPECT_TRUE(r.s.draft_failed);
  EXPECT_GT(r.s.counts.accepted, 0);
  EXPECT_EQ(draft.open_sequences(), 0u);
}

TEST(Step, SequencesOfSeveralDraftsGoTogether) {
  toy::Model target(kVocab, toy::random_logits(1)), right(kVocab, toy::random_logits(1)),
      wrong(kVocab, toy::random_logits(2)), shadow(kVocab, toy::random_logits(1));
  Stepper alone(target, nullptr), stepper(target, &wrong);
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<toy::Tokens> texts;
  for (int32_t i = 0; i < 6; ++i) {
    Request plain({i}, 0, 30);
    texts.push_back(run(alone, plain));
    Sequence& s = requests.emplace_back(std::make_unique<Request>(toy::Tokens{i}, 4, 30))->s;
    if (i % 2 == 0) s.draft = &right;
    if (i % 2 == 1) s.shadow = &shadow;
    stepper.start(s);
  }
  for (;;) {
    std::vector<Sequence*> batch;
    for (const auto& r : requests)
      if (r->s.remaining > 0) batch.push_back(&r->s);
    if (batch.empty()) break;
    stepper.step(batch);
    for (const Sequence* s : batch) {
      expect_caches(target, s->draft ? right : wrong, *s);
      EXPECT_EQ(s->shadow_overlaps, std::vector<double>(s->shadow ? s->overlaps.size() : 0, 1.0))
          << "the shadow is the target";
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    Sequence& s = requests[i]->s;
    EXPECT_EQ(s.tokens, texts[i]);
    EXPECT_EQ(s.counts.accepted == s.counts.drafted, i % 2 == 0) << i;
    stepper.finish(s);
  }
  EXPECT_EQ(target.open_sequences() + right.open_sequences() + wrong.open_sequences() + shadow.open_sequences(), 0u);
}

TEST(Step, ATargetThatThrowsLeavesEverythingAsItWas) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  Stepper stepper(target, &draft);
  Request r({1, 2}, 3, 20);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  const toy::Tokens tokens = r.s.tokens;
  target.before_pass = [](std::span<const Extension>) { throw std::runtime_error("out of memory"); };
  EXPECT_THROW(stepper.step(batch), std::runtime_error);
  EXPECT_EQ(r.s.tokens, tokens);
  expect_caches(target, draft, r.s);
  target.before_pass = nullptr;
  Request plain({1, 2}, 0, 20);
  while (r.s.remaining > 0) stepper.step(batch);
  EXPECT_EQ(r.s.tokens, run(stepper, plain));
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
    Request bad({1}, 2, 20, {.temperature = temperature}), good({2}, 2, 20, {.temperature = temperature});
    stepper.start(bad.s);
    stepper.start(good.s);
    Sequence* const batch[] = {&bad.s, &good.s};
    bool threw = false;
    for (int i = 0; i < 4 && !threw; ++i) {
      const size_t before = good.s.tokens.size();
      try {
        stepper.step(batch);
      } catch (const Error&) {
        threw = true;
      }
      EXPECT_GT(good.s.tokens.size(), before);
    }
    EXPECT_TRUE(threw);
    EXPECT_TRUE(bad.s.failure);
    EXPECT_FALSE(good.s.failure);
    expect_caches(target, draft, good.s);
    expect_caches(target, draft, bad.s);
  }
}

TEST(Step, RecordsTheCostOfItsPasses) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  CostModel costs;
  const specdec::testing::ManualClock clock(0, 0.001);
  Stepper stepper(target, &draft, &costs, &clock);
  Request r({1}, 3, 40), plain({1}, 0, 4);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  EXPECT_FALSE(costs.ready());
  run(stepper, plain);
  EXPECT_TRUE(costs.ready());
  EXPECT_NEAR(costs.draft_cost(1), 1.0, 1e-9);  // this clock ticks once a reading
  EXPECT_EQ(costs.read_cost(1), 0);
}

// A prompt that the draft's first pass reads is not free, however short it is; nor is that pass one of those that
// draft.
TEST(Step, RecordsWhatTheDraftReadsBeforeItDrafts) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
  CostModel costs;
  const specdec::testing::ManualClock clock(0, 0.001);
  Stepper stepper(target, &draft, &costs, &clock);
  Request r(std::vector<int32_t>(40, 1), 3, 40), plain({1}, 0, 4);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  stepper.step(batch);
  run(stepper, plain);
  EXPECT_NEAR(costs.read_cost(1), 1.0 / 39, 1e-9);
  EXPECT_NEAR(costs.draft_cost(1), 1.0, 1e-9);
}

}  // namespace
}  // namespace specdec::decode
