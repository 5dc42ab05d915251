// Runs rows_linear() on fibers.
#include <gtest/gtest.h>

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

TEST(RowsLinear, WhatItCannotComputeIsRefused) {
  float none = 0;
  EXPECT_EQ(cuda::launch_rows_linear(CudaDtype::kHalf, &none, &none, nullptr, 0, 8, 8, &none, nullptr), 0);
  EXPECT_NE(cuda::launch_rows_linear(CudaDtype::kHalf, &none, &none, nullptr, 65, 8, 8, &none, nullptr), 0);
  EXPECT_NE(cuda::launch_rows_linear(CudaDtype::kFloat, &none, &none, nullptr, 1, 8, 8, &none, nullptr), 0);
}

}  // namespace
}  // namespace specdec::fibers
