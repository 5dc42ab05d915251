// Tests drafting from repetitions in the text: which tokens are proposed, and that the step is exact over every random
// outcome.
#include <gtest/gtest.h>

#include "engine/decode/control/suffix_drafter.h"
#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

using toy::Tokens;

Tokens proposed(SuffixDrafter& drafter, const Tokens& tokens, int count) {
  const auto span = drafter.propose(tokens, count);
  return {span.begin(), span.end()};
}

TEST(SuffixDrafter, GoesOnAsTheTextWentOn) {
  SuffixDrafter drafter;
  Tokens text = {7, 1, 2, 3, 4, 5, 9, 9, 1, 2};
  EXPECT_EQ(proposed(drafter, text, 4), Tokens{}) << "two tokens are not enough";
  text.push_back(3);
  EXPECT_EQ(proposed(drafter, text, 4), (Tokens{4, 5, 9, 9}));
  EXPECT_EQ(proposed(drafter, text, 2), (Tokens{4, 5}));
  EXPECT_EQ(proposed(drafter, text, 0), Tokens{});
  text.insert(text.end(), {8, 8, 1, 2, 3});
  EXPECT_EQ(proposed(drafter, text, 3), (Tokens{8, 8, 1})) << "the latest of two";
  EXPECT_EQ(proposed(drafter, {1, 2}, 3), Tokens{});
}

TEST(SuffixDrafter, LongerEndsDecide) {
  SuffixDrafter drafter;
  // The last occurrence of 4 5 6 was followed by 70, but that of the longer suffix 1 2 3 4 5 6 by 60.
  const Tokens text = {1, 2, 3, 4, 5, 6, 60, 50, 4, 5, 6, 70, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(proposed(drafter, text, 2), (Tokens{60, 50}));
}

TEST(SuffixDrafter, CirclesAreFollowedAround) {
  SuffixDrafter drafter;
  EXPECT_EQ(proposed(drafter, {1, 2, 3, 1, 2, 3}, 7), (Tokens{1, 2, 3, 1, 2, 3, 1}));
  SuffixDrafter same;
  EXPECT_EQ(proposed(same, {5, 5, 5, 5}, 3), (Tokens{5, 5, 5}));
}

TEST(SuffixDrafter, GrowingTextsGiveWhatWholeOnesGive) {
  Tokens text;
  SuffixDrafter growing;
  for (int i = 0; i < 400; ++i) {
    text.push_back(static_cast<int32_t>(philox_uniform(3, 1, static_cast<uint64_t>(i)) * 3));
    SuffixDrafter whole;
    EXPECT_EQ(proposed(growing, text, 5), proposed(whole, text, 5)) << i;
  }
}

Case repeating(VerifyRule rule, int k) {
  Case c;
  c.prompt = {1, 2, 0, 1, 2, 0, 1, 2};  // enumerate() appends the sequence's index, 0, so the text is 1 2 0 repeated
  c.suffix = true;
  c.rule = rule;
  c.controller.fixed_k = k;
  c.length = 3;
  return c;
}

TEST(SuffixDraft, IsExactUnderEveryRule) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget})
    for (const int k : {1, 2, 3}) {
      Case c = repeating(rule, k);
      c.draft = c.target;
      c.controller.max_k = k;
      // If `model` is true, there is also a draft model. It drafts in steps in which it promises at least as much as
      // the text.
      for (const bool model : {false, true}) {
        c.without_model = !model;
        const Outcome o = enumerate(c);
        EXPECT_LE(o.error, 1e-6) << to_string(rule) << " K " << k;
        EXPECT_EQ(o.from_text, k) << "what costs nothing promises more";
      }
    }
}

TEST(SuffixDraft, GreedyCutsAndRules) {
  Case c = repeating(VerifyRule::kToken, 2);
  c.without_model = true;
  c.sampling.temperature = 0;
  c.target = [](std::span<const int32_t> context, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.f);
    logits[static_cast<size_t>((context.back() + 1) % 3)] = 1;
  };
  Outcome o = enumerate(c);
  EXPECT_LE(o.error, 1e-6);
  EXPECT_EQ(o.kept_from_text, 2) << "the target goes round too";
  c = repeating(VerifyRule::kBlock, 2);
  c.without_model = true;
  c.sampling.top_k = 2;
  c.rules.presence_penalty = 0.9;
  c.rules.bad_words = {{1, 2}};
  EXPECT_LE(enumerate(c).error, 1e-6);
}

TEST(SuffixDraft, TokensThatMayNotComeOrNotYet) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget}) {
    Case c = repeating(rule, 2);
    c.without_model = true;
    c.rules.min_tokens = 2;
    c.rules.stop_ids = {0};
    Outcome o = enumerate(c);
    EXPECT_LE(o.error, 1e-6) << to_string(rule);
    EXPECT_GT(o.from_text, 0);
    c.rules.allowed_ids = {0, 1};
    o = enumerate(c);
    EXPECT_LE(o.error, 1e-6) << to_string(rule);
  }
}

// After a token that the text did not predict, the draft model prefills its unread tokens and drafts. Later, tokens are
// drafted from the text again.
TEST(SuffixDraft, TextAndModelTakeTurns) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock}) {
    Case c = repeating(rule, 2);
    c.length = 4;
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, 1e-6) << to_string(rule);
    EXPECT_EQ(o.from_text, 2);
    EXPECT_EQ(o.max_drafted, 2) << "where the end is new";
    EXPECT_EQ(o.min_drafted, 0);
  }
}

// With adaptive K, the statistics of the draft model must count only its own drafts. If tokens drafted from the text
// are rejected, the text must be used less often.
TEST(SuffixDraft, TheBetterPromiseIsTaken) {
  Case c = repeating(VerifyRule::kToken, -1);
  c.controller.max_k = 2;
  c.controller.prior_overlap = 0.2;
  c.controller.assumed_draft_cost = 0.5;  // drafting with the model never pays; drafting from the text costs nothing
  const Outcome o = enumerate(c);
  EXPECT_LE(o.error, 1e-6);
  EXPECT_GT(o.from_text, 0);
  EXPECT_EQ(o.max_drafted, 0);
}

}  // namespace
}  // namespace specdec::decode
