// Compares the kernel prepare_heads(), on fibers, with the kernels that it replaces: norms, rotation, writing of slots.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;

constexpr float kEps = 1e-5f;
constexpr size_t kLayers = 2, kLayer = 1, kSlots = kernels::kPagedSlots;

struct Shape {
  CudaDtype dtype;
  size_t heads, kv_heads, d, rotated;
  bool normed;
};

// The cache slots of the rows: in two blocks, and not in ascending order.
constexpr int32_t kPlaces[] = {3, 64, 0, 127, 65};
constexpr size_t kRows = std::size(kPlaces);

// Returns columns [begin, begin + width) of `values`, whose rows have `all` numbers each.
Values columns(const Values& values, size_t all, size_t begin, size_t width) {
  Values out;
  for (size_t row = 0; row < values.size() / all; ++row)
    for (size_t i = 0; i < width; ++i) out.push_back(values[row * all + begin + i]);
  return out;
}

// Returns what rms_norm() and rope(), one after the other, compute of heads [rows, heads, d].
Values separately(const Shape& s, const Values& in, size_t heads, const Values& weight, const Values& cosines,
                  const Values& sines) {
  Values out = in;
  if (s.normed) {
    Array x(s.dtype, in), w(s.dtype, weight), normed(s.dtype, in.size());
    EXPECT_EQ(cuda::launch_rms_norm(s.dtype, x.data(), w.data(), kEps, static_cast<int64_t>(kRows * heads),
                                    static_cast<int64_t>(s.d), normed.data(), stream()),
              0);
    out = normed.values();
  }
  if (s.rotated == 0) return out;
  // rope() rotates whole heads, so it gets only the part of each head that is rotated.
  const Values part = columns(out, s.d, 0, s.rotated);
  Array x(s.dtype, part), c(CudaDtype::kFloat, cosines), sine(CudaDtype::kFloat, sines), turned(s.dtype, part.size());
  EXPECT_EQ(cuda::launch_rope(s.dtype, x.data(), c.as<float>(), sine.as<float>(), kRows, static_cast<int64_t>(heads),
                              static_cast<int64_t>(s.rotated), turned.data(), stream()),
            0);
  const Values done = turned.values();
  for (size_t i = 0; i < done.size(); ++i) out[i / s.rotated * s.d + i % s.rotated] = done[i];
  return out;
}

void expect_equal(const Shape& s) {
  const size_t all = (s.heads + 2 * s.kv_heads) * s.d, block = kLayers * 2 * s.kv_heads * kSlots * s.d;
  const Values projected = random_values(s.dtype, kRows * all, 1), q_norm = random_values(s.dtype, s.d, 2),
               k_norm = random_values(s.dtype, s.d, 3);
  Values cosines, sines;
  for (size_t i = 0; i < kRows * s.rotated / 2; ++i) {
    cosines.push_back(kernels::twins::rounded(CudaDtype::kFloat, std::cos(static_cast<double>(i))));
    sines.push_back(kernels::twins::rounded(CudaDtype::kFloat, std::sin(static_cast<double>(i))));
  }
  Array in(s.dtype, projected), q_weight(s.dtype, q_norm), k_weight(s.dtype, k_norm), c(CudaDtype::kFloat, cosines),
      sine(CudaDtype::kFloat, sines), q(s.dtype, kRows * s.heads * s.d), first(s.dtype, block), second(s.dtype, block);
  std::vector<kernels::PagedRow> places;
  for (const int32_t slot : kPlaces) places.push_back({1, 1, slot});  // the sequence's blocks are addresses 1 and 2
  DeviceMemory<kernels::PagedRow> rows(places);
  DeviceMemory<uint64_t> blocks(
      std::vector<uint64_t>{0, reinterpret_cast<uint64_t>(first.data()), reinterpret_cast<uint64_t>(second.data())});
  kernels::PagedPass pass = {};
  pass.rows = rows.data(), pass.blocks = blocks.data(), pass.num_rows = kRows;
  pass.heads = static_cast<int32_t>(s.heads), pass.kv_heads = static_cast<int32_t>(s.kv_heads);
  pass.d = static_cast<int32_t>(s.d);
  kernels::PagedHeads heads = {};
  heads.layer = kLayer, heads.rotated = static_cast<int32_t>(s.rotated), heads.projected = in.data();
  heads.eps = kEps, heads.cos = c.as<float>(), heads.sin = sine.as<float>(), heads.q = q.data();
  if (s.normed) heads.q_norm = q_weight.data(), heads.k_norm = k_weight.data();
  ASSERT_EQ(cuda::launch_prepare_heads(s.dtype, pass, heads, stream()), 0);

  const std::string name = name_of(s.dtype) + ", d " + std::to_string(s.d) + ", rotated " + std::to_string(s.rotated);
  const Values queries = separately(s, columns(projected, all, 0, s.heads * s.d), s.heads, q_norm, cosines, sines);
  EXPECT_EQ(q.values(), queries) << name;
  const Values keys = separately(s, columns(projected, all, s.heads * s.d, s.kv_heads * s.d), s.kv_heads, k_norm,
                                 cosines, sines),
               values = columns(projected, all, (s.heads + s.kv_heads) * s.d, s.kv_heads * s.d);
  const Values stored[] = {first.values(), second.values()};
  size_t written = 0;
  for (const Values& side : stored)
    written += static_cast<size_t>(std::count_if(side.begin(), side.end(), [](double x) { return x == x; }));
  EXPECT_EQ(written, 2 * kRows * s.kv_heads * s.d) << name << ": nothing else is written";
  for (size_t row = 0; row < kRows; ++row)
    for (size_t side : {0, 1})
      for (size_t head = 0; head < s.kv_heads; ++head)
        for (size_t i = 0; i < s.d; ++i) {
          const auto slot = static_cast<size_t>(kPlaces[row]);
          const size_t at = (((kLayer * 2 + side) * s.kv_heads + head) * kSlots + slot % kSlots) * s.d + i;
          ASSERT_EQ(stored[slot / kSlots][at], (side == 0 ? keys : values)[(row * s.kv_heads + head) * s.d + i])
              << name << ", row " << row << ", side " << side;
        }
}

TEST(PrepareHeads, EqualsTheKernelsThatItReplaces) {
  for (const CudaDtype dtype : {CudaDtype::kBFloat16, CudaDtype::kHalf})
    for (const bool normed : {false, true}) {
      expect_equal({dtype, 4, 2, 64, 64, normed});
      expect_equal({dtype, 3, 1, 40, 40, normed});
      expect_equal({dtype, 2, 2, 80, 32, normed});  // a part of each head is rotated
      expect_equal({dtype, 1, 1, 128, 0, normed});  // no part of a head is rotated
      expect_equal({dtype, 5, 5, 256, 256, normed});
    }
}

}  // namespace
}  // namespace specdec::fibers
