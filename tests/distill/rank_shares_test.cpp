#include <gtest/gtest.h>

#include "distill/rows/batcher.h"
#include "distill/train/evaluate.h"
#include "tests/distill/toy.h"
#include "tests/parallel/rank_threads.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;
using parallel::Ranks;

TEST(RankShares, EveryRowOfAStepGoesToOneRank) {
  const auto rows = toy_rows(60, 3, 4, 40);
  for (const int ranks : {1, 2, 3, 7}) {
    Batcher one(rows, 90, 5);
    std::vector<Batcher> all(static_cast<size_t>(ranks), Batcher(rows, 90, 5));
    for (int step = 0; step < 30; ++step) {
      std::multiset<size_t> expected, found;
      int64_t learnt = 0, most = 0, tokens = 0;
      const BatchCursor before = one.cursor();
      for (int i = 0; i < 3; ++i) {
        const Batch batch = one.next();
        expected.insert(batch.row_index.begin(), batch.row_index.end());
        learnt += batch.rows.numel();
      }
      for (int r = 0; r < ranks; ++r) {
        Batcher& batcher = all[static_cast<size_t>(r)];
        EXPECT_EQ(batcher.cursor(), before);
        const StepShare share = batcher.next_step(3, r, ranks);
        EXPECT_EQ(share.learnt, learnt) << "over all ranks";
        int64_t own = 0;
        for (const Batch& batch : share.batches) {
          found.insert(batch.row_index.begin(), batch.row_index.end());
          own += batch.num_tokens;
          EXPECT_LE(batch.tokens.numel(), 90);
        }
        tokens += own;
        most = std::max(most, own);
        EXPECT_EQ(batcher.cursor(), one.cursor());
      }
      EXPECT_EQ(found, expected);
      EXPECT_LE(most, tokens / ranks + 40) << "no rank has more than a row above its share";
    }
  }
}

TEST(RankShares, AStepOfOneRowLeavesOtherRanksWithoutWork) {
  const auto rows = toy_rows(4, 3, 30, 30);
  Batcher batcher(rows, 30, 5), other = batcher;
  EXPECT_EQ(batcher.next_step(1, 0, 2).batches.size(), 1u);
  const StepShare none = other.next_step(1, 1, 2);
  EXPECT_TRUE(none.batches.empty());
  EXPECT_EQ(none.learnt, learnt_positions(rows[0]));
}

TEST(RankShares, AnEvaluationOverRanksHasTheBitsOfOneProcess) {
  const auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  const model::Decoder draft = toy_decoder(2, 2);
  const auto rows = toy_rows(30, 6);
  for (const bool with_target : {true, false}) {
    const auto score = [&](const Ranks& ranks, const EvaluationStep& step) {
      return evaluate(draft, with_target ? target.get() : nullptr, rows,
                      {.batch_tokens = 60, .step = step, .ranks = &ranks});
    };
    const Evaluation alone = score(Ranks::alone(), {});
    const auto errors = as_ranks(2, [&](const Ranks& ranks) {
      int calls = 0;
      const Evaluation e = score(ranks, [&](double share) {
        ++calls;
        EXPECT_LE(share, 1);
      });
      EXPECT_GT(calls, 0);
      EXPECT_EQ(e.tokens, alone.tokens);
      EXPECT_EQ(e.cross_entropy, alone.cross_entropy);
      EXPECT_EQ(std::isnan(e.acceptance), !with_target);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(e.rows[i].cross_entropy, alone.rows[i].cross_entropy);
        EXPECT_EQ(e.rows[i].tokens, alone.rows[i].tokens);
        EXPECT_EQ(e.rows[i].stretch_tokens, alone.rows[i].stretch_tokens);
        if (!with_target) continue;
        EXPECT_EQ(e.rows[i].acceptance, alone.rows[i].acceptance);
        EXPECT_EQ(e.rows[i].stretch_acceptance, alone.rows[i].stretch_acceptance);
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(2, ""));
  }
}

}  // namespace
}  // namespace specdec::distill
