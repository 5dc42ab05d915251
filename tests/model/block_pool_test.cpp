#include "engine/cache/block_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/error.h"

namespace specdec::model {
namespace {

constexpr int64_t kSlots = BlockPool::kTokens;

DecoderConfig pool_config() {
  DecoderConfig c;
  c.num_layers = 2, c.num_kv_heads = 3, c.head_dim = 4;
  return c;
}
const int64_t kBytes = BlockPool::block_bytes(pool_config(), at::kFloat);

std::vector<int32_t> story_from(int32_t first) {
  std::vector<int32_t> out(kSlots);
  std::iota(out.begin(), out.end(), first);
  return out;
}

TEST(BlockPool, CountsHoldersWithinItsBudget) {
  EXPECT_EQ(kBytes, kSlots * 2 * 2 * 3 * 4 * 4);
  BlockPool pool(pool_config(), at::kCPU, at::kFloat, 3 * kBytes + kBytes / 2);
  EXPECT_TRUE(pool.bounded());
  EXPECT_EQ(pool.num_blocks(), 3);
  const int32_t a = pool.take(), b = pool.take(), c = pool.take();
  EXPECT_EQ((std::set<int32_t>{a, b, c}), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.available(), 0);
  try {
    pool.take();
    FAIL() << "nothing was left";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(e.what()).find("all of its 3 blocks"), std::string::npos) << e.what();
  }
  pool.hold(b);
  pool.release(b);
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.holders(b), 1);
  pool.release(b);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.held(), 2);
  EXPECT_THROW(pool.release(b), Error);
  EXPECT_EQ(pool.take(), b);
  EXPECT_THROW(BlockPool(pool_config(), at::kCPU, at::kFloat, kBytes - 1), Error);
}

TEST(BlockPool, GrowsWithoutABudgetAndPublishesNothing) {
  BlockPool pool(pool_config(), at::kCPU, at::kBFloat16);
  std::set<int32_t> blocks;
  std::set<void*> places;
  for (int i = 0; i < 50; ++i) {
    const int32_t block = pool.take();
    blocks.insert(block);
    places.insert(pool.address(block));
  }
  EXPECT_EQ(blocks.size(), 50u);
  EXPECT_EQ(places.size(), 50u);
  EXPECT_LE(pool.num_blocks(), 75);
  EXPECT_FALSE(pool.bounded());
  pool.release(7);
  EXPECT_EQ(pool.kept(), 0);
  EXPECT_EQ(pool.take(), 7);
}

// Published blocks stay for later users. When the pool needs a block, it takes the published block that was released
// longest ago.
TEST(BlockPool, TheLongestUnheldIsReusedFirst) {
  BlockPool pool(pool_config(), at::kCPU, at::kFloat, 4 * kBytes);
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < 4; ++i) {
    blocks.push_back(pool.take());
    EXPECT_EQ(pool.publish(blocks.back(), {.tenant = 5}, story_from(100 * i)), blocks.back());
  }
  for (const int i : {2, 0, 3}) pool.release(blocks[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.kept(), 3);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_EQ(pool.held(), 1);
  EXPECT_EQ(pool.adopt({.tenant = 6}, story_from(0)), -1);
  EXPECT_EQ(pool.adopt({.tenant = 5}, story_from(200)), blocks[2]);  // now the block used most recently
  pool.release(blocks[2]);
  EXPECT_EQ(pool.take(), blocks[0]);
  EXPECT_EQ(pool.adopt({.tenant = 5}, story_from(0)), -1) << "reused";
  EXPECT_EQ(pool.adopt({.tenant = 5}, story_from(100)), blocks[1]) << "held all along";
  EXPECT_EQ(pool.holders(blocks[1]), 2);
  EXPECT_EQ(pool.take(), blocks[3]);
  EXPECT_EQ(pool.take(), blocks[2]);
  EXPECT_THROW(pool.take(), Error);
  // Publishing a block whose text is already published must return the block that was published first.
  pool.release(blocks[0]);
  const int32_t again = pool.take();
  EXPECT_EQ(pool.publish(again, {.tenant = 5}, story_from(100)), blocks[1]);
  EXPECT_EQ(pool.holders(blocks[1]), 3);
  EXPECT_EQ(pool.holders(again), 0);
  pool.unpublish(blocks[1]);
  EXPECT_EQ(pool.adopt({.tenant = 5}, story_from(100)), -1);
}

TEST(BlockPool, WritesCopiesAndGathers) {
  for (const int64_t budget : {int64_t{0}, 6 * kBytes}) {
    BlockPool pool(pool_config(), at::kCPU, at::kFloat, budget);
    std::vector<int32_t> order;
    for (int i = 0; i < 6; ++i) order.push_back(pool.take());  // without a budget these take two allocations
    order = {order[4], order[5], order[0], order[3]};
    const at::Tensor all = at::arange(4 * kSlots * 12, at::kFloat).view({4 * kSlots, 3, 4});
    for (int64_t i = 0; i < 4; ++i) {
      for (const int64_t layer : {0, 1}) {
        for (const int64_t side : {0, 1})
          pool.write(order[static_cast<size_t>(i)], 0, layer, side,
                     all.narrow(0, i * kSlots, kSlots) * (1 + 2 * layer + side));
      }
    }
    for (const int64_t length : {int64_t{0}, int64_t{1}, kSlots, 3 * kSlots + 5, 4 * kSlots}) {
      const at::Tensor found = pool.gather(order, 1, 0, length);
      EXPECT_TRUE(at::equal(found, all.narrow(0, 0, length).transpose(0, 1) * 3)) << length;
    }
    pool.copy(order[0], 3, order[3], 7, 2);
    const at::Tensor after = pool.gather(order, 0, 1, 4 * kSlots);
    EXPECT_TRUE(at::equal(after.narrow(1, 3 * kSlots + 7, 2), all.narrow(0, 3, 2).transpose(0, 1) * 2));
    EXPECT_TRUE(at::equal(after.narrow(1, 3 * kSlots + 9, 5), all.narrow(0, 3 * kSlots + 9, 5).transpose(0, 1) * 2));
    EXPECT_EQ(pool.gather({}, 0, 0, 0).sizes(), (at::IntArrayRef{3, 0, 4}));
  }
}

}  // namespace
}  // namespace specdec::model
