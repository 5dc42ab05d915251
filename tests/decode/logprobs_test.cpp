#include "engine/decode/sampling/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {
namespace {

TEST(Logprobs, AreTheLogOfTheSoftmax) {
  std::vector<float> logits(37);
  toy::random_logits(3, 6.0)(toy::Tokens{1, 2}, logits);
  double total = 0;
  for (const float l : logits) total += std::exp(static_cast<double>(l));
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (const int count : {0, 1, 5, 20, 37}) {
    const PositionLogprobs p = logprobs_of(logits, 11, count);
    EXPECT_EQ(p.token.id, 11);
    EXPECT_NEAR(p.token.logprob, logits[11] - std::log(total), 1e-5);
    ASSERT_EQ(p.top.size(), static_cast<size_t>(count));
    for (size_t i = 0; i < p.top.size(); ++i) {
      EXPECT_EQ(p.top[i].id, order[i]);
      EXPECT_NEAR(p.top[i].logprob, logits[static_cast<size_t>(order[i])] - std::log(total), 1e-5);
    }
  }
}

TEST(Logprobs, TiesGoToTheLowerIdAndNoMassIsMinusInfinity) {
  const float none = -std::numeric_limits<float>::infinity();
  const PositionLogprobs p = logprobs_of(std::vector<float>{none, 1, 1, 1, none}, 0, 4);
  EXPECT_EQ(p.token.logprob, none);
  EXPECT_EQ(p.top[0].id, 1);
  EXPECT_EQ(p.top[1].id, 2);
  EXPECT_EQ(p.top[2].id, 3);
  EXPECT_EQ(p.top[3].id, 0);
  EXPECT_NEAR(p.top[0].logprob, -std::log(3.0), 1e-6);
  EXPECT_THROW(logprobs_of(std::vector<float>{none, none}, 0, 1), Error);
}

}  // namespace
}  // namespace specdec::decode
