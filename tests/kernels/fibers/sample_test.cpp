// Runs the sampling kernel on fibers beside the host's sampler.
#include <gtest/gtest.h>

#include "tests/kernels/fibers/sampling.h"

namespace specdec::fibers {
namespace {

TEST(SampleKernel, GivesTheHostsDistributionsAndTokens) {
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
        decode::distribution(logits, options, expected, scratch);
        settings().seed = number;
        const Sampled found = sample(logits, options, number, number % 3 == 0 ? 32 : 96);
        EXPECT_TRUE(found.equal);
        EXPECT_EQ(found.probs, expected) << vocab << " tokens, T " << options.temperature << ", row " << number;
        decode::SeededRandomness randomness(number);
        EXPECT_EQ(found.token, randomness.draw(decode::Purpose::kDraft, expected)) << vocab << ", row " << number;
      }
}

// A greedy row has the confidence that the host's draft has, and any other the probability of its token.
TEST(SampleKernel, TellsHowSureItIsAndPlacesTokens) {
  constexpr size_t kVocab = 150;
  for (const double temperature : {0.0, 0.7})
    for (uint64_t number = 0; number < 8; ++number) {
      const std::vector<float> logits = random_logits(number, kVocab, false);
      DeviceMemory<int32_t> places(std::vector<int32_t>{-7, -7, -7});
      kernels::SampleRow row = {};
      row.temperature = temperature, row.top_p = 1, row.seed = number;
      row.places[0] = places.data() + 2, row.places[2] = places.data();
      DeviceMemory<kernels::SampleRow> rows(std::vector<kernels::SampleRow>{row});
      DeviceMemory<float> values(logits), confidences(size_t{1});
      DeviceMemory<int32_t> tokens(size_t{1});
      ASSERT_EQ(kernels::cuda::launch_sample({rows.data(), values.data(), tokens.data(), confidences.data(), 1, kVocab},
                                             64, nullptr),
                0);
      const int32_t token = tokens.read()[0];
      EXPECT_EQ(places.read(), (std::vector<int32_t>{token, -7, token}));
      const double expected = temperature == 0 ? decode::max_probability(logits)
                                               : static_cast<double>(values.read()[static_cast<size_t>(token)]);
      EXPECT_FLOAT_EQ(confidences.read()[0], static_cast<float>(expected)) << number;
    }
}

TEST(SampleKernel, BrokenLogitsGiveNoToken) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random_logits(1, 50, false);
    logits[37] = bad;
    EXPECT_EQ(sample(logits, {.temperature = 1}, 1, 64).token, -1);
  }
  EXPECT_EQ(sample(std::vector<float>(50, kMasked), {.temperature = 1}, 1, 64).token, -1);
}

}  // namespace
}  // namespace specdec::fibers
