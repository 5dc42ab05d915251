// Runs paged_attention() on fibers.
#include <gtest/gtest.h>

#include <deque>

#include "base/error.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/paged_rows.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
namespace twins = kernels::twins;
using kernels::kPagedSlots;
using kernels::PagedRows;

constexpr size_t kLayers = 2, kLayer = 1;  // of two layers the second one, so that a wrong layer is noticed

struct Shape {
  CudaDtype dtype;
  size_t heads, kv_heads, d;
  double scale = 0.4, soft_cap = 0;  // large scores, so that a single key matters
  int window = 0;
  size_t times() const { return heads / kv_heads; }
};

// Returns whether row i of a part sees its row j.
using Mask = std::vector<std::vector<bool>>;
Mask causal(size_t rows) {
  Mask mask(rows, std::vector<bool>(rows));
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j <= i; ++j) mask[i][j] = true;
  return mask;
}
// A tree in which node i follows node parents[i], or the text.
Mask tree(const std::vector<int>& parents) {
  Mask mask(parents.size(), std::vector<bool>(parents.size()));
  for (size_t i = 0; i < parents.size(); ++i)
    for (int node = static_cast<int>(i); node >= 0; node = parents[static_cast<size_t>(node)])
      mask[i][static_cast<size_t>(node)] = true;
  return mask;
}

// A sequence whose keys lie in blocks of their own. The keys and values of all its slots are known from the start, and
// a pass writes those of its rows.
class Sequence {
 public:
  Sequence(const Shape& shape, size_t slots, uint64_t stream) : shape_(shape), slots_(slots) {
    const size_t width = shape.kv_heads * shape.d;
    for (uint64_t side = 0; side < 2; ++side) values_[side] = random_values(shape.dtype, slots * width, stream + side);
    queries_ = random_values(shape.dtype, slots * shape.heads * shape.d, stream + 2, 2);
    for (size_t i = 0; i * kPagedSlots < slots; ++i) {
      blocks_.emplace_back(shape.dtype, kLayers * 2 * width * kPagedSlots);
      addresses_.push_back(blocks_.back().data());
    }
  }
  std::span<void* const> addresses() const { return addresses_; }
  size_t slots() const { return slots_; }

  // Puts the keys and values below slot `length` in their places.
  void cache(size_t length) {
    for (size_t slot = 0; slot < length; ++slot)
      for (size_t side = 0; side < 2; ++side)
        for (size_t head = 0; head < shape_.kv_heads; ++head)
          for (size_t i = 0; i < shape_.d; ++i) {
            const size_t at =
                (((kLayer * 2 + side) * shape_.kv_heads + head) * kPagedSlots + slot % kPagedSlots) * shape_.d + i;
            blocks_[slot / kPagedSlots].as<uint16_t>()[at] =
                static_cast<uint16_t>(bits_of(shape_.dtype, value(side, slot, head, i)));
          }
  }
  // Returns what row `slot` should give, [heads, d], if it sees the slots below `length` and those in `also`.
  Values expected(size_t slot, size_t length, const std::vector<size_t>& also) const {
    std::vector<size_t> seen;
    for (size_t i = 0; i < length; ++i) seen.push_back(i);
    seen.insert(seen.end(), also.begin(), also.end());
    if (shape_.window > 0 && seen.size() > static_cast<size_t>(shape_.window))
      seen.erase(seen.begin(), seen.end() - shape_.window);
    Values out;
    for (size_t head = 0; head < shape_.heads; ++head) {
      Values keys, values;
      for (const size_t s : seen)
        for (size_t i = 0; i < shape_.d; ++i) {
          keys.push_back(value(0, s, head / shape_.times(), i));
          values.push_back(value(1, s, head / shape_.times(), i));
        }
      const auto q = queries_.begin() + static_cast<std::ptrdiff_t>((slot * shape_.heads + head) * shape_.d);
      const Values one =
          twins::attention({q, q + static_cast<std::ptrdiff_t>(shape_.d)}, keys, values, shape_.scale, shape_.soft_cap);
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }
  Values of_rows(const Values& all, size_t width, size_t length, size_t count) const {
    const auto at = [&](size_t slot) { return all.begin() + static_cast<std::ptrdiff_t>(slot * width); };
    return {at(length), at(length + count)};
  }
  Values queries(size_t length, size_t count) const {
    return of_rows(queries_, shape_.heads * shape_.d, length, count);
  }
  Values side(size_t which, size_t length, size_t count) const {
    return of_rows(values_[which], shape_.kv_heads * shape_.d, length, count);
  }

 private:
  double value(size_t side, size_t slot, size_t head, size_t i) const {
    return values_[side][(slot * shape_.kv_heads + head) * shape_.d + i];
  }
  Shape shape_;
  size_t slots_;
  Values values_[2], queries_;
  std::deque<Array> blocks_;
  std::vector<void*> addresses_;
};

// The rows that a sequence has in a pass.
struct Part {
  Sequence* sequence;
  size_t length;
  Mask mask;
  size_t rows() const { return mask.size(); }
};

// Runs one pass and returns the bytes of its results, and their values.
std::vector<uint8_t> attend(const Shape& shape, const std::vector<Part>& parts, Values* values = nullptr) {
  PagedRows list(static_cast<int64_t>(shape.heads), static_cast<int64_t>(shape.kv_heads));
  Values q, k, v;
  for (const Part& part : parts) {
    const auto flat = std::make_unique<bool[]>(part.rows() * part.rows());
    for (size_t i = 0; i < part.rows(); ++i)
      for (size_t j = 0; j < part.rows(); ++j) flat[i * part.rows() + j] = part.mask[i][j];
    const bool plain = part.mask == causal(part.rows());
    list.add(part.sequence->addresses(), static_cast<int64_t>(part.length), static_cast<int64_t>(part.rows()),
             plain ? std::span<const bool>() : std::span<const bool>(flat.get(), part.rows() * part.rows()));
    const auto append = [](Values& to, const Values& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(q, part.sequence->queries(part.length, part.rows()));
    append(k, part.sequence->side(0, part.length, part.rows()));
    append(v, part.sequence->side(1, part.length, part.rows()));
  }
  DeviceMemory<kernels::PagedRow> rows(list.rows());
  DeviceMemory<kernels::PagedTile> tiles(list.tiles());
  DeviceMemory<uint64_t> blocks(list.blocks());
  DeviceMemory<float> work(static_cast<size_t>(list.num_parts()) * shape.kv_heads * kernels::kPagedQueries *
                           (shape.d + 2));
  Array queries(shape.dtype, q), keys(shape.dtype, k), vals(shape.dtype, v), out(shape.dtype, q.size());
  const auto narrow = [](size_t n) { return static_cast<int32_t>(n); };
  const kernels::PagedPass pass = {rows.data(),       tiles.data(),        blocks.data(),
                                   work.data(),       narrow(rows.size()), narrow(tiles.size()),
                                   list.num_splits(), narrow(shape.heads), narrow(shape.kv_heads),
                                   narrow(shape.d)};
  const kernels::PagedLayer layer = {narrow(kLayer),
                                     static_cast<float>(shape.scale),
                                     static_cast<float>(shape.soft_cap),
                                     shape.window,
                                     queries.data(),
                                     keys.data(),
                                     vals.data(),
                                     out.data()};
  EXPECT_EQ(cuda::launch_paged_attention(shape.dtype, pass, layer, nullptr), 0);
  work.check_borders();
  if (values) *values = out.values();
  return out.bytes();
}

// Expects that a pass gives what the twin gives. Weights of keys are rounded to the type before they multiply values
// of size 1, and the result is rounded, too: together at most half a step at 1.
void expect_attention(const Shape& shape, const std::vector<Part>& parts, const std::string& name) {
  Values expected;
  for (const Part& part : parts) {
    part.sequence->cache(part.length);
    for (size_t i = 0; i < part.rows(); ++i) {
      std::vector<size_t> also;
      for (size_t j = 0; j < part.rows(); ++j)
        if (part.mask[i][j]) also.push_back(part.length + j);
      const Values one = part.sequence->expected(part.length + i, part.length, also);
      expected.insert(expected.end(), one.begin(), one.end());
    }
  }
  std::vector<uint8_t> first;
  for (const uint64_t seed : {1, 2}) {
    settings().seed = seed;
    Values found;
    const std::vector<uint8_t> bytes = attend(shape, parts, &found);
    if (seed == 1) first = bytes;
    EXPECT_EQ(bytes, first) << name << ": the order of threads changes the bits";
    double most = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = std::fabs(found[i] - expected[i]);
      most = error <= most ? most : error;  // keeps what is not a number
    }
    EXPECT_LE(most, twins::spacing(shape.dtype, 1.0) / 2) << name;
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
      expect_attention(shape, {{&sequence, length, causal(5)}},
                       name_of(shape.dtype) + " " + std::to_string(shape.d) + " after " + std::to_string(length));
    }
}

TEST(PagedAttention, EqualsItsTwinOverManySequences) {
  const Shape shape = {CudaDtype::kHalf, 4, 2, 64};
  Sequence a(shape, 40, 10), b(shape, 3, 20), c(shape, 145, 30), d(shape, 64, 40);
  expect_attention(shape, {{&a, 20, causal(20)}, {&b, 0, causal(1)}, {&c, 127, causal(9)}, {&d, 0, causal(64)}},
                   "sequences");
}

TEST(PagedAttention, EqualsItsTwinUnderTreesWindowsAndCaps) {
  const Mask nodes = tree({-1, -1, 0, 0, 1, 2, 2, 5, 3, -1});
  for (const size_t length : {0, 3, 60, 100})
    for (const int window : {0, 1, 3, 40, 64, 70}) {
      const Shape shape = {CudaDtype::kHalf, 2, 1, 32, 0.4, window == 3 ? 2.0 : 0.0, window};
      Sequence sequence(shape, length + nodes.size(), length + 7);
      expect_attention(shape, {{&sequence, length, nodes}},
                       "a tree after " + std::to_string(length) + " with window " + std::to_string(window));
    }
}

// Beyond 4,096 keys a block reads more of them. Rows on both sides of the border are divided as they are alone.
TEST(PagedAttention, ARowsBitsDependOnItselfAlone) {
  const Shape shape = {CudaDtype::kHalf, 2, 1, 16};
  EXPECT_EQ(kernels::paged_split(4096), 128);
  EXPECT_EQ(kernels::paged_split(4097), 256);
  for (const size_t length : {size_t{5}, size_t{62}, size_t{127}, size_t{4093}}) {
    Sequence sequence(shape, length + 6, 3), other(shape, 30, 4);
    sequence.cache(length), other.cache(25);
    const std::vector<uint8_t> together =
        attend(shape, {{&other, 25, causal(2)}, {&sequence, length, causal(6)}, {&other, 27, causal(1)}});
    const size_t row = shape.heads * shape.d * 2;
    for (const size_t i : {0, 3, 5}) {
      const std::vector<uint8_t> alone = attend(shape, {{&sequence, length + i, causal(1)}});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>((2 + i) * row)))
          << "row " << i << " after " << length;
    }
  }
}

TEST(PagedAttention, NoBarrierCanBeLeftOut) {
  const Shape shape = {CudaDtype::kHalf, 16, 1, 16};
  Sequence sequence(shape, 100, 5);
  sequence.cache(99);
  settings() = {.barriers = {}};
  const std::vector<uint8_t> right = attend(shape, {{&sequence, 99, causal(1)}});
  const std::vector<Site> barriers = settings().barriers;
  EXPECT_EQ(barriers.size(), 2u);
  for (const Site& barrier : barriers) {
    bool noticed = false;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      settings().seed = seed;
      settings().without = barrier;
      noticed |= attend(shape, {{&sequence, 99, causal(1)}}) != right;
    }
    EXPECT_TRUE(noticed) << "nothing changes without the barrier of line " << barrier.line;
  }
  settings() = {};
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
