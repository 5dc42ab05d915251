// Tests the kernels that launch_rows_product() starts for 16-bit and int8 weights, on fibers.
#include <gtest/gtest.h>

#include <array>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
namespace twins = kernels::twins;
using self_test::int8_matrix;
using self_test::PackedMatrix;

struct Product {
  CudaDtype dtype;
  size_t rows, n, k;
  bool bias;
  bool cancels = false;  // the terms cancel except for rounding, so another order of additions changes bits
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

// Returns the arguments of a product without bias for the kernel.
kernels::RowsProduct call_of(size_t rows, size_t n, size_t k, const void* x, const void* weight, void* out) {
  kernels::RowsProduct call = {};
  call.rows = static_cast<int64_t>(rows), call.n = static_cast<int64_t>(n), call.k = static_cast<int64_t>(k);
  call.x = x, call.weight = weight, call.out = out;
  call.stride = call.n;
  return call;
}

// Multiplies only the first `rows` rows of x. Returns the bytes of the result, and its values in `values`.
std::vector<uint8_t> run(const Product& p, size_t rows, Values* values = nullptr) {
  Values some = p.x();
  some.resize(rows * p.k);
  Array x(p.dtype, some), weight(p.dtype, p.weight()), bias(p.dtype, p.offsets()), out(p.dtype, rows * p.n);
  kernels::RowsProduct call = call_of(rows, p.n, p.k, x.data(), weight.data(), out.data());
  if (p.bias) call.bias = bias.data();
  EXPECT_EQ(cuda::launch_rows_product(p.dtype, call, stream()), 0);
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
    for (const size_t rows : {1, 7, 8, 9, 17, 33, 64, 65, 130}) expect_product({dtype, rows, 17, 64, true});
  }
}

TEST(RowsLinear, AtRestWritesNothing) {
  const Product p{CudaDtype::kBFloat16, 3, 20, 40, false};
  Array x(p.dtype, p.x()), weight(p.dtype, p.weight()), out(p.dtype, p.rows * p.n);
  kernels::RowsProduct call = call_of(p.rows, p.n, p.k, x.data(), weight.data(), out.data());
  const std::vector<uint8_t> before = out.bytes();
  DeviceMemory<int32_t> live(std::vector<int32_t>{0});
  call.live = live.data();
  ASSERT_EQ(cuda::launch_rows_product(p.dtype, call, stream()), 0);
  EXPECT_EQ(out.bytes(), before);
  live[0] = 2;
  ASSERT_EQ(cuda::launch_rows_product(p.dtype, call, stream()), 0);
  EXPECT_EQ(out.bytes(), run(p, p.rows));
}

// With so many outputs, a block computes several tiles of them.
TEST(RowsLinear, EqualsItsTwinForManyOutputs) {
  expect_product({CudaDtype::kBFloat16, 10, 8192 + 21, 24, true});
  expect_product({CudaDtype::kHalf, 20, 8192 + 9, 8, true});
  expect_product({CudaDtype::kBFloat16, 40, 8192 + 40, 8, false});
}

// Rows that are not aligned to 16 bytes are read number by number instead of by vectors.
TEST(RowsLinear, EqualsItsTwinForOddWidths) {
  for (const size_t k : {1, 3, 12, 37, 259}) expect_product({CudaDtype::kBFloat16, 5, 18, k, true});
}

TEST(RowsLinear, ARowsBitsDoNotDependOnTheNumberOfRows) {
  for (const size_t k : {600, 38}) {
    // With many outputs, the number of tiles per block depends on the number of rows.
    const Product p = {CudaDtype::kBFloat16, 80, k == 38 ? size_t{8200} : size_t{18}, k, false, true};
    const std::vector<uint8_t> all = run(p, 80);
    for (const size_t rows : {1, 5, 8, 16, 31, 64, 70}) {
      const std::vector<uint8_t> few = run(p, rows);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << rows << " rows of " << k;
    }
  }
}

TEST(RowsLinear, Int8EqualsItsTwin) {
  for (const CudaDtype dtype : kHalves)
    for (const auto& [rows, n, k] :
         std::vector<std::array<size_t, 3>>{{1, 32, 64}, {5, 40, 192}, {9, 7, 72}, {17, 33, 640}, {40, 9, 37}}) {
      const PackedMatrix matrix = int8_matrix(n, k);
      const Values inputs = random_values(dtype, rows * k, 1), offsets = random_values(dtype, n, 3);
      Array x(dtype, inputs), bias(dtype, offsets), out(dtype, rows * n);
      DeviceMemory<uint8_t> weight(matrix.packed);
      kernels::RowsProduct call = call_of(rows, n, k, x.data(), weight.data(), out.data());
      call.bias = bias.data(), call.packing = kernels::Packing::kInt8;
      ASSERT_EQ(cuda::launch_rows_product(dtype, call, stream()), 0);
      EXPECT_EQ(difference(dtype, out.values(), twins::linear(dtype, inputs, matrix.values, offsets, k)), "")
          << rows << " x " << k << " -> " << n;
    }
}

// A product can end with the gated activation of two products, or add to `out`, whose rows may be wider than the
// result. Both give the same bits as separate kernels.
TEST(RowsLinear, EndsAsSeparateKernelsDo) {
  for (const CudaDtype dtype : kHalves)
    for (const bool int8 : {false, true})
      for (const auto& [rows, n, k] :
           std::vector<std::array<size_t, 3>>{{1, 32, 64}, {9, 19, 72}, {70, 40, 37}, {33, 4100, 8}}) {
        const PackedMatrix first = int8_matrix(n, k), second = int8_matrix(n, k, 11);
        DeviceMemory<uint8_t> gate_bytes(first.packed), up_bytes(second.packed);
        Array x(dtype, random_values(dtype, rows * k, 1)), gate(dtype, random_values(dtype, n * k, 2)),
            up(dtype, random_values(dtype, n * k, 3)), bias(dtype, random_values(dtype, n, 4)),
            up_bias(dtype, random_values(dtype, n, 5)), gates(dtype, rows * n), ups(dtype, rows * n),
            products(dtype, rows * n), fused(dtype, rows * n), before(dtype, random_values(dtype, rows * n, 6)),
            sums(dtype, rows * n);
        const auto product = [&](Array& matrix, DeviceMemory<uint8_t>& bytes, Array& offsets, void* out) {
          kernels::RowsProduct call =
              call_of(rows, n, k, x.data(), int8 ? static_cast<void*>(bytes.data()) : matrix.data(), out);
          call.bias = offsets.data();
          call.packing = int8 ? kernels::Packing::kInt8 : kernels::Packing::kPlain;
          return call;
        };
        const auto start = [&](const kernels::RowsProduct& call) {
          ASSERT_EQ(cuda::launch_rows_product(dtype, call, stream()), 0);
        };
        start(product(gate, gate_bytes, bias, gates.data()));
        start(product(up, up_bytes, up_bias, ups.data()));
        ASSERT_EQ(cuda::launch_silu_mul(dtype, gates.data(), ups.data(), static_cast<int64_t>(rows * n),
                                        products.data(), stream()),
                  0);
        kernels::RowsProduct call = product(gate, gate_bytes, bias, fused.data());
        call.up = int8 ? static_cast<void*>(up_bytes.data()) : up.data(), call.up_bias = up_bias.data();
        start(call);
        EXPECT_EQ(fused.bytes(), products.bytes()) << name_of(dtype) << " int8 " << int8 << " rows " << rows;

        call = product(gate, gate_bytes, bias, sums.data());
        call.residual = before.data();
        start(call);
        Values expected = before.values();
        const Values added = gates.values();
        for (size_t i = 0; i < expected.size(); ++i)
          expected[i] = twins::rounded(dtype, static_cast<double>(static_cast<float>(expected[i] + added[i])));
        EXPECT_EQ(sums.values(), expected) << name_of(dtype) << " int8 " << int8 << " rows " << rows;

        Array wide(dtype, rows * (n + 3) + n);
        call = product(gate, gate_bytes, bias, wide.data());
        call.stride = static_cast<int64_t>(n) + 3;
        start(call);
        const Values found = wide.values();
        for (size_t row = 0; row < rows; ++row) {
          const auto at = found.begin() + static_cast<std::ptrdiff_t>(row * (n + 3));
          EXPECT_TRUE(std::equal(at, at + static_cast<std::ptrdiff_t>(n),
                                 added.begin() + static_cast<std::ptrdiff_t>(row * n)));
          EXPECT_NE(at[static_cast<std::ptrdiff_t>(n)], at[static_cast<std::ptrdiff_t>(n)]) << "between the rows";
        }
      }
}

TEST(RowsLinear, WhatItCannotComputeIsRefused) {
  float none = 0;
  const auto code = [&](CudaDtype dtype, size_t rows) {
    return cuda::launch_rows_product(dtype, call_of(rows, 8, 8, &none, &none, &none), stream());
  };
  EXPECT_EQ(code(CudaDtype::kHalf, 0), 0);
  EXPECT_NE(code(CudaDtype::kHalf, kernels::kMaxProductRows + 1), 0);
  EXPECT_NE(code(CudaDtype::kFloat, 1), 0);
}

}  // namespace
}  // namespace specdec::fibers
