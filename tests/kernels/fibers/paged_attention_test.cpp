// Tests the kernel paged_attention() on fibers.
#include <gtest/gtest.h>

#include <deque>

#include "base/error.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/paged_rows.h"
#include "engine/self_test/paged_sequence.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/barriers.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
using kernels::PagedRows;
using self_test::causal_mask;
using self_test::kPagedLayer;
using self_test::Mask;
using self_test::tree_mask;
using Shape = self_test::PagedShape;

// A sequence with its own cache blocks. A pass writes the keys and values of its rows into them.
class Sequence {
 public:
  Sequence(const Shape& shape, size_t slots, uint64_t stream) : dtype_(shape.dtype), content_(shape, slots, stream) {
    for (size_t i = 0; i < content_.num_blocks(); ++i) {
      blocks_.emplace_back(shape.dtype, content_.block_numbers());
      addresses_.push_back(blocks_.back().data());
    }
  }
  const self_test::PagedSequence& content() const { return content_; }
  const std::vector<void*>& addresses() const { return addresses_; }

  // Writes the keys and values of the slots below `length` into the blocks.
  void cache(size_t length) {
    content_.for_each_cached(length, [&](size_t block, size_t place, double value) {
      blocks_[block].as<uint16_t>()[place] = static_cast<uint16_t>(self_test::bits_of(dtype_, value));
    });
  }

 private:
  CudaDtype dtype_;
  self_test::PagedSequence content_;
  std::deque<Array> blocks_;
  std::vector<void*> addresses_;
};

// The rows of one sequence in a pass: those after its first `length` tokens, under `mask`.
struct Part {
  Sequence* sequence;
  size_t length;
  Mask mask;
};
std::vector<self_test::PagedPart> paged_parts(const std::vector<Part>& parts) {
  std::vector<self_test::PagedPart> out;
  for (const Part& part : parts)
    out.push_back({&part.sequence->content(), part.sequence->addresses(), part.length, part.mask});
  return out;
}

// Runs one pass and returns the bytes of its results, and their values in `values`. The pass is skipped if `needed` is
// 0.
std::vector<uint8_t> attend(const Shape& shape, const std::vector<Part>& parts, Values* values = nullptr,
                            int32_t needed = 1) {
  const self_test::PagedInputs inputs = self_test::paged_inputs(shape, paged_parts(parts));
  const PagedRows& list = inputs.rows;
  DeviceMemory<kernels::PagedRow> rows(list.rows());
  DeviceMemory<kernels::PagedTile> tiles(list.tiles());
  DeviceMemory<uint64_t> blocks(list.blocks());
  DeviceMemory<float> work(static_cast<size_t>(list.num_parts()) * shape.kv_heads * kernels::kPagedQueries *
                           (shape.d + 2));
  Array queries(shape.dtype, inputs.q), keys(shape.dtype, inputs.k), vals(shape.dtype, inputs.v),
      out(shape.dtype, inputs.q.size());
  const auto narrow = [](size_t n) { return static_cast<int32_t>(n); };
  DeviceMemory<int32_t> live(std::vector<int32_t>{needed});
  const kernels::PagedPass pass = {.rows = rows.data(),
                                   .tiles = tiles.data(),
                                   .blocks = blocks.data(),
                                   .parts = work.data(),
                                   .live = live.data(),
                                   .num_rows = narrow(rows.size()),
                                   .num_tiles = narrow(tiles.size()),
                                   .num_splits = list.num_splits(),
                                   .heads = narrow(shape.heads),
                                   .kv_heads = narrow(shape.kv_heads),
                                   .d = narrow(shape.d)};
  const kernels::PagedLayer layer = {narrow(kPagedLayer),
                                     static_cast<float>(shape.scale),
                                     static_cast<float>(shape.soft_cap),
                                     shape.window,
                                     queries.data(),
                                     keys.data(),
                                     vals.data(),
                                     out.data()};
  EXPECT_EQ(cuda::launch_paged_attention(shape.dtype, pass, layer, stream()), 0);
  work.check_borders();
  if (values) *values = out.values();
  return out.bytes();
}

// A skipped pass makes no partial sums, so its results are merged from unwritten memory, which is NaN.
TEST(PagedAttention, AtRestReadsNoKeys) {
  const Shape shape{CudaDtype::kBFloat16, 2, 1, 64};
  Sequence sequence(shape, 100, 1);
  sequence.cache(90);
  const std::vector<Part> parts = {{&sequence, 90, self_test::causal_mask(3)}};
  Values found;
  attend(shape, parts, &found, 0);
  EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](double x) { return std::isnan(x); }));
  attend(shape, parts, &found, 2);
  EXPECT_TRUE(std::none_of(found.begin(), found.end(), [](double x) { return std::isnan(x); }));
}

void expect_attention(const Shape& shape, const std::vector<Part>& parts, const std::string& name) {
  for (const Part& part : parts) part.sequence->cache(part.length);
  const Values expected = self_test::expected_attention(paged_parts(parts));
  std::vector<uint8_t> first;
  for (const uint64_t seed : {1, 2}) {
    settings().seed = seed;
    Values found;
    const std::vector<uint8_t> bytes = attend(shape, parts, &found);
    if (seed == 1) first = bytes;
    EXPECT_EQ(bytes, first) << name << ": the order of threads changes the bits";
    EXPECT_EQ(difference(shape.dtype, found, expected,
                         {.steps = 0, .share = 1, .absolute = self_test::attention_error(shape.dtype)}),
              "")
        << name;
  }
}

TEST(PagedAttention, EqualsItsTwinOverHeadsAndLengths) {
  const Shape shapes[] = {{CudaDtype::kHalf, 4, 2, 64},  {CudaDtype::kBFloat16, 4, 2, 64},
                          {CudaDtype::kHalf, 3, 1, 128}, {CudaDtype::kHalf, 2, 2, 80},
                          {CudaDtype::kHalf, 20, 1, 8},  {CudaDtype::kHalf, 2, 1, 256}};
  for (const Shape& shape : shapes)
    for (const size_t length : {0, 1, 15, 63, 64, 130}) {
      if (shape.d > 64 && length > 64) continue;
      Sequence sequence(shape, length + 5, length);
      expect_attention(shape, {{&sequence, length, causal_mask(5)}},
                       name_of(shape.dtype) + " " + std::to_string(shape.d) + " after " + std::to_string(length));
    }
}

TEST(PagedAttention, EqualsItsTwinOverManySequences) {
  const Shape shape = {CudaDtype::kHalf, 4, 2, 64};
  Sequence a(shape, 40, 10), b(shape, 3, 20), c(shape, 145, 30), d(shape, 64, 40);
  expect_attention(
      shape, {{&a, 20, causal_mask(20)}, {&b, 0, causal_mask(1)}, {&c, 127, causal_mask(9)}, {&d, 0, causal_mask(64)}},
      "sequences");
}

TEST(PagedAttention, EqualsItsTwinUnderTreesWindowsAndCaps) {
  const Mask nodes = tree_mask({-1, -1, 0, 0, 1, 2, 2, 5, 3, -1});
  for (const size_t length : {0, 3, 60, 100})
    for (const int window : {0, 1, 3, 40, 64, 70}) {
      const Shape shape = {CudaDtype::kHalf, 2, 1, 32, 0.4, window == 3 ? 2.0 : 0.0, window};
      Sequence sequence(shape, length + nodes.size(), length + 7);
      expect_attention(shape, {{&sequence, length, nodes}},
                       "a tree after " + std::to_string(length) + " with window " + std::to_string(window));
    }
}

// Rows with more than 4,096 keys have more keys per split. Rows on both sides of this limit are split as when alone.
TEST(PagedAttention, ARowsBitsDependOnItselfAlone) {
  const Shape shape = {CudaDtype::kHalf, 2, 1, 16};
  EXPECT_EQ(kernels::paged_split(4096), 128);
  EXPECT_EQ(kernels::paged_split(4097), 256);
  for (const size_t length : {size_t{5}, size_t{62}, size_t{127}, size_t{4093}}) {
    Sequence sequence(shape, length + 6, 3), other(shape, 30, 4);
    sequence.cache(length), other.cache(25);
    const std::vector<uint8_t> together = attend(
        shape, {{&other, 25, causal_mask(2)}, {&sequence, length, causal_mask(6)}, {&other, 27, causal_mask(1)}});
    const size_t row = shape.heads * shape.d * 2;
    for (const size_t i : {0, 3, 5}) {
      const std::vector<uint8_t> alone = attend(shape, {{&sequence, length + i, causal_mask(1)}});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>((2 + i) * row)))
          << "row " << i << " after " << length;
    }
  }
}

TEST(PagedAttention, NoBarrierCanBeLeftOut) {
  const Shape shape = {CudaDtype::kHalf, 16, 1, 16};
  Sequence sequence(shape, 100, 5);
  sequence.cache(99);
  expect_barriers_are_needed(2, [&] { return attend(shape, {{&sequence, 99, causal_mask(1)}}); });
}

// A grid has at most 65,535 blocks in its second and third dimension.
TEST(PagedAttention, WhatDoesNotFitAGridIsRefused) {
  kernels::PagedPass pass = {};
  pass.num_rows = pass.num_tiles = pass.num_splits = 1, pass.d = 8, pass.heads = pass.kv_heads = 1 << 16;
  const int32_t rests = 0;
  pass.live = &rests;
  kernels::PagedLayer layer = {};
  const auto code = [&] { return cuda::launch_paged_attention(CudaDtype::kHalf, pass, layer, nullptr); };
  EXPECT_NE(code(), 0) << "heads";
  pass.heads = pass.kv_heads = 1, pass.num_splits = static_cast<int32_t>(kernels::kPagedSplits) + 1;
  EXPECT_NE(code(), 0) << "splits";
  pass.num_splits = 1, pass.num_tiles = 1 << 27;
  EXPECT_NE(code(), 0) << "tiles";
}

TEST(PagedRows, WhatCannotBeIsRefused) {
  PagedRows rows(4, 2);
  void* block = nullptr;
  const std::span<void* const> one(&block, 1);
  EXPECT_THROW(rows.add(one, 0, 65), Error);
  EXPECT_THROW(rows.add(one, 60, 5), Error);
  const bool later[] = {true, true, false, true};
  EXPECT_THROW(rows.add(one, 0, 2, later), Error);
  EXPECT_THROW(rows.add(one, 0, 3, later), Error);
}

}  // namespace
}  // namespace specdec::fibers
