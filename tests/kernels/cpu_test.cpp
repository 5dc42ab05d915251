// Tests the CPU kernels, which work on plain arrays, for every instruction set that this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "engine/kernels/team.h"
#include "tests/kernels/cpu_kernels.h"

namespace specdec::kernels::cpu {
namespace {

// Returns the addresses of the blocks of a contiguous array [slots, d].
template <class T>
std::vector<const void*> blocks_of(const std::vector<T>& x, int64_t d) {
  std::vector<const void*> out;
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(kBlockSlots * d)) out.push_back(x.data() + at);
  return out;
}

TYPED_TEST_SUITE(CpuKernels, Types);

TYPED_TEST(CpuKernels, LinearIsTheDotProduct) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t k : {1, 5, 8, 17, 44, 160}) {
      const int64_t rows = 7, n = 13;
      const auto x = random(static_cast<size_t>(rows * k), 1);
      const auto w = narrowed(kernels, random(static_cast<size_t>(n * k), 2)),
                 bias = narrowed(kernels, random(static_cast<size_t>(n), 3));
      const auto wide = widened(kernels, w), wide_bias = widened(kernels, bias);
      std::vector<float> out(static_cast<size_t>(rows * n), 0.5f);
      kernels.linear({x.data(), k, rows, w.data(), k, 2, n, bias.data(), out.data(), n, true});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          double sum = 0;
          for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(x[r * k + i]) * wide[c * k + i];
          EXPECT_NEAR(out[r * n + c], c < 2 ? 0.5 : 0.5 + sum + wide_bias[c], 1e-5)
              << kernels.name << " k " << k << " row " << r << " column " << c;
        }
      }
    }
  }
}

// Verification needs this property: a row's bits do not depend on the rows, columns or tile computed with it.
TYPED_TEST(CpuKernels, LinearRowsDoNotDependOnTheirNumber) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t k : {7, 44, 160, 4099}) {
      const int64_t most = 40, n = 29;
      const auto x = random(static_cast<size_t>(most * k), 4);
      const auto w = narrowed(kernels, random(static_cast<size_t>(n * k), 5));
      std::vector<float> all(static_cast<size_t>(most * n));
      for (int64_t r = 0; r < most; ++r)
        kernels.linear({x.data() + r * k, k, 1, w.data(), k, 0, n, nullptr, all.data() + r * n, n, false});
      for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 16, 40}) {
        std::vector<float> out(static_cast<size_t>(rows * n));
        const int64_t cut = rows % 11;  // split as between two threads
        kernels.linear({x.data(), k, rows, w.data(), k, 0, cut, nullptr, out.data(), n, false});
        kernels.linear({x.data(), k, rows, w.data(), k, cut, n, nullptr, out.data(), n, false});
        EXPECT_EQ(std::memcmp(out.data(), all.data(), out.size() * sizeof(float)), 0)
            << kernels.name << " k " << k << " rows " << rows;
      }
    }
  }
}

template <class T>
std::vector<Packed<T>> packed(const std::vector<T>& w, int64_t k, int64_t n) {
  std::vector<Packed<T>> out(static_cast<size_t>(n * pack_row_bytes<Packed<T>>(nullptr, k)) / sizeof(T));
  const int64_t half = n / 64 * 32;  // split as between two threads
  pack(w.data(), k, n, 0, half, out.data());
  pack(w.data(), k, n, half, n, out.data());
  return out;
}

TYPED_TEST(CpuKernels, PackedMatricesComeBackAndTheirLinearIsTheDotProduct) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t k : {1, 5, 63, 64, 100, 320}) {
      for (const int64_t n : {13, 32, 77, 130}) {
        const int64_t rows = 9;
        const auto x = random(static_cast<size_t>(rows * k), 1);
        const auto w = narrowed(kernels, random(static_cast<size_t>(n * k), 2)),
                   bias = narrowed(kernels, random(static_cast<size_t>(n), 3));
        const auto wide = widened(kernels, w), wide_bias = widened(kernels, bias);
        const auto stream = packed(w, k, n);
        auto back = w;
        std::memset(static_cast<void*>(back.data()), 0xff, back.size() * sizeof back[0]);
        unpack(stream.data(), k, n, 0, n, back.data());
        EXPECT_EQ(std::memcmp(back.data(), w.data(), w.size() * sizeof w[0]), 0) << k << " " << n;
        for (const int64_t used : {int64_t{1}, int64_t{2}, rows}) {
          std::vector<float> out(static_cast<size_t>(rows * n), 0.5f);
          kernels.linear_packed({x.data(), k, used, stream.data(), k, 2, n - 1, bias.data(), out.data(), n, true, n});
          expect_products(out, x, wide, wide_bias, rows, used, k, n, kernels.name);
        }
      }
    }
  }
}

TYPED_TEST(CpuKernels, PackedRowsDependNeitherOnTheirNumberNorOnTheSet) {
  for (const int64_t k : {7, 64, 160, 2050}) {
    const int64_t most = 40, n = 101;
    const auto x = random(static_cast<size_t>(most * k), 4);
    std::vector<float> first;
    for (int set = 0; set < this->count; ++set) {
      const auto& kernels = *this->all[set];
      const auto w = packed(narrowed(kernels, random(static_cast<size_t>(n * k), 5)), k, n);
      std::vector<float> all(static_cast<size_t>(most * n));
      for (int64_t r = 0; r < most; ++r)
        kernels.linear_packed({x.data() + r * k, k, 1, w.data(), k, 0, n, nullptr, all.data() + r * n, n, false, n});
      for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 16, 40}) {
        std::vector<float> out(static_cast<size_t>(rows * n));
        const int64_t cut = rows * 13 % 97;
        kernels.linear_packed({x.data(), k, rows, w.data(), k, 0, cut, nullptr, out.data(), n, false, n});
        kernels.linear_packed({x.data(), k, rows, w.data(), k, cut, n, nullptr, out.data(), n, false, n});
        EXPECT_EQ(std::memcmp(out.data(), all.data(), out.size() * sizeof(float)), 0)
            << kernels.name << " k " << k << " rows " << rows;
      }
      if (set == 0) first = all;
      const bool fused = std::strcmp(kernels.name, "baseline") != 0;
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_NEAR(all[i], first[i], fused ? 0 : 2e-5) << kernels.name << " k " << k;
    }
  }
}

TYPED_TEST(CpuKernels, AttentionIsTheSoftmaxAverage) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t d : {2, 8, 12, 32, 80}) {
      const int64_t heads = 3, slots = 23;
      const auto q = random(static_cast<size_t>(heads * d), 6);
      const auto k = narrowed(kernels, random(static_cast<size_t>(slots * d), 7)),
                 v = narrowed(kernels, random(static_cast<size_t>(slots * d), 8));
      const auto k_blocks = blocks_of(k, d), v_blocks = blocks_of(v, d);
      const auto wide_k = widened(kernels, k), wide_v = widened(kernels, v);
      const std::vector<int32_t> extra = {17, 20, 21};
      std::vector<float> scores(static_cast<size_t>(heads * slots)), out(static_cast<size_t>(heads * d));
      const Visible visible{15, extra.data(), 3};
      kernels.attention({q.data(),
                         heads * d,
                         1,
                         heads,
                         d,
                         {k_blocks.data()},
                         {v_blocks.data()},
                         &visible,
                         0.7f,
                         scores.data(),
                         slots,
                         out.data()});
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> expected(static_cast<size_t>(d));
        double total = 0;
        for (int64_t s = 0; s < slots; ++s) {
          if (s >= 15 && s != 17 && s != 20 && s != 21) continue;
          double dot = 0;
          for (int64_t i = 0; i < d; ++i) dot += static_cast<double>(q[h * d + i]) * wide_k[s * d + i];
          total += std::exp(0.7 * dot);
          for (int64_t i = 0; i < d; ++i) expected[i] += std::exp(0.7 * dot) * wide_v[s * d + i];
        }
        for (int64_t i = 0; i < d; ++i)
          EXPECT_NEAR(out[h * d + i], expected[i] / total, 1e-5) << kernels.name << " d " << d;
      }
    }
  }
}

// A window hides all but the last visible keys, whether their slots are listed or contiguous. A soft cap limits the
// scores.
TYPED_TEST(CpuKernels, AttentionWithWindowAndSoftCap) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    const int64_t heads = 2, d = 24, slots = 23;
    const auto q = random(static_cast<size_t>(heads * d), 6);
    const auto k = narrowed(kernels, random(static_cast<size_t>(slots * d), 7)),
               v = narrowed(kernels, random(static_cast<size_t>(slots * d), 8));
    const auto k_blocks = blocks_of(k, d), v_blocks = blocks_of(v, d);
    const auto wide_k = widened(kernels, k), wide_v = widened(kernels, v);
    const std::vector<int32_t> extra = {17, 20, 21};
    for (const float cap : {0.0f, 1.5f}) {
      for (const int64_t first : {0, 1, 7, 14, 16}) {
        std::vector<int64_t> seen;
        for (int64_t i = first; i < 18; ++i) seen.push_back(i < 15 ? i : extra[static_cast<size_t>(i - 15)]);
        std::vector<float> scores(static_cast<size_t>(heads * slots), std::nanf("")),
            out(static_cast<size_t>(heads * d));
        const Visible visible{15, extra.data(), 3, first};
        kernels.attention({q.data(),
                           heads * d,
                           1,
                           heads,
                           d,
                           {k_blocks.data()},
                           {v_blocks.data()},
                           &visible,
                           0.7f,
                           scores.data(),
                           slots,
                           out.data(),
                           cap});
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<double> expected(static_cast<size_t>(d));
          double total = 0;
          for (const int64_t s : seen) {
            double score = 0;
            for (int64_t i = 0; i < d; ++i)
              score += 0.7 * q[static_cast<size_t>(h * d + i)] * wide_k[static_cast<size_t>(s * d + i)];
            if (cap != 0) score = cap * std::tanh(score / cap);
            total += std::exp(score);
            for (int64_t i = 0; i < d; ++i)
              expected[static_cast<size_t>(i)] += std::exp(score) * wide_v[static_cast<size_t>(s * d + i)];
          }
          for (int64_t i = 0; i < d; ++i)
            EXPECT_NEAR(out[static_cast<size_t>(h * d + i)], expected[static_cast<size_t>(i)] / total, 1e-5)
                << kernels.name << " first " << first << " cap " << cap;
        }
      }
    }
  }
}

// Listed slots give the same bits as contiguous slots, so a branch of a tree equals the same tokens as a chain.
TYPED_TEST(CpuKernels, ListedSlotsEqualContiguousOnes) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    const int64_t heads = 2, d = 24, slots = 40;
    const auto q = random(static_cast<size_t>(heads * d), 9);
    auto k = narrowed(kernels, random(static_cast<size_t>(slots * d), 10)),
         v = narrowed(kernels, random(static_cast<size_t>(slots * d), 11));
    const auto k_blocks = blocks_of(k, d), v_blocks = blocks_of(v, d);
    std::vector<float> scores(static_cast<size_t>(heads * slots)), listed(static_cast<size_t>(heads * d)),
        alone(listed.size());
    const std::vector<int32_t> extra = {19, 23, 30, 38};
    const Visible tree{18, extra.data(), 4}, chain{22, nullptr, 0};
    kernels.attention({q.data(),
                       heads * d,
                       1,
                       heads,
                       d,
                       {k_blocks.data()},
                       {v_blocks.data()},
                       &tree,
                       1.0f,
                       scores.data(),
                       slots,
                       listed.data()});
    for (size_t i = 0; i < extra.size(); ++i) {
      std::copy_n(k.begin() + extra[i] * d, d, k.begin() + (18 + static_cast<int64_t>(i)) * d);
      std::copy_n(v.begin() + extra[i] * d, d, v.begin() + (18 + static_cast<int64_t>(i)) * d);
    }
    kernels.attention({q.data(),
                       heads * d,
                       1,
                       heads,
                       d,
                       {k_blocks.data()},
                       {v_blocks.data()},
                       &chain,
                       1.0f,
                       scores.data(),
                       slots,
                       alone.data()});
    EXPECT_EQ(std::memcmp(listed.data(), alone.data(), alone.size() * sizeof(float)), 0) << kernels.name;
  }
}

// Each position gives the same bits together with others as alone. A position that sees no key gives zeros.
TYPED_TEST(CpuKernels, AttentionRowsDoNotDependOnTheirNumber) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t d : {6, 8, 24, 32, 72}) {
      for (const int64_t heads : {1, 3}) {
        const int64_t rows = 5, slots = 50, width = heads * d + 7;
        const auto q = random(static_cast<size_t>(rows * width), 14);
        const auto k = narrowed(kernels, random(static_cast<size_t>(slots * d), 15)),
                   v = narrowed(kernels, random(static_cast<size_t>(slots * d), 16));
        const auto k_blocks = blocks_of(k, d), v_blocks = blocks_of(v, d);
        const std::vector<int32_t> extra = {42, 43, 49};
        const Visible all_visible[][5] = {
            {{37, nullptr, 0}, {38, nullptr, 0}, {39, nullptr, 0}, {40, nullptr, 0}, {41, nullptr, 0}},
            {{36, extra.data(), 1},
             {36, extra.data() + 1, 2},
             {38, extra.data(), 3},
             {0, extra.data(), 2},
             {0, nullptr, 0}},
            {{37, nullptr, 0, 20},
             {38, nullptr, 0, 21},
             {39, nullptr, 0, 22},
             {40, nullptr, 0, 23},
             {41, nullptr, 0, 40}},
            {{36, extra.data(), 3, 38},
             {12, nullptr, 0, 5},
             {40, nullptr, 0, 33},
             {36, extra.data(), 2, 31},
             {0, extra.data(), 3, 1}}};
        for (const auto& visible : all_visible) {
          std::vector<float> scores(static_cast<size_t>(rows * heads * slots), std::nanf("")), together(q.size(), 9),
              alone(q.size(), 9);
          kernels.attention({q.data(),
                             width,
                             rows,
                             heads,
                             d,
                             {k_blocks.data()},
                             {v_blocks.data()},
                             visible,
                             0.5f,
                             scores.data(),
                             slots,
                             together.data()});
          for (int64_t r = 0; r < rows; ++r)
            kernels.attention({q.data() + r * width,
                               width,
                               1,
                               heads,
                               d,
                               {k_blocks.data()},
                               {v_blocks.data()},
                               visible + r,
                               0.5f,
                               scores.data(),
                               slots,
                               alone.data() + r * width});
          EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0)
              << kernels.name << " d " << d << " heads " << heads;
          if (visible[4].prefix + visible[4].num_extra == 0) {
            EXPECT_EQ(together[static_cast<size_t>(4 * width)], 0) << kernels.name;
          }
        }
      }
    }
  }
}

// Blocks that are scattered, in reverse order and at an offset give the same bits as contiguous ones.
TYPED_TEST(CpuKernels, AttentionReadsBlocksWhereverTheyLie) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t d : {6, 8, 40, 72}) {
      const int64_t rows = 3, heads = 2, slots = 5 * kBlockSlots - 7, width = heads * d, offset = 3,
                    stride = kBlockSlots * d + 5;
      const auto q = random(static_cast<size_t>(rows * width), 17);
      const auto k = narrowed(kernels, random(static_cast<size_t>(slots * d), 18)),
                 v = narrowed(kernels, random(static_cast<size_t>(slots * d), 19));
      const auto k_blocks = blocks_of(k, d), v_blocks = blocks_of(v, d);
      std::vector<TypeParam> memory(static_cast<size_t>(10 * stride));
      std::vector<const void*> places[2];
      for (const auto* side : {&k, &v}) {
        for (int64_t block = 0; block < 5; ++block) {
          TypeParam* const place = memory.data() + (9 - 2 * block - (side == &k ? 0 : 1)) * stride;
          std::copy_n(side->begin() + block * kBlockSlots * d, std::min(kBlockSlots, slots - block * kBlockSlots) * d,
                      place + offset);
          places[side == &k ? 0 : 1].push_back(place);
        }
      }
      const std::vector<int32_t> extra = {101, 127, 128, 152};
      const Visible all_visible[][3] = {{{150, nullptr, 0}, {151, nullptr, 0}, {152, nullptr, 0}},
                                        {{97, extra.data(), 4}, {100, extra.data(), 2}, {0, extra.data(), 4}},
                                        {{140, nullptr, 0, 33}, {141, nullptr, 0, 64}, {142, nullptr, 0, 127}}};
      for (const auto& visible : all_visible) {
        std::vector<float> scores(static_cast<size_t>(rows * heads * slots)), expected(q.size(), 9), found(q.size());
        kernels.attention({q.data(),
                           width,
                           rows,
                           heads,
                           d,
                           {k_blocks.data()},
                           {v_blocks.data()},
                           visible,
                           0.5f,
                           scores.data(),
                           slots,
                           expected.data()});
        kernels.attention({q.data(),
                           width,
                           rows,
                           heads,
                           d,
                           {places[0].data(), offset},
                           {places[1].data(), offset},
                           visible,
                           0.5f,
                           scores.data(),
                           slots,
                           found.data()});
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
            << kernels.name << " d " << d;
      }
    }
  }
}

TYPED_TEST(CpuKernels, ElementWise) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    const int64_t n = 37;
    auto x = random(n, 12), y = random(n, 13);
    for (int64_t i = 0; i < n; ++i) x[i] *= 100.0f * static_cast<float>(i) / n;  // reaches both ends of exp's range
    std::vector<float> out(n);
    kernels.silu_mul(x.data(), y.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) {
      const double expected = x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * y[i];
      EXPECT_NEAR(out[i], expected, 1e-6 + 1e-6 * std::abs(expected)) << kernels.name << " " << x[i];
    }
    kernels.gelu_tanh_mul(x.data(), y.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) {
      const double g = x[i],
                   expected =
                       0.5 * g * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g))) * y[i];
      EXPECT_NEAR(out[i], expected, 1e-6 + 1e-6 * std::abs(expected)) << kernels.name << " " << x[i];
    }
    std::vector<float> capped = x;
    kernels.soft_cap(capped.data(), n, 0.5f, 30.0f);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(capped[i], 30 * std::tanh(0.5 * x[i] / 30), 1e-6 + 1e-6 * std::abs(x[i]))
          << kernels.name << " " << x[i];
    const auto weight = narrowed(kernels, y);
    kernels.rms_norm(x.data(), weight.data(), 1e-5f, 0.0f, n, out.data());
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * value;
    const auto wide = widened(kernels, weight);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(out[i], x[i] / std::sqrt(squares / n + 1e-5) * wide[i], 1e-5) << kernels.name;
    kernels.rms_norm(x.data(), weight.data(), 1e-5f, 1.0f, n, x.data());  // in place, with weights stored as weight − 1
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(x[i], out[i] + out[i] / wide[i], 1e-5 * (1 + std::abs(out[i] / wide[i]))) << kernels.name;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  // 1 + 1/256 and 1 + 3/256 are half-way between two bf16 numbers, so they round to the even one.
  const float in[] = {1.0f, 1.00390625f, 1.01171875f, 3.4e38f, -0.0f, std::nanf("")};
  const uint16_t expected[] = {0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x8000, 0x7fc0};
  const Kernels<Bf16>* all[kInstructionSets];
  for (int set = available<Bf16>(all) - 1; set >= 0; --set) {
    Bf16 out[6];
    all[set]->narrow(in, 6, out);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(out[i].bits, expected[i]) << all[set]->name << " " << in[i];
  }
}

TEST(Team, EveryPartOnceAndBarriersHold) {
  for (const int threads : {1, 2, 3, 5}) {
    std::vector<int> first(1003), second(1003);
    bool complete = true;
    run_team(threads, [&](const Member& member) {
      const auto [begin, end] = member.part(1003, 8);
      for (int64_t i = begin; i < end; ++i) ++first[static_cast<size_t>(i)];
      member.barrier();
      for (int64_t i = member.id; i < 1003; i += member.size)
        second[static_cast<size_t>(i)] = first[static_cast<size_t>(1002 - i)];
      member.barrier();
      if (member.id == 0) {
        for (const int value : second) complete &= value == 1;
      }
    });
    EXPECT_TRUE(complete) << threads;
  }
}

}  // namespace
}  // namespace specdec::kernels::cpu
