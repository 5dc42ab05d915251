#include "engine/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "base/error.h"

namespace specdec::model {
namespace {

constexpr int64_t kSpan = BlockPool::kTokens;

TEST(KvCacheTest, GrowsKeepsAndCounts) {
  DecoderConfig c;
  c.num_layers = 2, c.num_kv_heads = 3, c.head_dim = 4;
  KvCache kv(c, at::kCPU, at::kFloat);
  at::Tensor all = at::arange(300 * 12, at::kFloat).view({300, 3, 4});
  for (int64_t at = 0; at < 300; at += 50) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      const auto [k, v] = kv.append(layer, all.narrow(0, at, 50) + layer, -all.narrow(0, at, 50));
      EXPECT_TRUE(at::equal(k, (all.narrow(0, 0, at + 50) + layer).transpose(0, 1)));
      EXPECT_TRUE(at::equal(v, -all.narrow(0, 0, at + 50).transpose(0, 1)));
    }
    kv.commit(50);
  }
  EXPECT_EQ(kv.length(), 300);
  EXPECT_EQ(kv.capacity(), (300 + kSpan - 1) / kSpan * kSpan);
  EXPECT_EQ(kv.bytes(), kv.capacity() * KvCache::bytes_per_token(c, at::kFloat));
  EXPECT_EQ(KvCache::bytes_per_token(c, at::kFloat), 2 * 2 * 3 * 4 * 4);
  EXPECT_THROW(kv.commit(kv.capacity()), Error);
  EXPECT_THROW(kv.truncate(301), Error);
  EXPECT_THROW(kv.prefix(301), Error);
  EXPECT_THROW(kv.adopt({}, 0), Error);
  // Keeps three nodes of a tree after 200 tokens.
  const std::vector<int64_t> places = {203, 204, 290};
  kv.keep(200, places);
  EXPECT_EQ(kv.length(), 203);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(kv.keys(1).select(1, 200 + i), all[places[static_cast<size_t>(i)]] + 1));
    EXPECT_TRUE(at::equal(kv.values(0).select(1, 200 + i), -all[places[static_cast<size_t>(i)]]));
  }
  EXPECT_TRUE(at::equal(kv.keys(0).select(1, 199), all[199]));
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{100}, {201, 201}, {202, 201}, {203}})
    EXPECT_THROW(kv.keep(200, wrong), Error);
}

// A cache and its expected content: a text, and one value per token that depends on this token and all tokens before
// it.
struct Checked {
  KvCache cache;
  uint64_t tenant;
  std::vector<int32_t> text = {};
  std::vector<float> values = {};
};

float value_of(float before, int32_t token) {
  return std::fmod(before * 31 + static_cast<float>(token) * 7 + 1, 9973.f);
}

struct Caches {
  explicit Caches(int64_t blocks) {
    config.num_layers = 2, config.num_kv_heads = 2, config.head_dim = 3;
    pool =
        std::make_shared<BlockPool>(config, at::kCPU, at::kFloat, blocks * BlockPool::block_bytes(config, at::kFloat));
  }
  Checked open(uint64_t tenant) const {
    Checked out{KvCache(pool), tenant};
    out.cache.adopt({}, tenant);
    return out;
  }
  // Writes tokens to the cache as a forward pass does. `positions` are the tokens' positions, empty for a chain.
  static void write(Checked& c, std::span<const int32_t> tokens, std::span<const float> values,
                    std::span<const int64_t> positions) {
    const auto count = static_cast<int64_t>(tokens.size());
    c.cache.record(tokens, positions);
    const at::Tensor rows = at::tensor(values).view({count, 1, 1}) * at::arange(1, 7, at::kFloat).view({1, 2, 3});
    for (int64_t layer = 0; layer < 2; ++layer) c.cache.append(layer, rows + layer, -rows - layer);
    c.cache.commit(count);
  }
  static void extend(Checked& c, std::span<const int32_t> tokens) {
    std::vector<float> values;
    for (const int32_t token : tokens) {
      c.values.push_back(value_of(c.values.empty() ? 0 : c.values.back(), token));
      values.push_back(c.values.back());
      c.text.push_back(token);
    }
    write(c, tokens, values, {});
  }
  static void adopt(Checked& c, std::span<const int32_t> text) {
    const int64_t found = c.cache.adopt(text, c.tenant);
    ASSERT_LE(found, static_cast<int64_t>(text.size()));
    for (int64_t i = 0; i < found; ++i) {
      c.text.push_back(text[static_cast<size_t>(i)]);
      c.values.push_back(value_of(i == 0 ? 0 : c.values.back(), c.text.back()));
    }
  }
  static void check(const Checked& c) {
    const auto length = static_cast<int64_t>(c.text.size());
    ASSERT_EQ(c.cache.length(), length);
    ASSERT_TRUE(std::ranges::equal(c.cache.tokens(), c.text));
    const at::Tensor rows = at::tensor(c.values).view({1, length, 1}) * at::arange(1, 7, at::kFloat).view({2, 1, 3});
    for (int64_t layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(at::equal(c.cache.keys(layer), rows + layer));
      ASSERT_TRUE(at::equal(c.cache.values(layer), -rows - layer));
    }
  }
  DecoderConfig config;
  std::shared_ptr<BlockPool> pool;
};

std::vector<int32_t> story(int64_t length) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < length; ++i) out.push_back(static_cast<int32_t>(i % 11));
  return out;
}

// A copy of a cache shares the blocks of the original. When one of the two caches appends to a block that another cache
// holds, it first gets its own copy of this block.
TEST(KvCacheTest, ForksShareUntilTheyWrite) {
  const Caches p(10);
  Checked a = p.open(0);
  Caches::extend(a, story(2 * kSpan + 10));
  Checked b{a.cache.prefix(2 * kSpan + 5), 0, story(2 * kSpan + 5), {a.values.begin(), a.values.end() - 5}};
  Checked whole{a.cache.prefix(kSpan), 0, story(kSpan), {a.values.begin(), a.values.begin() + kSpan}};
  EXPECT_EQ(p.pool->held(), 3);
  EXPECT_EQ(b.cache.blocks_missing(1), 1);
  EXPECT_EQ(whole.cache.blocks_missing(1), 1);
  EXPECT_EQ(b.cache.blocks_missing(1, true), 3);
  Caches::extend(b, std::vector<int32_t>{50});
  EXPECT_EQ(p.pool->held(), 4);
  EXPECT_EQ(a.cache.blocks_missing(1), 0) << "the other has its own";
  Caches::extend(a, std::vector<int32_t>{60});
  EXPECT_EQ(p.pool->held(), 4);
  Caches::extend(whole, std::vector<int32_t>{70});
  EXPECT_EQ(p.pool->held(), 5);
  for (const Checked* c : {&a, &b, &whole}) Caches::check(*c);
  // Keeping a path of a tree must not change blocks that another cache shares.
  const Checked c{a.cache.prefix(a.cache.length()), 0, a.text, a.values};
  a.cache.keep(kSpan + 1, std::vector<int64_t>{kSpan + 3, 2 * kSpan + 1});
  for (const int64_t place : {kSpan + 3, 2 * kSpan + 1})
    a.text[static_cast<size_t>(kSpan + 1 + (place > 2 * kSpan))] = a.text[static_cast<size_t>(place)];
  a.values[kSpan + 1] = a.values[kSpan + 3];
  a.values[kSpan + 2] = a.values[2 * kSpan + 1];
  a.text.resize(kSpan + 3), a.values.resize(kSpan + 3);
  Caches::check(a);
  Caches::check(c);
}

TEST(KvCacheTest, WhatWasReadIsFoundAgain) {
  const Caches p(6);
  Checked first = p.open(1);
  Caches::extend(first, story(2 * kSpan + 9));
  Checked early = p.open(1);
  Caches::adopt(early, story(300));
  EXPECT_EQ(early.cache.length(), 0) << "not published yet";
  first.cache.publish();
  Checked second = p.open(1), stranger = p.open(2);
  Caches::adopt(stranger, story(300));
  EXPECT_EQ(stranger.cache.length(), 0) << "another tenant's";
  Caches::adopt(second, story(2 * kSpan - 1));
  EXPECT_EQ(second.cache.length(), kSpan) << "whole blocks";
  EXPECT_EQ(p.pool->held(), 3);
  Caches::extend(second, story(kSpan));  // a different text from here on
  Caches::check(second);
  Caches::extend(early, story(2 * kSpan));  // same text as `first`; publish() below drops the copies
  EXPECT_EQ(p.pool->held(), 6);
  early.cache.publish();
  EXPECT_EQ(p.pool->held(), 4);
  Caches::check(early);
  // A cache without a memory budget publishes nothing.
  KvCache unbounded(p.config, at::kCPU, at::kFloat);
  EXPECT_EQ(unbounded.adopt(story(300), 1), 0);
  EXPECT_FALSE(unbounded.records());
}

// A cache publishes a block, and a second cache adopts it. Then both caches truncate their texts within this block and
// append different tokens. Each cache must read its own tokens, and later caches must adopt the published ones.
TEST(KvCacheTest, PublishedBlocksDoNotChange) {
  const Caches p(6);
  Checked a = p.open(1), b = p.open(1);
  Caches::extend(a, story(2 * kSpan));
  a.cache.publish();
  Caches::adopt(b, story(kSpan));
  for (Checked* c : {&a, &b}) {
    c->cache.truncate(kSpan - 2);
    c->text.resize(kSpan - 2), c->values.resize(kSpan - 2);
    Caches::extend(*c, std::vector<int32_t>{c == &a ? 90 : 80, 91, 92});
  }
  Caches::check(a);
  Caches::check(b);
  Checked later = p.open(1);
  Caches::adopt(later, story(2 * kSpan));
  Caches::check(later);
  a.cache.publish();
  Checked other = p.open(1);
  Caches::adopt(other, a.text);
  EXPECT_EQ(other.cache.length(), kSpan);
  Caches::check(other);
}

// Writes a random tree of `count` tokens after the text, and keeps the path to a random node or nothing.
void write_tree_and_keep_a_path(Checked& c, int64_t count, const std::function<int64_t(int64_t)>& below,
                                const std::vector<std::unique_ptr<Checked>>& open) {
  const auto length = static_cast<int64_t>(c.text.size());
  std::vector<int32_t> tokens;
  std::vector<float> values;
  std::vector<int64_t> positions, parents, path;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t parent = below(i + 1) - 1;
    parents.push_back(parent);
    positions.push_back(parent < 0 ? length : positions[static_cast<size_t>(parent)] + 1);
    tokens.push_back(static_cast<int32_t>(below(3)));
    values.push_back(value_of(parent < 0 ? c.values.back() : values[static_cast<size_t>(parent)], tokens.back()));
  }
  Caches::write(c, tokens, values, positions);
  for (const auto& other : open) other->cache.publish();  // publishes only the part of the tree that is a chain
  for (int64_t node = below(count + 1) - 1; node >= 0; node = parents[static_cast<size_t>(node)])
    path.insert(path.begin(), length + node);
  c.cache.keep(length, path);
  for (const int64_t place : path) {
    c.text.push_back(tokens[static_cast<size_t>(place - length)]);
    c.values.push_back(values[static_cast<size_t>(place - length)]);
  }
}

// Runs random passes, trees, truncations, forks, closes and opens of several sequences, and compares every cache with a
// plain copy of its text.
TEST(KvCacheTest, TenThousandOperationsAgainstAContiguousModel) {
  const Caches p(40);
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<std::unique_ptr<Checked>> open;
  int64_t found = 0, full = 0, trees = 0, forks = 0;
  for (int step = 0; step < 10000; ++step) {
    if (open.empty() || (open.size() < 9 && below(12) == 0)) {
      open.push_back(std::make_unique<Checked>(p.open(static_cast<uint64_t>(below(2)))));
      for (const auto& c : open) c->cache.publish();
      Caches::adopt(*open.back(), story(below(400)));
      found += open.back()->cache.length();
    }
    std::unique_ptr<Checked>& chosen = open[static_cast<size_t>(below(static_cast<int64_t>(open.size())))];
    Checked& c = *chosen;
    const auto length = static_cast<int64_t>(c.text.size());
    const int64_t what = below(20), count = 1 + below(what < 4 ? 100 : 6);
    if (what < 12) {
      if (c.cache.blocks_missing(count) > p.pool->available()) {
        if (++full % 20 == 0) {
          EXPECT_THROW(c.cache.reserve(length + count), Error);
        }
        c.cache.truncate(length);
      } else if (what < 9 || length == 0) {
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < count; ++i)
          tokens.push_back(static_cast<int32_t>(below(150) == 0 ? 99 : (length + i) % 11));
        Caches::extend(c, tokens);
      } else {
        ++trees;
        write_tree_and_keep_a_path(c, count, below, open);
      }
    } else if (what < 16) {
      const int64_t left = std::max<int64_t>(0, length - below(what == 12 ? 150 : 6));
      c.cache.truncate(left);
      c.text.resize(static_cast<size_t>(left)), c.values.resize(static_cast<size_t>(left));
    } else if (what == 16 && open.size() < 12) {
      ++forks;
      const int64_t left = below(length + 1);
      open.push_back(std::make_unique<Checked>(Checked{c.cache.prefix(left),
                                                       c.tenant,
                                                       {c.text.begin(), c.text.begin() + left},
                                                       {c.values.begin(), c.values.begin() + left}}));
    } else if (what == 17 || length > 400) {
      c.cache.publish();
      std::swap(chosen, open.back());
      open.pop_back();
    } else {
      c.cache.publish();
    }
    if (step % 3 == 0 && !open.empty())
      Caches::check(*open[static_cast<size_t>(below(static_cast<int64_t>(open.size())))]);
    if (HasFatalFailure()) FAIL() << "step " << step;
    std::set<void*> held;
    for (const auto& each : open) held.insert(each->cache.blocks().begin(), each->cache.blocks().end());
    ASSERT_EQ(static_cast<int64_t>(held.size()), p.pool->held()) << "step " << step;
  }
  EXPECT_GT(found, 20 * kSpan);
  EXPECT_GT(full, 20);
  EXPECT_GT(trees, 500);
  EXPECT_GT(forks, 100);
  open.clear();
  EXPECT_EQ(p.pool->held(), 0);
}

}  // namespace
}  // namespace specdec::model
