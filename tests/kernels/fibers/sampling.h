// Runs the sampling kernel on a row of logits, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/decode/randomness.h"
#include "engine/decode/sampler.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/self_test/random_drafts.h"
#include "tests/kernels/fibers/device_memory.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {

using self_test::kMasked;
using self_test::random_logits;

struct Sampled {
  std::vector<float> probs;
  int32_t token;
  bool equal;  // both rows gave the same
};
// Runs the kernel on two equal rows, so that a wrong offset is noticed. Tokens are drawn as by a draft.
inline Sampled sample(const std::vector<float>& logits, const SamplingOptions& options, uint64_t seed,
                      unsigned threads) {
  const kernels::SampleRow row = {options.temperature,
                                  options.top_p,
                                  options.min_p,
                                  static_cast<int32_t>(options.top_k),
                                  static_cast<int32_t>(decode::Purpose::kDraft),
                                  seed,
                                  0,
                                  {}};
  DeviceMemory<kernels::SampleRow> rows(std::vector<kernels::SampleRow>(2, row));
  std::vector<float> twice = logits;
  twice.insert(twice.end(), logits.begin(), logits.end());
  DeviceMemory<float> values(twice);
  DeviceMemory<int32_t> tokens(size_t{2});
  EXPECT_EQ(kernels::cuda::launch_sample(
                {rows.data(), values.data(), tokens.data(), nullptr, 2, static_cast<int32_t>(logits.size())}, threads,
                nullptr),
            0);
  const std::vector<float> all = values.read();
  const auto half = all.begin() + static_cast<std::ptrdiff_t>(logits.size());
  const std::vector<int32_t> drawn = tokens.read();
  return {{all.begin(), half}, drawn[0], std::equal(all.begin(), half, half) && drawn[0] == drawn[1]};
}

}  // namespace specdec::fibers
