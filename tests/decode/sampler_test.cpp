#include "engine/decode/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace specdec::decode {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> run(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<float> probs(logits.size(), -1.f);
  std::vector<int32_t> scratch;
  distribution(logits, options, probs, scratch);
  return probs;
}

std::vector<int32_t> kept(const std::vector<float>& probs) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < probs.size(); ++i)
    if (probs[i] > 0) ids.push_back(static_cast<int32_t>(i));
  return ids;
}

// Computes the distribution by its definition, step by step, with full sorts.
std::vector<double> reference(const std::vector<float>& logits, const SamplingOptions& o) {
  const size_t n = logits.size();
  std::vector<double> p(n);
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto normalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
  };
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < n; ++i) p[i] = std::exp((logits[i] - largest) / o.temperature);
  normalise();
  if (o.top_k > 0) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    for (size_t i = static_cast<size_t>(o.top_k); i < n; ++i) p[order[i]] = 0;
    normalise();
  }
  if (o.top_p < 1) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[a] > p[b]; });
    double mass = 0;
    for (const int32_t id : order) {
      if (mass >= o.top_p) p[id] = 0;
      mass += p[id];
    }
    normalise();
  }
  const double best = *std::max_element(p.begin(), p.end());
  for (double& x : p)
    if (x < o.min_p * best) x = 0;
  normalise();
  return p;
}

TEST(Sampler, MatchesTheDefinition) {
  const SamplingOptions options[] = {{},
                                     {.temperature = 0.3},
                                     {.temperature = 2},
                                     {.top_k = 1},
                                     {.top_k = 40},
                                     {.top_k = 300},
                                     {.top_p = 0.9},
                                     {.top_p = 0.1},
                                     {.top_p = 0.999},
                                     {.min_p = 0.05},
                                     {.temperature = 0.7, .top_k = 50, .top_p = 0.95, .min_p = 0.02},
                                     {.temperature = 1.5, .top_k = 400, .top_p = 0.6}};
  for (const size_t vocab : {5, 512, 4000})
    for (uint64_t seed = 0; seed < 4; ++seed) {
      std::vector<float> logits(vocab);
      for (size_t i = 0; i < vocab; ++i)
        logits[i] = static_cast<float>(8 * philox_uniform(seed, vocab, i) * philox_uniform(seed, 1, i));
      for (const SamplingOptions& o : options) {
        const auto expected = reference(
            logits, o.top_k > static_cast<int64_t>(vocab) ? SamplingOptions{o.temperature, 0, o.top_p, o.min_p} : o);
        const auto found = run(logits, o);
        for (size_t i = 0; i < vocab; ++i)
          ASSERT_NEAR(found[i], expected[i], 1e-6)
              << "V=" << vocab << " seed " << seed << " T=" << o.temperature << " k=" << o.top_k << " p=" << o.top_p
              << " m=" << o.min_p << " id " << i;
      }
    }
}

TEST(Sampler, ExponentialsAreExactToAFewUlp) {
  // With two tokens whose logits are 0 and x, probs[1] / probs[0] = e^x.
  for (int i = 0; i < 20000; ++i) {
    const float x = -86.f * static_cast<float>(i) / 20000.f;
    const auto probs = run({0, x, -200.f}, {});
    ASSERT_NEAR(probs[1] / probs[0] / std::exp(static_cast<double>(x)), 1, 5e-7) << x;
    ASSERT_EQ(probs[2], 0.f);
  }
}

TEST(Sampler, MayOverwriteItsInput) {
  std::vector<float> logits = {0.5f, 2.f, -1.f, 1.f}, in_place = logits;
  const SamplingOptions o{.temperature = 0.8, .top_k = 3, .top_p = 0.95};
  std::vector<int32_t> scratch;
  distribution(in_place, o, in_place, scratch);
  EXPECT_EQ(in_place, run(logits, o));
}

TEST(Sampler, TiesKeepTheLowerIds) {
  EXPECT_EQ(kept(run({1, 3, 3, 3, 0}, {.top_k = 2})), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(kept(run(std::vector<float>(6, 0.f), {.top_p = 0.5})), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(kept(run({1, 7, 7}, {.temperature = 0})), (std::vector<int32_t>{1}));
  // Among equal values the smallest ids are kept, also for large k, for which the sampler uses a selection instead of a
  // heap.
  EXPECT_EQ(kept(run(std::vector<float>(600, 1.f), {.top_k = 300})).back(), 299);
  EXPECT_EQ(argmax(std::vector<float>{2, 5, 5}), 1);
}

TEST(Sampler, OptionsAtTheirEnds) {
  const std::vector<float> logits = {0, 1, 2};
  EXPECT_EQ(run(logits, {.top_k = 3}), run(logits, {}));
  EXPECT_EQ(run(logits, {.top_k = 1000000}), run(logits, {}));
  EXPECT_EQ(kept(run(logits, {.top_p = 1e-12})), (std::vector<int32_t>{2}));
  EXPECT_EQ(kept(run(logits, {.min_p = 0.999})), (std::vector<int32_t>{2}));
  EXPECT_EQ(run(logits, {.temperature = 1e-9}), (std::vector<float>{0, 0, 1}));
  EXPECT_EQ(run({3.f}, {}), (std::vector<float>{1}));
}

// Any finite logits with any options give a distribution, even at temperatures far below the limits that flags and
// requests are checked against.
TEST(Sampler, IsADistributionAtEveryExtreme) {
  constexpr float most = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<std::vector<float>> rows = {
      {0, 0, 0},        {0, -1, 1},           {-most, 0, most},      {most, most, -most}, {-most, -most, -most},
      {tiny, -tiny, 0}, {-kInf, -most, most}, {1e30f, 1e30f, -kInf}, {-kInf, -kInf, 0},   {80, -80, 81}};
  for (const std::vector<float>& row : rows)
    for (const double temperature : {5e-324, 1e-310, 1e-60, 1e-40, 1.1754943508222875e-38, 1e-20, 1e-3, 1.0, 2.0, 10.0})
      for (const int64_t top_k : {0, 1, 2, 300})
        for (const double top_p : {5e-324, 1e-40, 0.5, 1.0})
          for (const double min_p : {0.0, 5e-324, 0.5, 0.99999999999999989}) {
            const auto probs = run(row, {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
            const double total = std::accumulate(probs.begin(), probs.end(), 0.0);
            ASSERT_NEAR(total, 1, 1e-6) << "T=" << temperature << " k=" << top_k << " p=" << top_p << " min=" << min_p
                                        << " first logit " << row[0];
            for (size_t i = 0; i < row.size(); ++i) {
              ASSERT_TRUE(probs[i] >= 0 && probs[i] <= 1);
              ASSERT_TRUE(row[i] != -kInf || probs[i] == 0);
            }
            ASSERT_EQ(probs[static_cast<size_t>(argmax(row))], *std::max_element(probs.begin(), probs.end()));
          }
}

TEST(Sampler, MaskedTokensGetNothing) {
  const auto probs = run({-kInf, 1, -kInf, 0}, {.top_k = 3, .top_p = 0.9999});
  EXPECT_EQ(kept(probs), (std::vector<int32_t>{1, 3}));
  EXPECT_NEAR(probs[1] + probs[3], 1, 1e-6);
}

TEST(Sampler, RefusesLogitsThatAreNoDistribution) {
  for (const SamplingOptions& o : {SamplingOptions{}, SamplingOptions{.temperature = 0}, SamplingOptions{.top_k = 1}}) {
    EXPECT_THROW(run({0, kNaN, 1}, o), Error);
    EXPECT_THROW(run({kNaN, kNaN}, o), Error);
    EXPECT_THROW(run({0, kInf}, o), Error);
    EXPECT_THROW(run({-kInf, -kInf}, o), Error);
  }
  EXPECT_THROW(argmax(std::vector<float>{}), Error);
}

TEST(Sampler, ArgmaxIsTheLowestOfTheLargestWhereverItIs) {
  PhiloxStream random(21, 0);
  for (size_t i = 0; i < 5000; ++i) {
    std::vector<float> row(1 + i % 100);
    for (float& x : row) x = std::array{-kInf, -2.0f, -1e-40f, -0.0f, 0.0f, 1e-40f, 3.0f}[random.below(1 + i % 7)];
    const size_t place = random.below(row.size());
    row[place] = std::max(row[place], -2.0f);
    int32_t at = 0;
    for (size_t j = 0; j < row.size(); ++j)
      if (row[j] > row[static_cast<size_t>(at)]) at = static_cast<int32_t>(j);
    ASSERT_EQ(argmax(row), at) << row.size() << " logits, round " << i;
    for (const float bad : {kNaN, kInf}) {
      row[place] = bad;
      ASSERT_THROW(argmax(row), Error) << bad << " at " << place << " of " << row.size();
    }
    std::fill(row.begin(), row.end(), -kInf);
    ASSERT_THROW(argmax(row), Error) << row.size() << " logits";
  }
}

TEST(Sampler, DrawInvertsTheCdf) {
  const std::vector<float> weights = {0, 1, 0, 3, 0};
  EXPECT_EQ(draw(weights, 1e-16), 1);
  EXPECT_EQ(draw(weights, 0.2499), 1);
  EXPECT_EQ(draw(weights, 0.2501), 3);
  EXPECT_EQ(draw(weights, 1 - 1e-16), 3);
  EXPECT_THROW(draw(std::vector<float>{0, 0}, 0.5), Error);
  // Despite rounding, a token with weight 0 is never drawn.
  std::vector<float> many(100000, 1e-7f);
  many.push_back(0);
  EXPECT_LT(draw(many, 1 - 1e-16), 100000);
}

TEST(Sampler, OverlapAndConfidence) {
  EXPECT_NEAR(overlap(std::vector<float>{0.5, 0.5, 0}, std::vector<float>{0.2f, 0.3f, 0.5}), 0.5, 1e-7);
  EXPECT_NEAR(max_probability(std::vector<float>{0, std::log(3.f)}), 0.75, 1e-6);
}

}  // namespace
}  // namespace specdec::decode
