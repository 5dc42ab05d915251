#include "engine/forward/pass_graphs.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/paged_rows.h"

namespace specdec::model {
namespace {

// The pass that PassGraphs::kSumBytes names.
TEST(PassGraphs, HaveRoomForTheSumsOf64LongTextsOfAnEightBillionModel) {
  DecoderConfig config;
  config.num_heads = 32, config.num_kv_heads = 8, config.head_dim = 128;
  kernels::PagedRows rows(config.num_heads, config.num_kv_heads);
  const std::vector<void*> blocks(2048 / kernels::kPagedSlots);
  for (int text = 0; text < 64; ++text) rows.add(blocks, /*length=*/2000, /*count=*/1);
  EXPECT_LE(rows.num_parts(), PassGraphs::most_parts(config));
}

}  // namespace
}  // namespace specdec::model
