// Tests a request's logits processors in whole steps: dead ends, log-probabilities, and states that are rolled back.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/decode/generate.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/rules.h"

namespace specdec::decode {
namespace {

constexpr int64_t kTokens = 10;

// A sequence with logits processors. `logprobs` sets RequestOptions::logprobs; if it is not negative, prompt_logprobs
// is set too.
struct Ruled {
  Ruled(Stepper& stepper, toy::Tokens prompt, LogitsProcessors rules, int k, SamplingOptions sampling,
        int64_t max_tokens = 24, int logprobs = -1)
      : s(stepper,
          {std::move(prompt),
           5,
           {.max_tokens = max_tokens,
            .sampling = sampling,
            .rules = std::make_shared<const LogitsProcessors>(std::move(rules)),
            .logprobs = logprobs,
            .prompt_logprobs = logprobs >= 0}},
          drafting({.k = k})) {}
  Sequence s;
};

// Returns logits with which both models produce 0, 1, 2, … 9, 0 (each almost certain), except that the draft is wrong
// after a 3.
toy::Model::Logits counting(bool draft) {
  return [draft](std::span<const int32_t> context, std::span<float> logits) {
    toy::random_logits(4, 0.5)(context, logits);
    const int32_t last = context.back();
    logits[static_cast<size_t>(draft && last == 3 ? 8 : (last + 1) % kTokens)] += 8;
  };
}

struct RuledSteps : ::testing::Test {
  toy::Model target{kTokens, counting(false)}, draft{kTokens, counting(true)};
  Stepper stepper{target, &draft};
};

TEST_F(RuledSteps, GreedyTextIsThePlainOneForEveryK) {
  LogitsProcessors rules;
  rules.frequency_penalty = 1.7;
  rules.repetition_penalty = 1.2;
  rules.bad_words = {{4, 5}};
  rules.bias = {{7, -9.f}};
  toy::Tokens plain;
  for (int k = 0; k <= 8; ++k) {
    Ruled r(stepper, {1, 2}, rules, k, {.temperature = 0}, 40);
    stepper.start(r.s);
    Sequence* const batch[] = {&r.s};
    while (r.s.remaining() > 0) stepper.step(batch);
    stepper.close(r.s);
    if (k == 0) plain = r.s.tokens();
    EXPECT_EQ(r.s.tokens(), plain) << "K=" << k;
    EXPECT_GT(r.s.counts().accepted, k > 0 ? 5 : -1) << "the draft follows the same rules";
  }
  // Checks that the processors change the text: the text without them is different.
  Ruled free(stepper, {1, 2}, {}, 3, {.temperature = 0}, 40);
  stepper.start(free.s);
  Sequence* const batch[] = {&free.s};
  while (free.s.remaining() > 0) stepper.step(batch);
  EXPECT_NE(free.s.tokens(), plain);
}

TEST_F(RuledSteps, ADeadEndFailsItsOwnSequenceOnlyAndIsTheRequestsFault) {
  for (const double temperature : {0.0, 1.0})
    for (const int k : {0, 1, 4}) {
      LogitsProcessors rules;  // no token may follow a 5
      for (int32_t id = 0; id < kTokens; ++id) rules.bad_words.push_back({5, id});
      Ruled bad(stepper, {1, 2}, rules, k, {.temperature = temperature}, 20),
          good(stepper, {1, 2}, {}, k, {.temperature = temperature}, 20);
      stepper.start(bad.s);
      stepper.start(good.s);
      Sequence* const batch[] = {&bad.s, &good.s};
      bool failed = false;
      for (int i = 0; i < 20 && !failed; ++i) {
        const toy::Tokens before = bad.s.tokens();
        try {
          stepper.step(batch);
        } catch (const Error& e) {
          failed = true;
          EXPECT_EQ(e.kind(), ErrorKind::kUsage);
          EXPECT_EQ(bad.s.tokens(), before);
          EXPECT_TRUE(bad.s.outcome().failure && bad.s.outcome().logprobs.empty());
        }
        EXPECT_FALSE(good.s.outcome().failure);
        EXPECT_FALSE(good.s.outcome().emitted.empty());
      }
      EXPECT_TRUE(failed) << "T=" << temperature << " K=" << k;
      EXPECT_FALSE(bad.s.draft_failed()) << "nothing is wrong with the draft";
      stepper.close(bad.s);
      stepper.close(good.s);
    }
}

// The draft reaches a dead end (no allowed token) that the target avoids. The tokens drafted so far must be verified,
// and the sequence must continue.
TEST_F(RuledSteps, ADeadEndOfTheDraftOnlyStopsDrafting) {
  LogitsProcessors rules;
  for (int32_t id = 0; id < kTokens; ++id) rules.bad_words.push_back({8, id});
  rules.bad_words.push_back({7, 8});  // the target itself never reaches 8
  Ruled r(stepper, {1, 2}, rules, 6, {.temperature = 0}, 30);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  bool short_draft = false;
  while (r.s.remaining() > 0) {
    stepper.step(batch);
    short_draft |= r.s.remaining() > 7 && r.s.outcome().drafted < 6;
  }
  EXPECT_TRUE(short_draft);
  EXPECT_FALSE(r.s.draft_failed());
}

TEST_F(RuledSteps, AFailedTargetPassLeavesTheRulesAsTheyWere) {
  LogitsProcessors rules;
  rules.constraint = [] { return std::make_unique<toy::Automaton>(); };
  rules.presence_penalty = 2;
  Ruled r(stepper, {1, 2}, rules, 3, {.temperature = 0}), plain(stepper, {1, 2}, rules, 0, {.temperature = 0});
  stepper.start(r.s);
  stepper.start(plain.s);
  Sequence* const batch[] = {&r.s};
  Sequence* const other[] = {&plain.s};
  stepper.step(batch);
  target.before_pass = [](std::span<const Extension>) { throw std::runtime_error("out of memory"); };
  EXPECT_THROW(stepper.step(batch), std::runtime_error);
  target.before_pass = nullptr;
  while (r.s.remaining() > 0) stepper.step(batch);
  while (plain.s.remaining() > 0) stepper.step(other);
  EXPECT_EQ(r.s.tokens(), plain.s.tokens());
}

// Returns the target's log softmax of token text[at], given the tokens before it.
float expected_logprob(const toy::Tokens& text, size_t at) {
  std::vector<float> logits(kTokens);
  counting(false)(std::span<const int32_t>(text).first(at), logits);
  double total = 0;
  for (const float l : logits) total += std::exp(static_cast<double>(l));
  return static_cast<float>(logits[static_cast<size_t>(text[at])] - std::log(total));
}

TEST_F(RuledSteps, LogprobsAreTheTargetsOwnForEveryEmittedAndPromptToken) {
  LogitsProcessors rules;
  rules.bias = {{3, -4.f}};
  rules.frequency_penalty = 1;
  for (const double temperature : {0.0, 0.7})
    for (const int k : {0, 2, 5}) {
      Ruled r(stepper, {1, 2, 3, 9}, rules, k, {.temperature = temperature, .top_k = 3}, 30, 2);
      stepper.start(r.s);
      std::vector<PositionLogprobs> all = r.s.take_prompt_logprobs();
      ASSERT_EQ(all.size(), 3u);
      Sequence* const batch[] = {&r.s};
      while (r.s.remaining() > 0) {
        stepper.step(batch);
        ASSERT_EQ(r.s.outcome().logprobs.size(), r.s.outcome().emitted.size());
        all.insert(all.end(), r.s.outcome().logprobs.begin(), r.s.outcome().logprobs.end());
      }
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].token.id, r.s.tokens()[i + 1]);
        EXPECT_NEAR(all[i].token.logprob, expected_logprob(r.s.tokens(), i + 1), 1e-5)
            << "token " << i + 1 << ", K=" << k;
        ASSERT_EQ(all[i].top.size(), 2u);
        EXPECT_GE(all[i].top[0].logprob, all[i].token.logprob);
      }
      stepper.close(r.s);
    }
}

// A grammar that allows every token, and fails permanently once tokens are popped.
struct NoWayBack final : Constraint {
  MaskState allowed(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), ~0u);
    return failed ? MaskState::kSpent : MaskState::kReady;
  }
  void push(int32_t) override {}
  void pop(int64_t) override { failed = true; }
  bool failed = false;
};

// The drafted token that ends the step was accepted, so it has log-probabilities and is not reported as rejected.
TEST_F(RuledSteps, AStepEndsWithADraftedTokenAfterWhichTheGrammarIsNotAsked) {
  LogitsProcessors rules;
  rules.constraint = [] { return std::make_unique<NoWayBack>(); };
  Ruled plain(stepper, {1, 2}, {}, 0, {.temperature = 0});
  stepper.start(plain.s);
  Sequence* const other[] = {&plain.s};
  while (plain.s.remaining() > 0) stepper.step(other);
  for (const double temperature : {0.0, 0.1}) {  // the draft agrees with the target, except after a 3
    Sequence s(stepper,
               {{1, 2},
                5,
                {.max_tokens = 24,
                 .sampling = {.temperature = temperature},
                 .rules = std::make_shared<const LogitsProcessors>(rules),
                 .logprobs = 0,
                 .reject_top = 2}},
               drafting({.k = 3}));
    stepper.start(s);
    Sequence* const batch[] = {&s};
    int alone = 0;
    while (s.remaining() > 0) {
      stepper.step(batch);
      const std::vector<int32_t>& emitted = s.outcome().emitted;
      ASSERT_EQ(s.outcome().logprobs.size(), emitted.size());
      EXPECT_EQ(s.outcome().logprobs.back().token.id, emitted.back());
      if (s.outcome().drafted != 1 || s.remaining() == 0) continue;
      ++alone;
      EXPECT_EQ(emitted.size(), 1u);
      EXPECT_EQ(s.outcome().rejected.has_value(), emitted[0] == 4) << emitted[0];
    }
    EXPECT_GE(alone, 10);
    EXPECT_EQ(s.tokens(), plain.s.tokens()) << temperature;
    stepper.close(s);
  }
}

TEST_F(RuledSteps, GenerateTakesRulesAndChecksThem) {
  specdec::testing::ManualClock clock;
  const auto text = [&](LogitsProcessors rules) {
    const Request request{{1, 2},
                          0,
                          {.max_tokens = 12,
                           .sampling = {.temperature = 0},
                           .rules = std::make_shared<const LogitsProcessors>(std::move(rules))}};
    return generate(stepper, request, drafting({.k = 3}), clock).tokens;
  };
  const std::vector<int32_t> free = text({});
  const std::vector<int32_t> biased = text({.bias = {{free[4], -100.f}}});
  EXPECT_EQ(std::count(biased.begin(), biased.end(), free[4]), 0);
  EXPECT_THROW(text({.bias = {{kTokens, 1.f}}}), Error);
}

}  // namespace
}  // namespace specdec::decode
