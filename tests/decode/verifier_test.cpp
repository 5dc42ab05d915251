#include "engine/decode/sampling/verifier.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {
namespace {

using Row = std::vector<float>;

// Summary over every random outcome of a verification: the expected number of accepted tokens, and the joint
// distribution of this number and the token that follows the accepted ones (`next`).
struct Summary {
  double accepted = 0;
  std::map<std::pair<int64_t, int32_t>, double> outcomes;
};
Summary all_outcomes(VerifyRule rule, std::vector<int32_t> drafted, const std::vector<Row>& p,
                     const std::vector<Row>& q) {
  VerifyInput input;
  input.drafted = drafted;
  for (const Row& row : p) input.p.push_back(row);
  for (const Row& row : q) input.q.push_back(row);
  toy::Enumerator choices;
  std::vector<float> scratch;
  Summary s;
  do {
    choices.begin();
    const VerifyResult r = verify(rule, input, choices, scratch);
    s.accepted += choices.weight() * static_cast<double>(r.accepted);
    s.outcomes[{r.accepted, r.next}] += choices.weight();
  } while (choices.advance());
  return s;
}

const VerifyRule kRules[] = {VerifyRule::kToken, VerifyRule::kBlock};

TEST(Verifier, OneTokenByHand) {
  // p/q of token 0 is 1/2, and the residual is entirely on token 1.
  for (const VerifyRule rule : kRules) {
    const Summary s = all_outcomes(rule, {0}, {{0.25, 0.75}, {0.5, 0.5}}, {{0.5, 0.5}});
    EXPECT_NEAR(s.accepted, 0.5, 1e-9);
    EXPECT_NEAR((s.outcomes.at({0, 1})), 0.5, 1e-9);
    EXPECT_EQ(s.outcomes.count({0, 0}), 0u);
    EXPECT_NEAR((s.outcomes.at({1, 0})), 0.25, 1e-9);
  }
}

TEST(Verifier, EqualDistributionsNeverReject) {
  const Row p = {0.2f, 0.3f, 0.5f};
  for (const VerifyRule rule : kRules)
    EXPECT_NEAR(all_outcomes(rule, {1, 2, 0}, {p, p, p, p}, {p, p, p}).accepted, 3, 1e-9);
}

TEST(Verifier, OneHotDraftIsAcceptedWithItsTargetProbability) {
  const Row p = {0.2f, 0.3f, 0.5f};
  for (const VerifyRule rule : kRules) {
    const Summary s = all_outcomes(rule, {1}, {p, p}, {{0, 1, 0}});
    EXPECT_NEAR(s.accepted, 0.3, 1e-6);
    EXPECT_NEAR((s.outcomes.at({0, 0})), 0.2, 1e-6);
    EXPECT_NEAR((s.outcomes.at({0, 2})), 0.5, 1e-6);
    EXPECT_EQ(s.outcomes.count({0, 1}), 0u);
  }
}

TEST(Verifier, OneHotTargetIsGreedy) {
  for (const VerifyRule rule : kRules) {
    const Row a = {1, 0}, b = {0, 1};
    const Summary right = all_outcomes(rule, {0, 1}, {a, b, a}, {a, b});
    EXPECT_EQ(right.outcomes.size(), 1u);
    EXPECT_EQ(right.outcomes.begin()->first, (std::pair<int64_t, int32_t>{2, 0}));
    const Summary wrong = all_outcomes(rule, {0, 0}, {a, b, a}, {a, a});
    EXPECT_EQ(wrong.outcomes.size(), 1u);
    EXPECT_EQ(wrong.outcomes.begin()->first, (std::pair<int64_t, int32_t>{1, 1}));
  }
}

TEST(Verifier, NothingDraftedDrawsTheTarget) {
  for (const VerifyRule rule : kRules) {
    const Summary s = all_outcomes(rule, {}, {{0.25, 0.75}}, {});
    EXPECT_NEAR((s.outcomes.at({0, 0})), 0.25, 1e-9);
    EXPECT_NEAR((s.outcomes.at({0, 1})), 0.75, 1e-9);
  }
}

TEST(Verifier, RefusesATokenTheDraftCannotHaveDrawn) {
  for (const VerifyRule rule : kRules) EXPECT_THROW(all_outcomes(rule, {0}, {{1, 0}, {1, 0}}, {{0, 1}}), Error);
}

TEST(Verifier, BlockTakesMoreOfTheDraftWhereTheFirstTokenIsShort) {
  // The draft is two tokens 0. The first has p/q = 1/2 and the second p/q = 2, so the pair is as likely under p as
  // under q. The block rule always accepts the whole pair; the token rule often rejects the first token.
  const std::vector<Row> p = {{0.25, 0.75}, {1, 0}, {0.5, 0.5}}, q = {{0.5, 0.5}, {0.5, 0.5}};
  EXPECT_NEAR(all_outcomes(VerifyRule::kToken, {0, 0}, p, q).accepted, 1.0, 1e-9);  // both tokens with probability 0.5
  const Summary block = all_outcomes(VerifyRule::kBlock, {0, 0}, p, q);
  // The block rule accepts a prefix with the product of the ratios p/q, where each product is capped at 1. The products
  // are 1/2 and min(1, 1/2 · 2) = 1, so both tokens are always accepted.
  EXPECT_NEAR(block.accepted, 2.0, 1e-9);
}

}  // namespace
}  // namespace specdec::decode
