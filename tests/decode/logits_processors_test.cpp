#include "engine/decode/sampling/logits_processors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/philox.h"
#include "tests/base/scratch.h"
#include "tests/lossless/rules.h"

namespace specdec::decode {
namespace {

using specdec::testing::expect_error;
using Applied = LogitsProcessorState::Applied;

constexpr float kInfinite = std::numeric_limits<float>::infinity();

LogitsProcessors busy_rules() {
  LogitsProcessors rules;
  rules.repetition_penalty = 1.3;
  rules.presence_penalty = 0.5;
  rules.frequency_penalty = 0.25;
  rules.bias = {{3, 2.f}, {5, -100.f}};
  rules.bad_words = {{2}, {4, 6}, {1, 1, 7}};
  rules.allowed_ids = {11, 0, 1, 2, 3, 4, 5, 6, 7, 9, 3};
  rules.min_tokens = 12;
  rules.stop_ids = {9, 0};
  rules.constraint = [] { return std::make_unique<toy::Automaton>(); };
  return rules;
}

std::vector<float> logits_of(uint64_t seed) {
  std::vector<float> logits(12);
  toy::random_logits(seed)(toy::Tokens{static_cast<int32_t>(seed % 7)}, logits);
  return logits;
}

void expect_reference(LogitsProcessorState& state, const LogitsProcessors& rules, const toy::Tokens& text,
                      size_t prompt, uint64_t seed) {
  std::vector<float> found = logits_of(seed), expected = logits_of(seed);
  state.apply(found);
  toy::apply_reference(rules, text, prompt, expected);
  for (size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i]))
      EXPECT_EQ(found[i], expected[i]) << "token " << i;
    else
      EXPECT_NEAR(found[i], expected[i], 1e-4) << "token " << i;
  }
}

// Makes a long random walk of pushes, pops, rewinds and commits. After every operation the state must equal the state
// that is computed from the whole text.
TEST(LogitsProcessors, StateFollowsEveryPushAndPop) {
  const LogitsProcessors rules = busy_rules();
  const toy::Tokens prompt = {1, 9, 9};
  LogitsProcessorState state(rules, prompt);
  toy::Tokens settled = prompt, text = prompt;
  uint64_t draws = 0;
  const auto uniform = [&draws] { return philox_uniform(17, 0, draws++); };
  const auto legal = [&]() -> int32_t {
    for (;;) {
      const auto token = static_cast<int32_t>(uniform() * 12);
      if (toy::Automaton::allows({text.begin() + 3, text.end()}, token)) return token;
    }
  };
  for (uint64_t i = 0; i < 3000; ++i) {
    const double u = uniform();
    if (u < 0.5 && text.size() < settled.size() + 6) {
      text.push_back(legal());
      state.push(text.back());
    } else if (u < 0.75 && text.size() > settled.size()) {
      text.pop_back();
      state.rewind();
      for (size_t i = settled.size(); i < text.size(); ++i) state.push(text[i]);
    } else if (u < 0.85) {
      text = settled;
      state.rewind();
    } else if (u < 0.9 && settled.size() < 60) {
      const toy::Tokens tail(text.begin() + static_cast<ptrdiff_t>(settled.size()), text.end());
      state.commit(tail);
      settled = text;
    }
    expect_reference(state, rules, text, prompt.size(), i);
    if (::testing::Test::HasFailure()) FAIL() << "at step " << i;
  }
  EXPECT_GT(settled.size(), 20u);
}

TEST(LogitsProcessors, PresenceAndFrequencyCountTheAnswerRepetitionThePromptToo) {
  LogitsProcessors rules;
  rules.presence_penalty = 1;
  rules.frequency_penalty = 0.5;
  LogitsProcessorState state(rules, toy::Tokens{0, 0});
  state.commit(toy::Tokens{1, 1, 2});
  std::vector<float> logits = {5, 5, 5, 5};
  EXPECT_EQ(state.apply(logits), Applied::kDone);
  EXPECT_EQ(logits, (std::vector<float>{5, 3, 3.5, 5}));
  LogitsProcessors repeated;
  repeated.repetition_penalty = 2;
  LogitsProcessorState other(repeated, toy::Tokens{0});
  other.commit(toy::Tokens{1});
  logits = {4, -4, 4, -4};
  EXPECT_EQ(other.apply(logits), Applied::kDone);
  EXPECT_EQ(logits, (std::vector<float>{2, -8, 4, -4}));
}

TEST(LogitsProcessors, BadWordsNeedTheirWholePrefixInTheAnswer) {
  LogitsProcessors rules;
  rules.bad_words = {{1, 2, 3}};
  LogitsProcessorState state(rules, toy::Tokens{1, 2});  // bad words must not match tokens of the prompt
  const auto forbidden = [&state] {
    std::vector<float> logits(5, 0.f);
    EXPECT_EQ(state.apply(logits), Applied::kDone);
    return logits[3] == -kInfinite;
  };
  EXPECT_FALSE(forbidden());
  state.commit(toy::Tokens{1});
  EXPECT_FALSE(forbidden());
  state.push(2);
  EXPECT_TRUE(forbidden());
  state.rewind();
  state.push(4);
  EXPECT_FALSE(forbidden());
}

TEST(LogitsProcessors, OnlyAllowedTokensStay) {
  LogitsProcessors rules;
  rules.allowed_ids = {69, 3, 40};
  EXPECT_TRUE(rules.any());
  LogitsProcessorState state(rules, toy::Tokens{0});
  std::vector<float> logits(70, 1.f);  // not a multiple of 32
  EXPECT_EQ(state.apply(logits), Applied::kDone);
  for (size_t id = 0; id < logits.size(); ++id) {
    const bool stays = id == 3 || id == 40 || id == 69;
    EXPECT_EQ(logits[id], stays ? 1.f : -kInfinite) << id;
    EXPECT_EQ(state.allows(static_cast<int32_t>(id), 70), stays) << id;
  }
}

TEST(LogitsProcessors, WhatEndsAnAnswerWaitsForItsMinimum) {
  LogitsProcessors rules;
  rules.min_tokens = 2;
  EXPECT_FALSE(rules.any()) << "nothing could end the answer";
  rules.stop_ids = {1, 3};
  EXPECT_TRUE(rules.any());
  LogitsProcessorState state(rules, toy::Tokens{0, 0, 0});  // min_tokens does not count tokens of the prompt
  const auto waits = [&state] {
    std::vector<float> logits(5, 0.f);
    EXPECT_EQ(state.apply(logits), Applied::kDone);
    EXPECT_EQ(logits[0], 0.f);
    EXPECT_EQ(logits[1], logits[3]);
    EXPECT_EQ(state.allows(3, 5), logits[3] == 0.f);
    return logits[1] == -kInfinite;
  };
  EXPECT_TRUE(waits());
  state.commit(toy::Tokens{2});
  EXPECT_TRUE(waits());
  state.push(2);
  EXPECT_FALSE(waits()) << "a drafted token counts";
  state.rewind();
  EXPECT_TRUE(waits());
  state.commit(toy::Tokens{4, 4});
  EXPECT_FALSE(waits());
}

TEST(LogitsProcessors, SaysWhenNoTokenIsLeft) {
  LogitsProcessors rules;
  rules.bad_words = {{0}, {1}};
  LogitsProcessorState state(rules, toy::Tokens{0});
  std::vector<float> two(2, 1.f), three(3, 1.f);
  EXPECT_EQ(state.apply(two), Applied::kNoTokenLeft);
  EXPECT_EQ(state.apply(three), Applied::kDone);
  LogitsProcessors ends;  // every allowed token would end the answer too early
  ends.allowed_ids = ends.stop_ids = {0, 1};
  ends.min_tokens = 1;
  LogitsProcessorState too_early(ends, toy::Tokens{0});
  EXPECT_EQ(too_early.apply(two), Applied::kNoTokenLeft);
  std::vector<float> four(4, 1.f);
  EXPECT_EQ(too_early.apply(four), Applied::kNoTokenLeft);
  std::vector<float> broken = {0, 0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(state.apply(broken), Applied::kDone) << "NaN is the sampler's to report";
}

// Draft and target request the same mask. The mask is computed once, and again only after a different token was pushed.
TEST(LogitsProcessors, MasksAreComputedOncePerPositionAndToken) {
  struct Counting final : Constraint {
    explicit Counting(int& n) : calls(n) {}
    MaskState allowed(std::span<uint32_t> bits) override {
      ++calls;
      bits[0] = ~0u;
      return MaskState::kReady;
    }
    void push(int32_t) override {}
    void pop(int64_t) override {}
    int& calls;
  };
  int calls = 0;
  LogitsProcessors rules;
  rules.constraint = [&calls] { return std::make_unique<Counting>(calls); };
  LogitsProcessorState state(rules, toy::Tokens{0});
  std::vector<float> logits(8, 0.f);
  for (const int32_t token : {3, 4}) {
    state.apply(logits);
    state.push(token);
  }
  state.apply(logits);
  EXPECT_EQ(calls, 3);
  state.rewind();
  state.apply(logits);
  EXPECT_EQ(calls, 3) << "back at the start";
  state.push(3);
  state.apply(logits);
  EXPECT_EQ(calls, 3) << "the same token again";
  state.rewind();
  state.push(5);
  state.apply(logits);
  EXPECT_EQ(calls, 4) << "another token";
  state.commit(toy::Tokens{5});
  state.apply(logits);
  EXPECT_EQ(calls, 5);
}

// Allows every token. Fails permanently after 5 masks, or if a mask is requested after token 9.
struct Fragile final : Constraint {
  MaskState allowed(std::span<uint32_t> bits) override {
    failed |= (!tokens.empty() && tokens.back() == 9) || ++masks > 5;
    bits[0] = ~0u;
    return failed ? MaskState::kSpent : MaskState::kReady;
  }
  void push(int32_t token) override { tokens.push_back(token); }
  void pop(int64_t count) override { tokens.resize(tokens.size() - static_cast<size_t>(count)); }
  toy::Tokens tokens;
  bool failed = false;
  int masks = 0;
};

TEST(LogitsProcessors, AGrammarThatFailsAfterADraftedTokenBeginsAgainOnce) {
  std::vector<Fragile*> made;
  LogitsProcessors rules;
  rules.constraint = [&made] {
    auto one = std::make_unique<Fragile>();
    made.push_back(one.get());
    return one;
  };
  LogitsProcessorState state(rules, toy::Tokens{0});
  std::vector<float> logits(16, 0.f);
  state.commit(toy::Tokens{3, 4});
  EXPECT_EQ(state.apply(logits), Applied::kDone);
  state.push(9);
  EXPECT_EQ(state.apply(logits), Applied::kSpent) << "the draft ends here";
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[1]->tokens, (toy::Tokens{3, 4})) << "without the drafted token";
  state.rewind();
  state.push(5);
  EXPECT_EQ(state.apply(logits), Applied::kSpent) << "a drafted token is not tried again";
  EXPECT_FALSE(state.allows(1, 16));
  state.commit(toy::Tokens{5});
  EXPECT_EQ(made[1]->tokens, (toy::Tokens{3, 4, 5}));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(state.apply(logits), Applied::kDone) << i;
    state.commit(toy::Tokens{i});
  }
  EXPECT_EQ(state.apply(logits), Applied::kSpent) << "it fails by itself";
  EXPECT_EQ(made.size(), 2u);
}

TEST(LogitsProcessors, AGrammarThatFailsWithoutADraftIsSpent) {
  LogitsProcessors rules;
  int made = 0;
  rules.constraint = [&made] { return ++made, std::make_unique<Fragile>(); };
  LogitsProcessorState state(rules, toy::Tokens{0});
  std::vector<float> logits(16, 0.f);
  EXPECT_EQ(state.apply(logits), Applied::kDone);
  state.commit(toy::Tokens{9});
  EXPECT_EQ(state.apply(logits), Applied::kSpent);
  EXPECT_EQ(made, 1);
}

TEST(LogitsProcessors, RangesAreChecked) {
  const auto refused = [](const char* name, auto change) {
    LogitsProcessors rules;
    change(rules);
    expect_error(ErrorKind::kUsage, {name}, [&] { validate(rules, 10); });
  };
  validate(LogitsProcessors{}, 10);
  validate(busy_rules(), 12);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, 1e-60, 1e-38, 0.0099, 2.1, nan})
    refused("repetition_penalty", [bad](LogitsProcessors& r) { r.repetition_penalty = bad; });
  for (const double bad : {-2.1, 2.1, nan}) {
    refused("presence_penalty", [bad](LogitsProcessors& r) { r.presence_penalty = bad; });
    refused("frequency_penalty", [bad](LogitsProcessors& r) { r.frequency_penalty = bad; });
  }
  for (const auto& bad : {std::pair{10, 1.f}, {-1, 1.f}, {1, 100.5f}, {1, kInfinite}})
    refused("logit_bias", [&](LogitsProcessors& r) { r.bias = {bad}; });
  for (const toy::Tokens& bad : {toy::Tokens{}, {10}, {1, -1}})
    refused("bad_words", [&](LogitsProcessors& r) { r.bad_words = {bad}; });
  for (const int32_t bad : {10, -1}) {
    refused("allowed_token_ids", [bad](LogitsProcessors& r) { r.allowed_ids = {1, bad}; });
    refused("stop_token_ids", [bad](LogitsProcessors& r) { r.stop_ids = {bad}; });
  }
  refused("min_tokens", [](LogitsProcessors& r) { r.min_tokens = -1; });
}

// Uses values at the ends of every range, and repetition penalties beyond the range that validate() accepts. Finite
// logits must stay finite, and forbidden tokens must stay forbidden.
TEST(LogitsProcessors, LeaveFiniteLogitsFiniteAtEveryExtreme) {
  constexpr float most = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  for (const double repetition : {5e-324, 1e-60, 1e-38, 0.01, 1.0, 2.0})
    for (const double presence : {-2.0, 0.0, 2.0})
      for (const double frequency : {-2.0, 2.0})
        for (const float bias : {-100.f, 100.f}) {
          LogitsProcessors rules;
          rules.repetition_penalty = repetition;
          rules.presence_penalty = presence;
          rules.frequency_penalty = frequency;
          for (int32_t id = 0; id < 8; ++id) rules.bias.emplace_back(id, bias);
          rules.bad_words = {{7}};
          const std::vector<int32_t> prompt = {0, 1, 2, 3, 4, 5, 6, 7};
          LogitsProcessorState state(rules, prompt);
          for (const int32_t id : prompt) state.commit({&id, 1});
          std::vector<float> logits = {most, -most, tiny, -tiny, 0, -kInfinite, 30, 1};
          ASSERT_EQ(state.apply(logits), Applied::kDone);
          for (const size_t i : {0u, 1u, 2u, 3u, 4u, 6u})
            ASSERT_TRUE(std::isfinite(logits[i])) << i << " repetition " << repetition;
          ASSERT_EQ(logits[5], -kInfinite);
          ASSERT_EQ(logits[7], -kInfinite);
        }
}

}  // namespace
}  // namespace specdec::decode
