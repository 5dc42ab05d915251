#include "deploy/validate/rollout_figures.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/lossless/toy.h"

namespace specdec::deploy {
namespace {

using decode::roll_out;
using decode::Rollout;
using decode::RolloutOptions;
using decode::toy::Model;
using decode::toy::random_logits;

// Makes logits that depend only on the last token, so that the expected figures can be computed by hand.
Model::Logits table_logits(uint64_t seed, double spread) {
  const Model::Logits random = random_logits(seed, spread);
  return [random](std::span<const int32_t> context, std::span<float> logits) { random(context.last(1), logits); };
}
TokenRow row(const std::string& id, const std::string& conversation, std::vector<int32_t> prompt) {
  TokenRow r;
  r.id = id;
  r.conversation = conversation;
  r.tokens = std::move(prompt);
  r.prompt_tokens = static_cast<int64_t>(r.tokens.size());
  r.tokens.push_back(1);
  r.loss_mask.assign(r.tokens.size(), 1);
  return r;
}
std::vector<TokenRow> rows(int n) {
  std::vector<TokenRow> out;
  for (int i = 0; i < n; ++i) out.push_back(row("r" + std::to_string(i), "c" + std::to_string(i / 2), {i % 4, 3}));
  return out;
}

TEST(RolloutFigures, CountsAreConsistentAndAnswersAreFull) {
  Model target(7, table_logits(1, 2)), draft(7, table_logits(2, 2));
  RolloutOptions o;
  o.k = 3;
  o.request.max_tokens = 20;
  const auto data = rows(12);
  const auto out = roll_out(target, &draft, data, o);
  for (const Rollout& r : out) {
    EXPECT_EQ(r.tokens.size(), 20u);
    EXPECT_EQ(r.counts.emitted, 20);
    EXPECT_EQ(r.counts.accepted + r.counts.steps + r.counts.plain_steps,
              20);  // K is reduced near the end of the answer, so no token is cut off
  }
  EXPECT_EQ(target.open_sequences(), 0u);
  EXPECT_EQ(draft.open_sequences(), 0u);
  const std::vector<size_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const RolloutFigures f = rollout_figures(data, out, all, o);
  EXPECT_EQ(f.k, 3);
  EXPECT_EQ(f.verify, "token");
  EXPECT_EQ(f.alpha.n, 6);  // counts conversations, not requests
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(f.counts.accepted_at[i], f.counts.reached_at[i]);
    if (i > 0) {
      EXPECT_LE(f.counts.reached_at[i], f.counts.accepted_at[i - 1]);
    }
  }
}

TEST(RolloutFigures, ADraftLikeTheTargetIsAlwaysAccepted) {
  Model target(5, random_logits(3)), draft(5, random_logits(3));
  RolloutOptions o;
  o.k = 4;
  o.request.max_tokens = 25;
  const auto data = rows(4);
  const auto out = roll_out(target, &draft, data, o);
  for (const Rollout& r : out) EXPECT_EQ(r.counts.accepted, r.counts.drafted);
  const auto overlap = overlap_by_position(data, out);
  ASSERT_EQ(overlap.size(), 4u);
  for (const Estimate& e : overlap) EXPECT_NEAR(e.value, 1, 1e-6);
}

// Compares the measured overlap with Σ min(p, q), computed from the logits over the contexts that the roll-outs
// reached.
TEST(RolloutFigures, OverlapIsTheModelsOverlap) {
  Model target(4, [](std::span<const int32_t>, std::span<float> l) {
    for (size_t i = 0; i < 4; ++i) l[i] = std::log(std::array{0.4f, 0.3f, 0.2f, 0.1f}[i]);
  });
  Model draft(4, [](std::span<const int32_t>, std::span<float> l) {
    for (size_t i = 0; i < 4; ++i) l[i] = std::log(std::array{0.1f, 0.2f, 0.3f, 0.4f}[i]);
  });
  RolloutOptions o;
  o.k = 2;
  o.request.max_tokens = 400;
  const auto data = rows(8);
  const auto out = roll_out(target, &draft, data, o);
  const auto overlap = overlap_by_position(data, out);
  for (const Estimate& e : overlap) EXPECT_NEAR(e.value, 0.6, 1e-6);
  const std::vector<size_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const RolloutFigures f = rollout_figures(data, out, all, o);
  EXPECT_NEAR(f.alpha.value, 0.6, 1e-6);
  EXPECT_NEAR(f.counts.conditional(0), 0.6, 0.05);  // about 1500 steps, so the standard deviation is 0.013
}

}  // namespace
}  // namespace specdec::deploy
