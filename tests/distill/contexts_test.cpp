#include "distill/train/contexts.h"

#include <gtest/gtest.h>

#include <set>

#include "distill/rows/batcher.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/forward/memory_plan.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

HeldOut toy_held_out() {
  HeldOut out;
  out.selection = toy_rows(6, 8), out.verdict = toy_rows(24, 9);
  return out;
}

std::shared_ptr<const model::Decoder> toy_target() { return std::make_shared<model::Decoder>(toy_decoder(3, 1)); }

HeldOutAnswers answers_of(const std::shared_ptr<const model::Decoder>& target, const HeldOut& rows,
                          ContextOptions options) {
  options.eos_ids = target->config.eos_ids;
  return answer_held_out(*decode::make_model_runner(target), rows, options);
}

// Each row keeps its prompt, and gets an answer to which the target gives a high probability.
TEST(Contexts, AreTheTargetsOwnText) {
  const auto target = toy_target();
  const HeldOut before = toy_held_out();
  HeldOut after = before;
  put_answers(answers_of(target, before, {.temperature = 1, .seed = 3}), {48}, "file", after);
  ASSERT_EQ(after.verdict.size(), before.verdict.size());
  EXPECT_EQ(after.verdict_conversations, 24);
  EXPECT_EQ(after.selection_conversations, 6);
  std::set<std::vector<int32_t>> answers;
  for (size_t i = 0; i < after.verdict.size(); ++i) {
    const TokenRow &row = after.verdict[i], &old = before.verdict[i];
    EXPECT_EQ(row.id, old.id);
    EXPECT_TRUE(std::equal(old.tokens.begin(), old.tokens.begin() + old.prompt_tokens, row.tokens.begin()));
    EXPECT_EQ(learnt_positions(row), static_cast<int64_t>(row.tokens.size()) - row.prompt_tokens);
    EXPECT_LE(row.tokens.size(), 48u);
    answers.insert({row.tokens.begin() + row.prompt_tokens, row.tokens.end()});
  }
  EXPECT_GT(answers.size(), 20u);
  const double own = evaluate(*target, nullptr, after.verdict, {}).cross_entropy,
               foreign = evaluate(*target, nullptr, before.verdict, {}).cross_entropy;
  EXPECT_LT(own, foreign - 0.3) << own << " nats a token";
}

TEST(Contexts, DependOnTheSeedAlone) {
  const HeldOut rows = toy_held_out();
  const HeldOutAnswers a = answers_of(toy_target(), rows, {1, 3}), b = answers_of(toy_target(), rows, {1, 3}),
                       other = answers_of(toy_target(), rows, {1, 4});
  EXPECT_EQ(a.selection, b.selection);
  EXPECT_EQ(a.verdict, b.verdict);
  EXPECT_NE(a.verdict, other.verdict);
}

TEST(Contexts, PromptsWithoutRoomAreDropped) {
  const auto target = toy_target();
  HeldOut rows = toy_held_out();
  TokenRow& full = rows.verdict[2];
  full.tokens.resize(48, 3);
  full.loss_mask.resize(48, 1);
  full.prompt_tokens = 48;
  put_answers(answers_of(target, rows, {}), {48}, "file", rows);
  EXPECT_EQ(rows.verdict.size(), 23u);
  EXPECT_EQ(rows.verdict_conversations, 23);
}

// The memory plan does not include the KV caches of rows that are answered in one batch, so the caches must fit into
// the spare memory.
TEST(Contexts, OnlyRowsWhoseCachesFitAnswerTogether) {
  const auto target = toy_target();
  HeldOut rows = toy_held_out();
  TokenRow& longest = rows.selection[1];
  longest.tokens.resize(90, 3);
  longest.prompt_tokens = 90;
  AnswerLimits limits{.tokens = 16};
  const int64_t one = model::cache_bytes(target->config, at::kFloat, 1, 90 + 16);
  EXPECT_EQ(answers_together(*target, rows, limits, 1000 * one), 16);
  limits.is_late = [] { return false; };
  EXPECT_EQ(answers_together(*target, rows, limits, 1000 * one), 64);
  EXPECT_EQ(answers_together(*target, rows, limits, 20 * one), 20);
  EXPECT_EQ(answers_together(*target, rows, limits, 0), 16) << "as without a limit of time";
}

TEST(Contexts, AreReadAsTheyWereWritten) {
  const HeldOut rows = toy_held_out();
  const HeldOutAnswers answers = answers_of(toy_target(), rows, {});
  const Json json = Json::parse(to_json(answers).dump());
  const HeldOutAnswers back = answers_from_json(json, 24, "contexts.json");
  EXPECT_EQ(back.selection, answers.selection);
  EXPECT_EQ(back.verdict, answers.verdict);
  expect_error(ErrorKind::kData, {"contexts.json", "outside the vocabulary of 2"},
               [&] { answers_from_json(json, 2, "contexts.json"); });
  const Json odd = {{"schema", "specdec.distill_contexts/1"}, {"selection", Json::array()}, {"verdict", {{1, "a"}}}};
  expect_error(ErrorKind::kData, {"verdict", "lists of token ids"}, [&] { answers_from_json(odd, 24, "file"); });
  HeldOut fewer = rows;
  fewer.verdict.pop_back();
  expect_error(ErrorKind::kData, {"contexts.json", "expected 6 and 23", "another --out"},
               [&] { put_answers(answers, {48}, "contexts.json", fewer); });
}

}  // namespace
}  // namespace specdec::distill
