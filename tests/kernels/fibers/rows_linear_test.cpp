// Runs rows_linear() on fibers.
#include <gtest/gtest.h>

#include <array>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
namespace twins = kernels::twins;

constexpr CudaDtype kHalves[] = {CudaDtype::kBFloat16, CudaDtype::kHalf};

struct Product {
  CudaDtype dtype;
  size_t rows, n, k;
  bool bias;
  bool cancels = false;  // each sum is zero but for rounding, so its bits show every other order of additions
  Values x() const { return halved(random_values(dtype, rows * k, 1), 1); }
  Values weight() const { return halved(random_values(dtype, n * k, 2), -1); }
  Values halved(Values values, double sign) const {
    for (size_t i = 0; i < values.size() && cancels; ++i)
      if (i % k >= k / 2) values[i] = sign * values[i - k / 2];
    return values;
  }
  Values offsets() const { return bias ? random_values(dtype, n, 3) : Values{}; }
  std::string name() const {
    return name_of(dtype) + " " + std::to_string(rows) + " x " + std::to_string(k) + " -> " + std::to_string(n);
  }
};

// Returns the bytes of the first `rows` rows of the product, computed alone.
std::vector<uint8_t> run(const Product& p, size_t rows, Values* values = nullptr) {
  Values some = p.x();
  some.resize(rows * p.k);
  Array x(p.dtype, some), weight(p.dtype, p.weight()), bias(p.dtype, p.offsets()), out(p.dtype, rows * p.n);
  EXPECT_EQ(cuda::launch_rows_linear(p.dtype, x.data(), weight.data(), p.bias ? bias.data() : nullptr,
                                     static_cast<int64_t>(rows), static_cast<int64_t>(p.n), static_cast<int64_t>(p.k),
                                     out.data(), nullptr),
            0);
  if (values) *values = out.values();
  return out.bytes();
}

void expect_product(const Product& p) {
  Values found;
  for (const uint64_t seed : {1, 2}) {
    settings().seed = seed;
    run(p, p.rows, &found);
    EXPECT_EQ(difference(p.dtype, found, twins::linear(p.dtype, p.x(), p.weight(), p.offsets(), p.k)), "") << p.name();
  }
}

TEST(RowsLinear, EqualsItsTwinOverTails) {
  for (const CudaDtype dtype : kHalves) {
    for (const size_t k : {8, 24, 32, 256, 264, 600}) expect_product({dtype, 3, 20, k, false});
    for (const size_t n : {1, 15, 16, 33}) expect_product({dtype, 2, n, 40, true});
    for (const size_t rows : {1, 7, 8, 9, 17, 33, 64}) expect_product({dtype, rows, 17, 64, true});
  }
}

// Rows that do not begin at a multiple of 16 bytes are read number by number.
TEST(RowsLinear, EqualsItsTwinForOddWidths) {
  for (const size_t k : {1, 3, 12, 37, 259}) expect_product({CudaDtype::kBFloat16, 5, 18, k, true});
}

TEST(RowsLinear, ARowsBitsDoNotDependOnTheNumberOfRows) {
  for (const size_t k : {600, 38}) {
    const Product p = {CudaDtype::kBFloat16, 64, 18, k, false, true};
    const std::vector<uint8_t> all = run(p, 64);
    for (const size_t rows : {1, 5, 8, 16, 31}) {
      const std::vector<uint8_t> few = run(p, rows);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << rows << " rows of " << k;
    }
  }
}

// Int8 weights in the layout that engine/kernels/cpu/cpu.h describes, and the numbers that they stand for.
struct Int8Matrix {
  std::vector<uint8_t> packed;
  Values values;
};
Int8Matrix int8_matrix(size_t n, size_t k) {
  constexpr size_t kOutputs = 32, kGroup = 64;
  Int8Matrix out;
  out.values.resize(n * k);
  uint64_t next = 0;
  for (size_t first = 0; first < n; first += kOutputs) {
    const size_t outputs = std::min(kOutputs, n - first);
    for (size_t begin = 0; begin < k; begin += kGroup) {
      std::vector<float> scales;
      for (size_t o = 0; o < outputs; ++o)
        scales.push_back(static_cast<float>(0.01 + philox_uniform(7, 8, next++) / 99));
      const auto* bytes = reinterpret_cast<const uint8_t*>(scales.data());
      out.packed.insert(out.packed.end(), bytes, bytes + 4 * outputs);
      for (size_t pair = 0; pair < kGroup / 2; ++pair)
        for (size_t o = 0; o < outputs; ++o)
          for (size_t i = begin + 2 * pair; i < begin + 2 * pair + 2; ++i) {
            const auto code = i < k ? static_cast<int8_t>(255 * philox_uniform(7, 9, next++) - 127) : int8_t{0};
            out.packed.push_back(static_cast<uint8_t>(code));
            if (i < k) out.values[(first + o) * k + i] = static_cast<double>(scales[o]) * code;
          }
    }
  }
  return out;
}

TEST(RowsLinear, Int8EqualsItsTwin) {
  for (const CudaDtype dtype : kHalves)
    for (const auto& [rows, n, k] :
         std::vector<std::array<size_t, 3>>{{1, 32, 64}, {5, 40, 192}, {9, 7, 72}, {17, 33, 640}, {40, 9, 37}}) {
      const Int8Matrix matrix = int8_matrix(n, k);
      const Values inputs = random_values(dtype, rows * k, 1), offsets = random_values(dtype, n, 3);
      Array x(dtype, inputs), bias(dtype, offsets), out(dtype, rows * n);
      DeviceMemory<uint8_t> weight(matrix.packed);
      ASSERT_EQ(cuda::launch_rows_linear_int8(dtype, x.data(), weight.data(), bias.data(), static_cast<int64_t>(rows),
                                              static_cast<int64_t>(n), static_cast<int64_t>(k), out.data(), nullptr),
                0);
      EXPECT_EQ(difference(dtype, out.values(), twins::linear(dtype, inputs, matrix.values, offsets, k)), "")
          << rows << " x " << k << " -> " << n;
    }
}

TEST(RowsLinear, WhatItCannotComputeIsRefused) {
  float none = 0;
  EXPECT_EQ(cuda::launch_rows_linear(CudaDtype::kHalf, &none, &none, nullptr, 0, 8, 8, &none, nullptr), 0);
  EXPECT_NE(cuda::launch_rows_linear(CudaDtype::kHalf, &none, &none, nullptr, 65, 8, 8, &none, nullptr), 0);
  EXPECT_NE(cuda::launch_rows_linear(CudaDtype::kFloat, &none, &none, nullptr, 1, 8, 8, &none, nullptr), 0);
}

}  // namespace
}  // namespace specdec::fibers
