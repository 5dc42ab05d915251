// Tests products with int8 matrices on every instruction set that this machine has.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/cpu_kernels.h"

namespace specdec::kernels::cpu {
namespace {

template <class T>
class Int8Kernels : public CpuKernels<T> {};
TYPED_TEST_SUITE(Int8Kernels, Types);

struct Quantised {
  int64_t k, n;
  std::vector<Int8> w;
  std::vector<float> wide;  // the dequantised values
  Quantised(const std::vector<float>& from, int64_t k, int64_t n)
      : k(k), n(n), w(static_cast<size_t>(n * pack_row_bytes<Int8>(nullptr, k))), wide(from.size()) {
    quantise(from.data(), k, n, 0, n, w.data());
    dequantise(w.data(), k, n, 0, n, wide.data());
  }
};

TEST(Int8Weights, AreWithinHalfAStepOfTheirGroupAndQuantiseAgainToTheSame) {
  for (const int64_t k : {1, 63, 64, 65, 200}) {
    for (const int64_t n : {1, 31, 32, 33, 70}) {
      auto from = random(static_cast<size_t>(n * k), 31);
      for (int64_t i = 0; i < k; ++i) from[static_cast<size_t>(i)] = 0;  // all weights of the first output are zero
      const Quantised q(from, k, n);
      for (int64_t o = 0; o < n; ++o) {
        for (int64_t i = 0; i < k; ++i) {
          float largest = 0;
          for (int64_t j = i / 64 * 64; j < std::min(k, i / 64 * 64 + 64); ++j)
            largest = std::max(largest, std::abs(from[static_cast<size_t>(o * k + j)]));
          EXPECT_LE(std::abs(q.wide[static_cast<size_t>(o * k + i)] - from[static_cast<size_t>(o * k + i)]),
                    largest / 254 * 1.001)
              << k << " " << n;
        }
      }
      // The scales of the first group are stored first. The product of scale and integer must be exact in fp32.
      for (int64_t o = 0; o < std::min<int64_t>(n, 32); ++o) {
        float scale;
        std::memcpy(&scale, q.w.data() + 4 * o, sizeof scale);
        const float wide = q.wide[static_cast<size_t>(o * k)];
        EXPECT_EQ(wide == 0 ? 0 : static_cast<double>(scale) * std::round(wide / scale), static_cast<double>(wide))
            << k << " " << n;
      }
      const Quantised again(q.wide, k, n);
      EXPECT_EQ(std::memcmp(again.w.data(), q.w.data(), q.w.size()), 0) << k << " " << n;
    }
  }
}

// Returns the inputs as an int8 product rounds them. The step of a group of 64 inputs is 2^-15 of the power of two
// above its largest.
std::vector<float> fixed_inputs(std::vector<float> x, int64_t k) {
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(k)) {
    for (size_t first = row; first < row + static_cast<size_t>(k); first += 64) {
      const size_t end = std::min(first + 64, row + static_cast<size_t>(k));
      float largest = 0;
      for (size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
      int exponent = 0;
      std::frexp(largest, &exponent);
      for (size_t i = first; i < end; ++i)
        x[i] = std::ldexp(std::min(std::nearbyint(std::ldexp(x[i], 15 - exponent)), 32767.0f), exponent - 15);
    }
  }
  return x;
}

// Runs linear_int8 with its own workspace.
template <class T>
void int8_linear(const Kernels<T>& kernels, LinearCall<Int8, T> call) {
  std::vector<FixedInputs> fixed(static_cast<size_t>(std::min(call.rows, kFixedRows) * fixed_groups(call.k)));
  call.fixed = fixed.data();
  for (int64_t left = call.rows; left > 0;
       left -= call.rows, call.x += call.rows * call.ldx, call.out += call.rows * call.ldo) {
    call.rows = std::min(left, kFixedRows);
    kernels.linear_int8(call);
  }
}

TYPED_TEST(Int8Kernels, LinearIsTheDotProduct) {
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (const int64_t k : {1, 5, 63, 64, 100, 320}) {
      for (const int64_t n : {13, 32, 77, 130}) {
        const int64_t rows = 7;
        const auto x = random(static_cast<size_t>(rows * k), 1);
        const Quantised q(random(static_cast<size_t>(n * k), 2), k, n);
        const auto bias = narrowed(kernels, random(static_cast<size_t>(n), 3));
        const auto wide_bias = widened(kernels, bias);
        for (const int64_t used : {int64_t{1}, rows}) {
          std::vector<float> out(static_cast<size_t>(rows * n), 0.5f);
          int8_linear(kernels, {x.data(), k, used, q.w.data(), k, 2, n - 1, bias.data(), out.data(), n, true, n});
          expect_products(out, fixed_inputs(x, k), q.wide, wide_bias, rows, used, k, n, kernels.name);
        }
      }
    }
  }
}

// Instruction sets with a fused multiply-add agree bit for bit. The baseline differs, because it also rounds each
// product.
TYPED_TEST(Int8Kernels, RowsDependNeitherOnTheirNumberNorOnTheSet) {
  for (const int64_t k : {7, 64, 160, 2050}) {
    const int64_t most = 40, n = 101;
    const auto x = random(static_cast<size_t>(most * k), 4);
    const Quantised q(random(static_cast<size_t>(n * k), 5), k, n);
    std::vector<float> first;
    for (int set = 0; set < this->count; ++set) {
      const auto& kernels = *this->all[set];
      std::vector<float> all(static_cast<size_t>(most * n));
      for (int64_t r = 0; r < most; ++r)
        int8_linear(kernels, {x.data() + r * k, k, 1, q.w.data(), k, 0, n, nullptr, all.data() + r * n, n, false, n});
      for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 16, 40}) {
        std::vector<float> out(static_cast<size_t>(rows * n));
        const int64_t cut = rows * 13 % 97;  // split as between two threads
        int8_linear(kernels, {x.data(), k, rows, q.w.data(), k, 0, cut, nullptr, out.data(), n, false, n});
        int8_linear(kernels, {x.data(), k, rows, q.w.data(), k, cut, n, nullptr, out.data(), n, false, n});
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

// Tests inputs of very different sizes within a group, and groups of zeros, of tiny numbers, and of values that are not
// finite.
TYPED_TEST(Int8Kernels, ProductsTakeInputsOfAnySize) {
  const int64_t k = 64 * 6, n = 33;
  auto x = random(static_cast<size_t>(k), 7);
  for (size_t i = 0; i < 64; ++i)
    x[i] *= std::pow(10.0f, static_cast<float>(i % 9) - 4), x[64 + i] = 0, x[128 + i] *= 1e-41f, x[192 + i] *= 1e30f,
                                                                   x[256 + i] = i % 2 ? 3.99999f : -3.99999f;
  const Quantised q(random(static_cast<size_t>(n * k), 8), k, n);
  const auto taken = fixed_inputs(x, k);
  for (int set = 0; set < this->count; ++set) {
    const auto& kernels = *this->all[set];
    for (int64_t first = 0; first < k; first += 64) {  // one group at a time; the others are zero
      std::vector<float> alone(static_cast<size_t>(k)), out(static_cast<size_t>(n));
      std::copy_n(x.begin() + first, 64, alone.begin() + first);
      int8_linear(kernels, {alone.data(), k, 1, q.w.data(), k, 0, n, nullptr, out.data(), n, false, n});
      for (int64_t o = 0; o < n; ++o) {
        double sum = 0, size = 0;
        for (int64_t i = first; i < first + 64; ++i) {
          const double product =
              static_cast<double>(taken[static_cast<size_t>(i)]) * q.wide[static_cast<size_t>(o * k + i)];
          sum += product, size += std::abs(product);
        }
        EXPECT_NEAR(out[static_cast<size_t>(o)], sum, 3e-7 * size + 1e-37)
            << kernels.name << " group " << first / 64 << " output " << o;
      }
    }
    for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto with = x;
      with[300] = broken;
      std::vector<float> out(static_cast<size_t>(n));
      int8_linear(kernels, {with.data(), k, 1, q.w.data(), k, 0, n, nullptr, out.data(), n, false, n});
      for (const float value : out) EXPECT_FALSE(std::isfinite(value)) << kernels.name;
    }
  }
}

}  // namespace
}  // namespace specdec::kernels::cpu
