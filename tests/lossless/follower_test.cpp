// Enumerates the step with a draft that reads hidden states of the target: chains, trees, batches, passes that do not
// fit, and texts of one token, after which such a draft has no distribution.
#include <gtest/gtest.h>

#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

constexpr double kFollowedExact = 1e-6;

Case following(int k, VerifyRule rule) {
  Case c;
  c.follows = true;
  c.prompt = {1, 2};
  c.controller.fixed_k = k;
  c.rule = rule;
  return c;
}

Outcome expect_followed(const Case& c, const std::string& what) {
  const Outcome o = enumerate(c);
  EXPECT_LE(o.error, kFollowedExact) << what << " after " << o.runs << " outcomes";
  EXPECT_NEAR(o.mass, 1, kFollowedExact) << what;
  return o;
}

const VerifyRule kChainRules[] = {VerifyRule::kToken, VerifyRule::kBlock};

TEST(Follower, EveryRuleAndK) {
  for (const VerifyRule rule : kChainRules)
    for (int k = 1; k <= 3; ++k) {
      const Outcome o = expect_followed(following(k, rule), to_string(rule) + " K=" + std::to_string(k));
      EXPECT_EQ(o.min_drafted, k);
      EXPECT_GT(o.accepted, 0.2);
    }
}

TEST(Follower, Trees) {
  for (const std::vector<int>& tree : std::vector<std::vector<int>>{{2}, {1, 2}, {2, 1}, {1, 1, 1}})
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget}) {
      Case c = following(static_cast<int>(tree.size()), rule);
      c.tree = tree;
      c.length = 2;
      const Outcome o = expect_followed(c, to_string(rule) + " tree of " + std::to_string(tree.size()));
      EXPECT_EQ(o.max_drafted, static_cast<int>(tree.size()));
    }
}

// After a text of one token the draft has no state to read, so it drafts from the second step on.
TEST(Follower, TextsOfOneToken) {
  for (const VerifyRule rule : kChainRules) {
    Case c = following(2, rule);
    c.prompt = {};
    const Outcome o = expect_followed(c, to_string(rule));
    EXPECT_EQ(o.min_drafted, 0);
    EXPECT_EQ(o.max_drafted, 2);
  }
}

TEST(Follower, BatchesAndPassesThatDoNotFit) {
  for (const VerifyRule rule : kChainRules) {
    Case c = following(2, rule);
    c.length = 2;
    c.sequences = 2;
    expect_followed(c, "two sequences, " + to_string(rule));
    c.room = 4;  // the tokens of both sequences together do not fit into a target pass
    const Outcome o = expect_followed(c, "little room, " + to_string(rule));
    EXPECT_GT(o.without_room, 0);
    c.sequences = 1;
    c.room = 2;  // a target pass has room for 2 tokens, so the deepest drafted level must be dropped
    EXPECT_GT(expect_followed(c, "less room, " + to_string(rule)).without_room, 0);
  }
}

TEST(Follower, SamplingOptionsRulesAndText) {
  Case c = following(2, VerifyRule::kToken);
  c.sampling = {.temperature = 0};
  expect_followed(c, "greedy");
  c.sampling = {.temperature = 0.7, .top_k = 2};
  expect_followed(c, "top-k");
  c.sampling = {};
  c.rules.presence_penalty = 1.3;
  c.rules.bad_words = {{2, 0}};
  expect_followed(c, "rules");
  c.rules = {};
  c.suffix = true;
  c.prompt = {0, 1, 0, 1};
  expect_followed(c, "drafts from the text");
}

// The draft must read the prompt while the target prefills it, whatever the chunk size.
TEST(Follower, ReadsAlongWithThePrefill) {
  for (const int64_t chunk : {1, 3, 512}) {
    toy::Model target(5, toy::random_logits(1));
    toy::Follower draft(target, 5);
    Stepper stepper(target, &draft);
    Request request{{1, 2, 3, 4, 0, 1, 2}, 0, {.max_tokens = 20}};
    Sequence s(stepper, request, drafting({.k = 3}));
    stepper.start(s, chunk);
    EXPECT_EQ(draft.length(s.draft_id()), 6) << "all tokens but the last";
    Sequence* batch[] = {&s};
    stepper.step(batch);
    EXPECT_EQ(s.outcome().drafted, 3);
  }
}

// A sequence with a copied prompt also drafts, even if the original sequence has continued.
TEST(Follower, CopiedPrompts) {
  toy::Model target(5, toy::random_logits(1));
  toy::Follower draft(target, 5);
  Stepper stepper(target, &draft);
  const Request request{{1, 2, 3, 4}, 0, {.max_tokens = 20}};
  Sequence first(stepper, request, drafting({.k = 2})), second(stepper, request, drafting({.k = 2}));
  stepper.start(first);
  Sequence *one[] = {&first}, *two[] = {&second};
  for (int i = 0; i < 3; ++i) stepper.step(one);
  stepper.open(second, &first);
  while (stepper.pending_prefill(second) > 0) stepper.prefill(second, 512);
  stepper.step(two);
  EXPECT_EQ(second.outcome().drafted, 2);
}

// If the target's states are lost, the draft drafts nothing, and the text continues with plain decoding.
TEST(Follower, LostStatesMeanPlainDecoding) {
  toy::Model target(5, toy::random_logits(1));
  toy::Follower draft(target, 5);
  Stepper stepper(target, &draft);
  Sequence s(stepper, {{1, 2, 3, 4}, 0, {.max_tokens = 20}}, drafting({.k = 2}));
  stepper.start(s);
  Sequence* batch[] = {&s};
  stepper.step(batch);
  EXPECT_EQ(s.outcome().drafted, 2);
  const SequenceId fresh = draft.open();
  EXPECT_EQ(draft.follow(fresh, s.target_id()), 0) << "the target passed tokens before";
  draft.close(fresh);
}

// A shadow draft that reads states must score each position as if it had drafted there: a shadow equal to the serving
// draft must get the same overlaps. Before scoring, the shadow reads the tokens that the target has run since the last
// scoring.
TEST(Follower, OnTrialScoresWhatItWouldDraft) {
  struct Way {
    double temperature;
    std::vector<int> tree;
  };
  for (const Way& way : {Way{0, {}}, Way{1, {}}, Way{1, {2, 1, 1}}}) {
    toy::Model target(6, toy::random_logits(1));
    toy::Follower serving(target, 5), shadow(target, 5), other(target, 8);
    Stepper stepper(target, &serving);
    int64_t scored = 0, differing = 0;
    for (CausalModel* const on_trial : {&shadow, &other}) {
      Drafting drafts = drafting({.k = 3, .tree = way.tree});
      drafts.shadow = on_trial;
      Sequence s(stepper, {{1, 2}, 3, {.max_tokens = 60, .sampling = {.temperature = way.temperature}}}, drafts);
      stepper.start(s);
      Sequence* const batch[] = {&s};
      while (s.remaining() > 0) {
        stepper.step(batch);
        const auto& [own, scores] = std::tie(s.outcome().overlaps, s.outcome().shadow_overlaps);
        ASSERT_EQ(scores.size(), own.size());
        if (on_trial == &other) {
          differing += scores != own;
          continue;
        }
        for (size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(scores[i], own[i], 1e-9) << "position " << i;
        scored += own.size() > 1;
      }
      stepper.close(s);
    }
    EXPECT_GT(scored, 5) << "positions beyond the first one";
    EXPECT_GT(differing, 5) << "another draft scores in another way";
  }
}

// A shadow draft (a second draft on trial) scores all sequences of a request with several answers.
TEST(Follower, OnTrialWithCopiedPrompts) {
  toy::Model target(5, toy::random_logits(1));
  toy::Follower serving(target, 5), shadow(target, 5);
  Stepper stepper(target, &serving);
  Drafting drafts = drafting({.k = 2});
  drafts.shadow = &shadow;
  const Request request{{1, 2, 3, 4}, 0, {.max_tokens = 20}};
  Sequence first(stepper, request, drafts), second(stepper, request, drafts),
      apart(stepper, request, drafting({.k = 2}));
  stepper.start(first);
  Sequence *one[] = {&first}, *two[] = {&second}, *three[] = {&apart};
  for (int i = 0; i < 3; ++i) stepper.step(one);
  for (Sequence* s : {&second, &apart}) {
    stepper.open(*s, &first);
    while (stepper.pending_prefill(*s) > 0) stepper.prefill(*s, 512);
  }
  stepper.step(two), stepper.step(three);
  EXPECT_FALSE(second.outcome().overlaps.empty());
  EXPECT_EQ(second.outcome().shadow_overlaps, second.outcome().overlaps);
  EXPECT_TRUE(apart.outcome().shadow_overlaps.empty());
  for (Sequence* s : {&first, &second, &apart}) stepper.close(*s);
}

}  // namespace
}  // namespace specdec::decode
