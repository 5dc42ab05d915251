#include "engine/decode/rollout.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {
namespace {

using toy::Model;
using toy::random_logits;

TokenRow prompt_row(const std::string& id, const std::string& conversation, std::vector<int32_t> prompt) {
  TokenRow r;
  r.id = id;
  r.conversation = conversation;
  r.tokens = std::move(prompt);
  r.prompt_tokens = static_cast<int64_t>(r.tokens.size());
  r.tokens.push_back(1);
  r.loss_mask.assign(r.tokens.size(), 1);
  return r;
}
std::vector<TokenRow> prompt_rows(int n) {
  std::vector<TokenRow> out;
  for (int i = 0; i < n; ++i)
    out.push_back(prompt_row("r" + std::to_string(i), "c" + std::to_string(i / 2), {i % 4, 3}));
  return out;
}

TEST(Rollout, AnswersDoNotDependOnTheNeighbours) {
  const auto data = prompt_rows(10);
  RolloutOptions o;
  o.k = 3;
  o.request.max_tokens = 15;
  std::vector<std::vector<Rollout>> runs;
  for (const int batch : {1, 4, 10}) {
    Model target(7, random_logits(1)), draft(7, random_logits(2));
    o.batch = batch;
    runs.push_back(roll_out(target, &draft, data, o));
  }
  for (size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(runs[0][i].tokens, runs[1][i].tokens);
    EXPECT_EQ(runs[0][i].tokens, runs[2][i].tokens);
  }
  o.seed = 5;
  Model target(7, random_logits(1)), draft(7, random_logits(2));
  EXPECT_NE(roll_out(target, &draft, data, o)[0].tokens, runs[0][0].tokens);
}

TEST(Rollout, StopsAtEosAndCountsWhatWasEmitted) {
  // Token 2 is certain after token 1, and token 1 is certain after any other token.
  const Model::Logits logits = [](std::span<const int32_t> x, std::span<float> l) {
    std::fill(l.begin(), l.end(), -30.f);
    l[x.back() == 1 ? 2 : 1] = 30.f;
  };
  Model target(4, logits), draft(4, logits);
  RolloutOptions o;
  o.k = 3;
  o.request.eos_ids = {2};
  const std::vector<TokenRow> data = {prompt_row("a", "", {0})};
  const auto out = roll_out(target, &draft, data, o);
  EXPECT_EQ(out[0].tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(out[0].counts.accepted, 3);  // counted before the answer was cut
  EXPECT_EQ(out[0].counts.emitted, 2);
}

TEST(Rollout, PromptsWithoutRoomAreLeftOut) {
  Model target(4, random_logits(1), 6), draft(4, random_logits(2), 6);
  std::vector<TokenRow> data = {prompt_row("long", "", {0, 1, 2, 3, 0, 1}), prompt_row("short", "", {0})};
  RolloutOptions o;
  o.k = 2;
  const auto out = roll_out(target, &draft, data, o);
  EXPECT_TRUE(out[0].tokens.empty());
  EXPECT_EQ(out[1].tokens.size(), 5u);
}

TEST(Rollout, AnswersReplaceTheOldOnes) {
  TokenRow r = prompt_row("a", "c", {5, 6});
  const TokenRow answered = answered_row(r, {{7, 8, 9}, {}});
  EXPECT_EQ(answered.tokens, (std::vector<int32_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(answered.loss_mask, (std::vector<uint8_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(answered.prompt_tokens, 2);
  EXPECT_EQ(answered.conversation, "c");
}

TEST(Rollout, BadTokensNameTheRow) {
  Model target(4, random_logits(1)), draft(4, random_logits(2));
  const std::vector<TokenRow> data = {prompt_row("the-row", "", {9})};
  try {
    roll_out(target, &draft, data, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(e.what()).find("the-row"), std::string::npos);
  }
}

}  // namespace
}  // namespace specdec::decode
