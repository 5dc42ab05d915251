// Checks that two commands reproduce the 200 TinyStories texts on which the reference acceptance figures were computed.
#include "data/stats.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

class Stories : public testing::Test {
 protected:
  void SetUp() override {
    shared_ = shared_directory();
    if (shared_.empty()) GTEST_SKIP() << "no shared data (set SPECDEC_SHARED)";
  }
  IngestOptions options(const std::string& out) const {
    IngestOptions o = ingest_options(shared_ / "data/tinystories-text/tinystories_sample_2MB.txt",
                                     shared_ / "data/models/stories260K", scratch_ / out);
    o.min_chars = 101;
    o.max_length = 256;
    o.redact = o.dedup = false;
    return o;
  }
  fs::path shared_;
  Scratch scratch_;
};

TEST_F(Stories, HoldOutHasTheReferencePredictedTokens) {
  IngestOptions o = options("holdout");
  o.limit = 200;
  o.holdout = 1;
  const IngestResult result = ingest(o, {});
  const DataStats stats = data_stats(o.out);
  EXPECT_EQ(stats.splits.at("holdout").rows, 200);
  EXPECT_EQ(stats.splits.count("train"), 0u);
  EXPECT_EQ(stats.predicted_tokens, 50651);
  EXPECT_EQ(stats.splits.at("holdout").loss_tokens, 50651);
  EXPECT_EQ(stats.length_max, 256);
  EXPECT_NE(result.index.target_id, std::string(64, '0'));
  for (const TokenRow& row : ShardReader(o.out).rows("holdout")) {
    EXPECT_EQ(row.tokens[0], 1);
    EXPECT_EQ(row.prompt_tokens, 17);
  }
}

TEST_F(Stories, SkipGivesTheStoriesAfterThose) {
  IngestOptions o = options("all");
  o.holdout_count = 200;
  o.holdout_rule = "first";
  ingest(o, {});
  IngestOptions train = options("train");
  train.skip = 200;
  const IngestResult result = ingest(train, {});
  EXPECT_EQ(result.report.skipped, 200);
  const auto expected = ShardReader(o.out).rows("train"), found = ShardReader(train.out).rows("all");
  ASSERT_EQ(expected.size(), found.size());
  ASSERT_GT(found.size(), 1000u);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(expected[i].tokens, found[i].tokens) << i;
  const DataStats both = data_stats(o.out);
  EXPECT_EQ(both.splits.at("holdout").loss_tokens, 50651);
  EXPECT_GT(both.bigram_coverage, 0.9);
  EXPECT_LT(both.bigram_coverage, 1.0);
}

}  // namespace
}  // namespace specdec::data
