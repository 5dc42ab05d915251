// Compares the kernels that sample and that draw drafts, on fibers, with the host's sampler.
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "engine/decode/sampling/sampler.h"
#include "tests/kernels/fibers/sampling.h"

namespace specdec::fibers {
namespace {

TEST(SampleKernel, GivesTheHostsDistributions) {
  const SamplingOptions all_options[] = {{.temperature = 1},
                                         {.temperature = 0},
                                         {.temperature = 0.3},
                                         {.temperature = 2, .top_k = 1},
                                         {.temperature = 1, .top_k = 7},
                                         {.temperature = 1, .top_p = 0.5},
                                         {.temperature = 1, .top_p = 1e-9},
                                         {.temperature = 1, .top_p = 0.999},
                                         {.temperature = 1, .min_p = 0.2},
                                         {.temperature = 0.8, .top_k = 30, .top_p = 0.7, .min_p = 0.05}};
  std::vector<int32_t> scratch;
  for (const size_t vocab : {2, 31, 64, 333})
    for (const SamplingOptions& options : all_options)
      for (uint64_t number = 0; number < 6; ++number) {
        const std::vector<float> logits = random_logits(number + 1000 * vocab, vocab, number % 2 == 1);
        std::vector<float> expected(vocab);
        if (options.greedy())
          expected = logits;  // unused, because greedy rows need no distribution
        else
          decode::distribution(logits, options, expected, scratch);
        settings().seed = number;
        const Sampled found = sample(logits, options, number % 3 == 0 ? 32 : 96);
        EXPECT_TRUE(found.equal);
        EXPECT_EQ(found.probs, expected) << vocab << " tokens, T " << options.temperature << ", row " << number;
        EXPECT_EQ(found.token, decode::argmax(logits));
        const auto likely = std::ranges::count_if(expected, [](float x) { return x >= rules::kLeastDrawn; });
        EXPECT_EQ(found.choices, options.greedy() ? 1 : likely);
      }
}

// Rows that are too long to be compared element by element: with few and with many likely tokens, and with equal ones.
TEST(SampleKernel, GivesTheHostsDistributionsOfManyTokens) {
  struct Row {
    const char* name;
    double spread;  // of the logits
    double step;    // above 0: logits are multiples of it
  };
  constexpr Row kRows[] = {{"peaked", 8, 0}, {"flat", 0.5, 0}, {"rounded", 2, 0.25}, {"equal", 0, 0}};
  const SamplingOptions all_options[] = {{.temperature = 1, .top_k = 40},
                                         {.temperature = 1, .top_p = 0.95},
                                         {.temperature = 0.7, .top_k = 60, .top_p = 0.9},
                                         {.temperature = 1, .top_k = 700},
                                         {.temperature = 1, .top_k = 2500, .top_p = 0.99, .min_p = 0.01},
                                         {.temperature = 3, .top_p = 0.999999}};
  constexpr size_t kVocab = 4001;
  std::vector<int32_t> scratch;
  for (const Row& row : kRows)
    for (const SamplingOptions& options : all_options)
      for (const unsigned threads : {96u, 256u}) {
        PhiloxStream random(3, static_cast<uint64_t>(row.spread * 10));
        std::vector<float> logits(kVocab), expected(kVocab);
        for (float& x : logits) {
          const double normal = std::sqrt(-2 * std::log(random.uniform())) * std::cos(6.283185307 * random.uniform());
          x = static_cast<float>(row.step > 0 ? std::round(normal * row.spread / row.step) * row.step
                                              : normal * row.spread);
          if (x == 0) x = random.uniform() < 0.5 ? 0.0f : -0.0f;  // equal, although their bits differ
        }
        decode::distribution(logits, options, expected, scratch);
        const Sampled found = sample(logits, options, threads);
        EXPECT_TRUE(found.equal);
        EXPECT_EQ(found.token, decode::argmax(logits));
        // The host's sums are rounded, so the last bit may differ.
        for (size_t i = 0; i < kVocab; ++i)
          ASSERT_NEAR(found.probs[i], expected[i], 1e-6f * expected[i])
              << row.name << ", T " << options.temperature << ", top-k " << options.top_k << ", top-p " << options.top_p
              << ", " << threads << " threads, token " << i;
      }
}

TEST(SampleKernel, BrokenLogitsGiveNoToken) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random_logits(1, 50, false);
    logits[37] = bad;
    EXPECT_EQ(sample(logits, {.temperature = 1}, 64).token, kernels::kBrokenRow);
  }
  EXPECT_EQ(sample(std::vector<float>(50, kMasked), {.temperature = 1}, 64).token, kernels::kBrokenRow);
}

// Covers chains and trees, greedy and sampled, with absent nodes and with chains that have stopped or stop now.
TEST(DraftKernel, DrawsTheTokensOfTheHost) {
  int64_t absent = 0, siblings = 0, stopped = 0, went_on = 0;
  for (const size_t vocab : {4, 31, 150})
    for (uint64_t number = 0; number < 250; ++number) {
      const DraftLevel level = self_test::random_draft_level(number, vocab);
      settings().seed = number;
      const Drawn found = draw(level, number % 3 == 0 ? 32 : 96);
      const DraftLevel::Result expected = level.on_host();
      ASSERT_EQ(found.result.tokens, expected.tokens) << vocab << " tokens, level " << number;
      EXPECT_EQ(found.result.going, expected.going) << vocab << " tokens, level " << number;
      EXPECT_EQ(found.result.next, expected.next) << vocab << " tokens, level " << number;
      for (size_t node = 0; node < expected.confidences.size(); ++node)
        EXPECT_FLOAT_EQ(found.result.confidences[node], expected.confidences[node]) << number << ", node " << node;
      for (const kernels::DraftRow& row : level.rows)
        for (auto node = static_cast<size_t>(row.first_child); node < static_cast<size_t>(row.first_child + row.width);
             ++node) {
          const int32_t token = expected.tokens[node];
          EXPECT_EQ(found.for_host[node], token);
          EXPECT_EQ(found.ids[node], std::max(token, 0));
          EXPECT_EQ(found.next_ids[node], level.last ? -7 : std::max(token, 0));
          absent += token < 0 ? 1 : 0;
          siblings += token >= 0 && node > static_cast<size_t>(row.first_child) ? 1 : 0;
        }
      for (size_t i = 0; i < level.going.size(); ++i) stopped += level.going[i] - expected.going[i];
      went_on += expected.next;
    }
  EXPECT_GT(absent, 100);
  EXPECT_GT(siblings, 100);
  EXPECT_GT(stopped, 50);
  EXPECT_GT(went_on, 50);
}

TEST(DraftKernel, BrokenLogitsAreReported) {
  for (uint64_t number = 0; number < 40; ++number) {
    DraftLevel level = self_test::random_draft_level(number, 31);
    const DraftLevel::Result right = level.on_host();
    const kernels::DraftRow& row = level.rows[0];
    if (right.tokens[static_cast<size_t>(row.first_child)] < 0) continue;
    level.logits[7] = std::numeric_limits<float>::quiet_NaN();
    const Drawn found = draw(level, 64);
    EXPECT_EQ(found.for_host[static_cast<size_t>(row.first_child)], kernels::kBrokenRow) << number;
    EXPECT_EQ(found.ids[static_cast<size_t>(row.first_child)], 0) << number;
  }
}

TEST(DraftKernel, DrawsTheSameInEveryOrderOfThreads) {
  const auto results = [&] {
    std::vector<int32_t> out;
    for (uint64_t number = 0; number < 40; ++number) {
      const Drawn found = draw(self_test::random_draft_level(number, 40), 96);
      out.insert(out.end(), found.result.tokens.begin(), found.result.tokens.end());
      out.insert(out.end(), found.result.going.begin(), found.result.going.end());
      for (const float x : found.result.confidences) out.push_back(static_cast<int32_t>(1e6f * x));
      out.push_back(found.result.next);
    }
    return out;
  };
  const auto right = results();
  for (uint64_t seed = 1; seed < 6; ++seed) {
    settings().seed = seed;
    EXPECT_EQ(results(), right);
  }
  settings() = {};
}

}  // namespace
}  // namespace specdec::fibers
