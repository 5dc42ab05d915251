#include "base/acceptance.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

TEST(Acceptance, CountsPositionsAsTheContractSays) {
  AcceptanceCounts c;
  c.add_step(3, 1, {0.9, 0.5});  // position 1 was rejected; position 2 was only drafted
  c.add_step(3, 3, {1.0, 0.75, 0.25});
  c.add_step(1, 0, {0.1});
  c.add_step(0, 0, {});
  EXPECT_EQ(c.steps, 3);
  EXPECT_EQ(c.plain_steps, 1);
  EXPECT_EQ(c.drafted, 7);
  EXPECT_EQ(c.accepted, 4);
  EXPECT_EQ(c.drafted_at, (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(c.reached_at, (std::vector<int64_t>{3, 2, 1}));
  EXPECT_EQ(c.reached(), 6);
  EXPECT_DOUBLE_EQ(c.overlap_sum(), 3.5);
  EXPECT_EQ(c.accepted_at, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_DOUBLE_EQ(c.conditional(1), 0.5);
  EXPECT_DOUBLE_EQ(c.marginal(1), 0.5);
  EXPECT_DOUBLE_EQ(c.marginal(0), 2.0 / 3);
  EXPECT_DOUBLE_EQ(c.overlap(0), 2.0 / 3);
  EXPECT_DOUBLE_EQ(c.overlap(1), 1.25 / 2);
  EXPECT_DOUBLE_EQ(c.draft_efficiency(), 4.0 / 7);
  EXPECT_DOUBLE_EQ(c.length(), 1 + 4.0 / 3);
  EXPECT_EQ(c.conditional(9), 0);
}

TEST(Acceptance, AddsCountsOfDifferentWidth) {
  AcceptanceCounts a, b;
  a.add_step(1, 1, {0.5});
  b.add_step(2, 0, {0.25});
  b.emitted = 5;
  a.add(b);
  EXPECT_EQ(a.drafted_at, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(a.reached_at, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(a.accepted_at, (std::vector<int64_t>{1, 0}));
  EXPECT_DOUBLE_EQ(a.overlap_sum_at[0], 0.75);
  EXPECT_EQ(a.emitted, 5);
  EXPECT_EQ(a.steps, 2);
}

TEST(Acceptance, RefusesContradictions) {
  AcceptanceCounts c;
  for (const auto& f :
       std::vector<std::function<void()>>{[&] { c.add_step(2, 3, {1, 1, 1}); }, [&] { c.add_step(2, 1, {1}); },
                                          [&] { c.add_step(2, 2, {1, 1, 1}); }, [&] { c.add_step(-1, 0, {}); }})
    testing::expect_error(ErrorKind::kInternal, {"a step cannot accept"}, f);
  EXPECT_EQ(c.steps, 0);
}

TEST(Acceptance, NothingMeasuredIsNotADivision) {
  const AcceptanceCounts c;
  EXPECT_EQ(c.length(), 1);
  EXPECT_EQ(c.draft_efficiency(), 0);
}

TEST(Acceptance, ExpectedLengthAndSpeedup) {
  EXPECT_NEAR(expected_length(0.8, 5), 3.68928, 1e-12);  // docs/contract.md states 3.69
  EXPECT_DOUBLE_EQ(expected_length(1.0, 5), 6);
  EXPECT_DOUBLE_EQ(expected_length(0.0, 5), 1);
  EXPECT_DOUBLE_EQ(expected_length(0.7, 0), 1);
  EXPECT_NEAR(expected_length(0.834, 5), 4, 0.01);  // the break-even for draft cost 0.6 and K = 5
  EXPECT_NEAR(predicted_speedup(expected_length(0.834, 5), 5, 0.6, 1.0), 1, 0.003);
  EXPECT_NEAR(predicted_speedup(expected_length(0.2, 5), 5, 0.05, 1.0), 1, 0.003);
}

}  // namespace
}  // namespace specdec
