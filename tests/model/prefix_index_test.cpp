#include "engine/cache/prefix_index.h"

#include <gtest/gtest.h>

namespace specdec::model {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixIndex, FindsAChainByKeyAndTokens) {
  PrefixIndex index(2);
  index.resize(4);
  index.insert(3, {.tenant = 7}, Tokens{1, 2});
  const PrefixKey behind{.tenant = 7, .parent = index.serial(3)};
  index.insert(0, behind, Tokens{3, 4});
  EXPECT_EQ(index.find({.tenant = 7}, Tokens{1, 2}), 3);
  EXPECT_EQ(index.find(behind, Tokens{3, 4}), 0);
  EXPECT_EQ(index.find({.tenant = 7}, Tokens{3, 4}), -1) << "what comes before counts";
  EXPECT_EQ(index.find({.tenant = 8}, Tokens{1, 2}), -1) << "another tenant";
  EXPECT_EQ(index.find({.tenant = 7, .rope_rescale = 1}, Tokens{1, 2}), -1) << "another scaling";
  EXPECT_EQ(index.find({.tenant = 7}, Tokens{1, 3}), -1);
  EXPECT_EQ(index.size(), 2u);
}

// A block that gets new content also gets a new serial, so the blocks that followed its old content are not found.
TEST(PrefixIndex, ASerialIsNeverUsedTwice) {
  PrefixIndex index(2);
  index.resize(2);
  index.insert(0, {}, Tokens{1, 2});
  const uint64_t first = index.serial(0);
  index.insert(1, {.parent = first}, Tokens{3, 4});
  index.erase(0);
  EXPECT_EQ(index.serial(0), 0u);
  EXPECT_EQ(index.find({}, Tokens{1, 2}), -1);
  index.insert(0, {}, Tokens{1, 2});
  EXPECT_NE(index.serial(0), first);
  EXPECT_EQ(index.find({.parent = index.serial(0)}, Tokens{3, 4}), -1);
  index.insert(0, {}, Tokens{5, 6});  // replaces the old content
  EXPECT_EQ(index.find({}, Tokens{1, 2}), -1);
  EXPECT_EQ(index.find({}, Tokens{5, 6}), 0);
  index.erase(1);
  index.erase(1);
  EXPECT_EQ(index.size(), 1u);
}

}  // namespace
}  // namespace specdec::model
