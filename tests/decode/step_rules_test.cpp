// What a request asks of its tokens, through the step: dead ends, log-probabilities, rolled-back state.
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

struct RuledRequest {
  RuledRequest(toy::Tokens prompt, LogitRules with, int k, SamplingOptions sampling, int64_t remaining = 24)
      : rules(std::move(with)), state(rules, prompt), randomness(5), controller({.fixed_k = k}, nullptr) {
    s.tokens = std::move(prompt);
    s.sampling = sampling;
    s.rules = &state;
    s.randomness = &randomness;
    s.controller = &controller;
    s.remaining = remaining;
  }
  LogitRules rules;
  LogitState state;
  SeededRandomness randomness;
  KController controller;
  Sequence s;
};

// Both models would say 0, 1, 2, … 9, 0 (each nearly certain), the draft being wrong behind a 3.
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
  LogitRules rules;
  rules.frequency_penalty = 1.7;
  rules.repetition_penalty = 1.2;
  rules.bad_words = {{4, 5}};
  rules.bias = {{7, -9.f}};
  toy::Tokens plain;
  for (int k = 0; k <= 8; ++k) {
    RuledRequest r({1, 2}, rules, k, {.temperature = 0}, 40);
    stepper.start(r.s);
    Sequence* const batch[] = {&r.s};
    while (r.s.remaining > 0) stepper.step(batch);
    stepper.finish(r.s);
    if (k == 0) plain = r.s.tokens;
    EXPECT_EQ(r.s.tokens, plain) << "K=" << k;
    EXPECT_GT(r.s.counts.accepted, k > 0 ? 5 : -1) << "the draft follows the same rules";
  }
  // And not the text without rules.
  RuledRequest free({1, 2}, {}, 3, {.temperature = 0}, 40);
  stepper.start(free.s);
  Sequence* const batch[] = {&free.s};
  while (free.s.remaining > 0) stepper.step(batch);
  EXPECT_NE(free.s.tokens, plain);
}

TEST_F(RuledSteps, ADeadEndFailsItsOwnSequenceOnlyAndIsTheRequestsFault) {
  for (const double temperature : {0.0, 1.0})
    for (const int k : {0, 1, 4}) {
      LogitRules rules;  // behind a 5 nothing may come
      for (int32_t id = 0; id < kTokens; ++id) rules.bad_words.push_back({5, id});
      RuledRequest bad({1, 2}, rules, k, {.temperature = temperature}, 20),
          good({1, 2}, {}, k, {.temperature = temperature}, 20);
      stepper.start(bad.s);
      stepper.start(good.s);
      Sequence* const batch[] = {&bad.s, &good.s};
      bool failed = false;
      for (int i = 0; i < 20 && !failed; ++i) {
        const toy::Tokens before = bad.s.tokens;
        try {
          stepper.step(batch);
        } catch (const Error& e) {
          failed = true;
          EXPECT_EQ(e.kind(), ErrorKind::kUsage);
          EXPECT_EQ(bad.s.tokens, before);
          EXPECT_TRUE(bad.s.failure && bad.s.emitted_logprobs.empty());
        }
        EXPECT_FALSE(good.s.failure);
        EXPECT_FALSE(good.s.emitted.empty());
      }
      EXPECT_TRUE(failed) << "T=" << temperature << " K=" << k;
      EXPECT_FALSE(bad.s.draft_failed) << "nothing is wrong with the draft";
      stepper.finish(bad.s);
      stepper.finish(good.s);
    }
}

// The draft walks into a dead end that the target avoids: its tokens so far are verified, and the sequence goes on.
TEST_F(RuledSteps, ADeadEndOfTheDraftOnlyStopsDrafting) {
  LogitRules rules;
  for (int32_t id = 0; id < kTokens; ++id) rules.bad_words.push_back({8, id});
  rules.bad_words.push_back({7, 8});  // the target itself never gets to 8
  RuledRequest r({1, 2}, rules, 6, {.temperature = 0}, 30);
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  bool short_draft = false;
  while (r.s.remaining > 0) {
    stepper.step(batch);
    short_draft |= r.s.remaining > 7 && r.s.drafted < 6;
  }
  EXPECT_TRUE(short_draft);
  EXPECT_FALSE(r.s.draft_failed);
}

TEST_F(RuledSteps, AFailedTargetPassLeavesTheRulesAsTheyWere) {
  LogitRules rules;
  rules.constraint = [] { return std::make_unique<toy::Automaton>(); };
  rules.presence_penalty = 2;
  RuledRequest r({1, 2}, rules, 3, {.temperature = 0}), plain({1, 2}, rules, 0, {.temperature = 0});
  stepper.start(r.s);
  stepper.start(plain.s);
  Sequence* const batch[] = {&r.s};
  Sequence* const other[] = {&plain.s};
  stepper.step(batch);
  target.before_pass = [](std::span<const Extension>) { throw std::runtime_error("out of memory"); };
  EXPECT_THROW(stepper.step(batch), std::runtime_error);
  target.before_pass = nullptr;
  while (r.s.remaining > 0) stepper.step(batch);
  while (plain.s.remaining > 0) stepper.step(other);
  EXPECT_EQ(r.s.tokens, plain.s.tokens);
}

// log softmax of the target's logits after a prefix of `text`.
float expected_logprob(const toy::Tokens& text, size_t at) {
  std::vector<float> logits(kTokens);
  counting(false)(std::span<const int32_t>(text).first(at), logits);
  double total = 0;
  for (const float l : logits) total += std::exp(static_cast<double>(l));
  return static_cast<float>(logits[static_cast<size_t>(text[at])] - std::log(total));
}

TEST_F(RuledSteps, LogprobsAreTheTargetsOwnForEveryEmittedAndPromptToken) {
  LogitRules rules;
  rules.bias = {{3, -4.f}};
  rules.frequency_penalty = 1;
  for (const double temperature : {0.0, 0.7})
    for (const int k : {0, 2, 5}) {
      RuledRequest r({1, 2, 3, 9}, rules, k, {.temperature = temperature, .top_k = 3}, 30);
      r.s.logprobs = 2;
      r.s.prompt_logprobs = true;
      stepper.start(r.s);
      ASSERT_EQ(r.s.prompt_positions.size(), 3u);
      std::vector<PositionLogprobs> all = r.s.prompt_positions;
      Sequence* const batch[] = {&r.s};
      while (r.s.remaining > 0) {
        stepper.step(batch);
        ASSERT_EQ(r.s.emitted_logprobs.size(), r.s.emitted.size());
        all.insert(all.end(), r.s.emitted_logprobs.begin(), r.s.emitted_logprobs.end());
      }
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].token.id, r.s.tokens[i + 1]);
        EXPECT_NEAR(all[i].token.logprob, expected_logprob(r.s.tokens, i + 1), 1e-5)
            << "token " << i + 1 << ", K=" << k;
        ASSERT_EQ(all[i].top.size(), 2u);
        EXPECT_GE(all[i].top[0].logprob, all[i].token.logprob);
      }
      stepper.finish(r.s);
    }
}

TEST_F(RuledSteps, GenerateTakesRulesAndChecksThem) {
  specdec::testing::ManualClock clock;
  GenerateRequest request;
  request.prompt = {1, 2};
  request.max_tokens = 12;
  request.sampling.temperature = 0;
  request.speculation.k = 3;
  const std::vector<int32_t> free = generate(stepper, request, nullptr, clock).tokens;
  request.rules.bias = {{free[4], -100.f}};
  const std::vector<int32_t> biased = generate(stepper, request, nullptr, clock).tokens;
  EXPECT_EQ(std::count(biased.begin(), biased.end(), free[4]), 0);
  request.rules.bias = {{kTokens, 1.f}};
  EXPECT_THROW(generate(stepper, request, nullptr, clock), Error);
}

}  // namespace
}  // namespace specdec::decode
