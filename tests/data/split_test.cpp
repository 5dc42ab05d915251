#include "data/select/split.h"

#include <algorithm>
#include <set>

#include "tests/data/toy.h"

namespace specdec::data {
namespace {

int64_t held_out(const SplitResult& r) { return std::count(r.holdout.begin(), r.holdout.end(), true); }

// Returns the rows of 1,000 interleaved conversations, each of 1 to 3 rows.
std::vector<SplitRow> interleaved() {
  std::vector<SplitRow> rows;
  for (int turn = 0; turn < 3; ++turn)
    for (int c = 0; c < 1000; ++c)
      if (turn <= c % 3) rows.push_back({conversation_key("c" + std::to_string(c)), 1000 + c * 10 + turn * 3, false});
  return rows;
}

TEST(Split, NoConversationIsEverInBothSplits) {
  const auto rows = interleaved();
  for (const char* rule : {"auto", "time", "hash", "first"}) {
    const SplitResult r = split_rows(rows, {0.05, 0, rule, 3});
    std::set<uint64_t> train, holdout;
    for (size_t i = 0; i < rows.size(); ++i) (r.holdout[i] ? holdout : train).insert(rows[i].conversation);
    EXPECT_EQ(holdout.size(), 50u) << rule;
    for (const uint64_t c : holdout) EXPECT_EQ(train.count(c), 0u) << rule;
  }
}

TEST(Split, TimeTakesTheLatestConversations) {
  const auto rows = interleaved();
  const SplitResult r = split_rows(rows, {0.01, 0, "auto", 0});
  EXPECT_EQ(r.rule, "time");
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(r.holdout[i], rows[i].time >= 1000 + 990 * 10) << i;
}

TEST(Split, OneRowWithoutTimeMakesAutoUseTheHashAndTimeAnError) {
  auto rows = interleaved();
  rows[5].time = 0;
  EXPECT_EQ(split_rows(rows, {0.05, 0, "auto", 0}).rule, "hash");
  EXPECT_THROW(split_rows(rows, {0.05, 0, "time", 0}), Error);
  rows[5].forced_holdout = true;  // a forced hold-out row needs no time
  EXPECT_EQ(split_rows(rows, {0.05, 0, "auto", 0}).rule, "time");
}

TEST(Split, HashDependsOnTheSeedAndNotOnTheOrder) {
  auto rows = interleaved();
  const SplitResult a = split_rows(rows, {0.1, 0, "hash", 1});
  EXPECT_EQ(a.holdout, split_rows(rows, {0.1, 0, "hash", 1}).holdout);
  EXPECT_NE(a.holdout, split_rows(rows, {0.1, 0, "hash", 2}).holdout);
  std::reverse(rows.begin(), rows.end());
  auto reversed = split_rows(rows, {0.1, 0, "hash", 1}).holdout;
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(a.holdout, reversed);
}

TEST(Split, GrowingDataMovesFewConversations) {
  std::vector<SplitRow> rows;
  for (int c = 0; c < 1000; ++c) rows.push_back({conversation_key(std::to_string(c)), 0, false});
  const auto before = split_rows(rows, {0.1, 0, "hash", 0}).holdout;
  for (int c = 1000; c < 1100; ++c) rows.push_back({conversation_key(std::to_string(c)), 0, false});
  const auto after = split_rows(rows, {0.1, 0, "hash", 0}).holdout;
  int moved = 0;
  for (size_t i = 0; i < before.size(); ++i) moved += before[i] != after[i];
  EXPECT_LE(moved, 15);
}

TEST(Split, CountsAndBounds) {
  const auto rows = interleaved();
  EXPECT_EQ(held_out(split_rows(rows, {1, 0, "hash", 0})), static_cast<int64_t>(rows.size()));
  EXPECT_EQ(held_out(split_rows(rows, {0, 0, "hash", 0})), 0);
  const SplitResult first = split_rows(rows, {0, 4, "first", 0});
  EXPECT_EQ(held_out(first), 1 + 2 + 3 + 1);
  EXPECT_TRUE(first.holdout[0] && first.holdout[3] && !first.holdout[4]);
  EXPECT_EQ(held_out(split_rows(rows, {0.5, 5000, "first", 0})), static_cast<int64_t>(rows.size()));
  // Of two conversations one is held out, although 5 % of 2 rounds to 0. A single conversation is used for training.
  EXPECT_EQ(held_out(split_rows({{1, 0, false}, {2, 0, false}}, {0.05, 0, "hash", 0})), 1);
  EXPECT_EQ(held_out(split_rows({{1, 0, false}}, {0.05, 0, "hash", 0})), 0);
  EXPECT_TRUE(split_rows({}, {}).holdout.empty());
}

TEST(Split, ForcedRowsTakeTheirConversationAlong) {
  auto rows = interleaved();
  rows[0].forced_holdout = true;
  const SplitResult r = split_rows(rows, {0, 0, "hash", 0});
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(r.holdout[i], rows[i].conversation == rows[0].conversation);
}

TEST(Shuffle, IsAPermutationOfTheSeed) {
  const auto order = shuffled_order(1000, 7);
  EXPECT_EQ(order, shuffled_order(1000, 7));
  EXPECT_NE(order, shuffled_order(1000, 8));
  EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 1000u);
  EXPECT_TRUE(shuffled_order(0, 1).empty());
}

}  // namespace
}  // namespace specdec::data
