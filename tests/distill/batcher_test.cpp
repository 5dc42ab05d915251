#include "distill/rows/batcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using specdec::testing::expect_error;
using specdec::testing::toy_rows;

std::vector<size_t> one_epoch(Batcher& batcher) {
  std::vector<size_t> seen;
  const int64_t epoch = batcher.cursor().epoch;
  for (int64_t i = 0, n = batcher.batches_in_epoch(epoch); i < n; ++i)
    for (const size_t row : batcher.next().row_index) seen.push_back(row);
  return seen;
}

TEST(Batcher, EveryRowExactlyOnceAnEpoch) {
  const auto rows = toy_rows(997, 3);
  Batcher batcher(rows, 200, 11);
  std::vector<std::vector<size_t>> epochs;
  for (int64_t e = 0; e < 3; ++e) {
    epochs.push_back(one_epoch(batcher));
    batcher.seek({e + 1, 0});
    std::vector<size_t> sorted = epochs.back();
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted.size(), rows.size());
    for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], i);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  Batcher again(rows, 200, 11), other(rows, 200, 12);
  EXPECT_EQ(one_epoch(again), epochs[0]);
  EXPECT_NE(one_epoch(other), epochs[0]);
}

TEST(Batcher, ResumesAtItsCursor) {
  const auto rows = toy_rows(100, 3);
  Batcher batcher(rows, 100, 5);
  for (int i = 0; i < 27; ++i) batcher.next();  // goes on into the second epoch
  ASSERT_EQ(batcher.cursor().epoch, 1);
  Batcher resumed(rows, 100, 5, batcher.cursor());
  for (int i = 0; i < 30; ++i) {
    const Batch a = batcher.next(), b = resumed.next();
    EXPECT_EQ(a.row_index, b.row_index);
    EXPECT_TRUE(at::equal(a.tokens, b.tokens));
  }
  EXPECT_EQ(batcher.cursor(), resumed.cursor());
  expect_error(ErrorKind::kData, {"batch cursor", "1000"}, [&] { resumed.seek({0, 1000}); });
}

TEST(Batcher, BatchesAreFullAndOfNearlyEqualLength) {
  const auto rows = toy_rows(2000, 9, 2, 40);
  Batcher batcher(rows, 400, 1);
  int64_t tokens = 0, padded = 0;
  for (int64_t i = 0, n = batcher.batches_in_epoch(0); i < n; ++i) {
    const Batch b = batcher.next();
    EXPECT_LE(b.tokens.numel(), 400);
    tokens += b.num_tokens;
    padded += b.tokens.numel();
  }
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(padded), 0.95);
  const auto long_rows = toy_rows(3, 1, 30, 30);
  Batcher tight(long_rows, 8, 1);  // a row longer than a batch is still returned
  EXPECT_EQ(tight.next().tokens.numel(), 30);
}

TEST(Batcher, LabelsAndRowsPointAtTheNextToken) {
  std::vector<TokenRow> rows(2);
  rows[0].tokens = {5, 6, 7, 8};
  rows[0].loss_mask = {1, 0, 1, 1};  // the first token is never in the loss
  rows[1].tokens = {9, 4};
  rows[1].loss_mask = {0, 1};
  const Batch b = make_batch(rows, {0, 1});
  EXPECT_TRUE(at::equal(b.tokens, at::tensor({5, 6, 7, 8, 9, 4, 0, 0}, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(b.labels, at::tensor({6, 7, 8, 0, 4, 0, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(b.rows, at::tensor({1, 2, 4}, at::kLong)));
  EXPECT_EQ(b.num_tokens, 6);
  expect_error(ErrorKind::kInternal, {"without rows"}, [&] { make_batch(rows, {}); });
}

TEST(Batcher, PreparingCutsAndDrops) {
  std::vector<TokenRow> rows(3);
  rows[0].tokens = {1, 2, 3, 4, 5};
  rows[0].loss_mask = {0, 1, 1, 1, 1};
  rows[1].tokens = {1, 2, 3, 4, 5};
  rows[1].loss_mask = {0, 0, 0, 0, 1};  // the only token with loss_mask 1 is cut off
  rows[2].tokens = {1, 2};
  rows[2].loss_mask = {1, 0};
  const PreparedRows p = prepare_rows(rows, 3);
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_EQ(p.rows[0].tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(p.loss_tokens, 2);
  EXPECT_EQ(p.tokens, 3);
  EXPECT_EQ(p.cut_rows, 2);
  EXPECT_EQ(p.cut_tokens, 4);
  EXPECT_EQ(p.empty_rows, 2);
  EXPECT_EQ(prepare_rows(rows, 0).rows.size(), 2u);
}

}  // namespace
}  // namespace specdec::distill
