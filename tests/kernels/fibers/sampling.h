// Runs the sampling and drawing kernels for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/kernels/cuda/launch.h"
#include "engine/self_test/draft_level.h"
#include "engine/self_test/random_drafts.h"
#include "tests/kernels/fibers/device_memory.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {

using self_test::DraftLevel;
using self_test::kMasked;
using self_test::random_logits;

struct Sampled {
  std::vector<float> probs;
  int32_t token, choices;
  bool equal;  // both rows gave the same results
};
// Samples two equal rows, to notice wrong offsets, and between them a row marked to be left alone.
inline Sampled sample(const std::vector<float>& logits, const SamplingOptions& options, unsigned threads) {
  const kernels::SampleRow row = {options.temperature, options.top_p, options.min_p,
                                  static_cast<int32_t>(options.top_k), 0};
  std::vector<kernels::SampleRow> list(3, row);
  list[1].left_alone = 1;
  DeviceMemory<kernels::SampleRow> rows(list);
  std::vector<float> thrice;
  for (int i = 0; i < 3; ++i) thrice.insert(thrice.end(), logits.begin(), logits.end());
  DeviceMemory<float> values(thrice);
  DeviceMemory<int32_t> tokens(size_t{3}), choices(size_t{3});
  EXPECT_EQ(kernels::cuda::launch_sample(
                {rows.data(), values.data(), tokens.data(), choices.data(), 3, static_cast<int32_t>(logits.size())},
                threads, stream()),
            0);
  const std::vector<float> all = values.read();
  const auto size = static_cast<std::ptrdiff_t>(logits.size());
  const std::vector<int32_t> best = tokens.read(), counts = choices.read();
  EXPECT_EQ(std::memcmp(logits.data(), all.data() + size, logits.size() * sizeof(float)), 0);
  return {{all.begin(), all.begin() + size},
          best[0],
          counts[0],
          std::equal(all.begin(), all.begin() + size, all.begin() + 2 * size) && best[0] == best[2] &&
              counts[0] == counts[2]};
}

struct Drawn {
  DraftLevel::Result result;
  std::vector<int32_t> ids, next_ids, for_host;  // one element per node
  std::vector<float> logits;
};
inline Drawn draw(const DraftLevel& level, unsigned threads) {
  const size_t nodes = level.nodes.size(), count = level.rows.size();
  DeviceMemory<int32_t> ids(std::vector<int32_t>(nodes, -7)), next_ids(std::vector<int32_t>(nodes, -7)),
      tokens(std::vector<int32_t>(nodes, -7)), going(level.going), next(std::vector<int32_t>{0}),
      drafting(std::vector<int32_t>{level.drafting}), sampled(count), choices(count);
  DeviceMemory<rules::AcceptanceTable> tables(level.tables);
  DeviceMemory<kernels::VerifyNode> of_round(level.nodes);
  DeviceMemory<float> logits(level.logits), confidences(level.confidences);
  DeviceMemory<kernels::SampleRow> samples(level.sample_rows());
  DeviceMemory<kernels::DraftRow> rows(level.rows_at({.ids = {ids.data(), next_ids.data()},
                                                      .going = going.data(),
                                                      .next = next.data(),
                                                      .drafting = drafting.data(),
                                                      .tables = tables.data()}));
  const auto num_rows = static_cast<int32_t>(count), vocab = static_cast<int32_t>(level.vocab);
  const bool first = level.needs_samples();
  if (first) {
    EXPECT_EQ(kernels::cuda::launch_sample(
                  {samples.data(), logits.data(), sampled.data(), choices.data(), num_rows, vocab}, threads, stream()),
              0);
  }
  const std::vector<float> before = logits.read();
  EXPECT_EQ(kernels::cuda::launch_draft({.rows = rows.data(),
                                         .logits = logits.data(),
                                         .sampled = first ? sampled.data() : nullptr,
                                         .choices = first ? choices.data() : nullptr,
                                         .nodes = of_round.data(),
                                         .tokens = tokens.data(),
                                         .confidences = confidences.data(),
                                         .num_rows = num_rows,
                                         .vocab = vocab},
                                        threads, stream()),
            0);
  if (first) {  // the kernel must have restored the probabilities of drawn children
    for (size_t i = 0; i < count; ++i)
      if (level.rows[i].options.temperature != 0) {
        const std::vector<float> after = logits.read();
        const auto begin = static_cast<std::ptrdiff_t>(i * level.vocab);
        EXPECT_EQ(std::memcmp(before.data() + begin, after.data() + begin, level.vocab * sizeof(float)), 0) << i;
      }
  }
  Drawn out{{.tokens = {}, .confidences = confidences.read(), .going = going.read(), .next = next.read()[0]},
            ids.read(),
            next_ids.read(),
            tokens.read(),
            logits.read()};
  for (const kernels::VerifyNode& node : of_round.read()) out.result.tokens.push_back(node.token);
  return out;
}

}  // namespace specdec::fibers
