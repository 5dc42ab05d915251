// Tests the products with quantised matrices, and their dequantisation, on fibers.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/barriers.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
namespace twins = kernels::twins;
using kernels::Packing;
using self_test::group_quantised_matrix;
using self_test::PackedMatrix;

constexpr Packing kCodes[] = {Packing::kCodes4, Packing::kCodes8, Packing::kE4m3};

std::string name_of(Packing packing) {
  return packing == Packing::kCodes4 ? "4 bits" : packing == Packing::kCodes8 ? "8 bits" : "E4M3";
}

struct Size {
  size_t rows, n, k, group;
  std::string name() const {
    return std::to_string(rows) + " x " + std::to_string(k) + " -> " + std::to_string(n) + ", groups of " +
           std::to_string(group);
  }
};

// Everything that one product reads and writes. run() applies `change` to the call before the launch.
struct Product {
  CudaDtype dtype;
  Packing packing;
  Size size;
  const PackedMatrix& matrix;
  Values x, bias = {};

  template <class F>
  std::vector<uint8_t> run(const F& change) const {
    const auto [rows, n, k, group] = size;
    Array in(dtype, x), offsets(dtype, bias), out(dtype, rows * n);
    DeviceMemory<uint8_t> weight(matrix.packed);
    kernels::RowsProduct call = {};
    call.rows = static_cast<int64_t>(rows), call.n = call.stride = static_cast<int64_t>(n);
    call.k = static_cast<int64_t>(k), call.group = static_cast<int64_t>(group);
    call.x = in.data(), call.weight = weight.data(), call.out = out.data(), call.packing = packing;
    if (!bias.empty()) call.bias = offsets.data();
    change(call);
    EXPECT_EQ(cuda::launch_rows_product(dtype, call, stream()), 0);
    return out.bytes();
  }
  std::vector<uint8_t> run() const {
    return run([](kernels::RowsProduct&) {});
  }
  Values values() const { return self_test::values_in(dtype, run()); }
  Values expected() const { return twins::linear(dtype, x, matrix.values, bias, size.k); }
  std::string name() const { return fibers::name_of(dtype) + ", " + name_of(packing) + ", " + size.name(); }
};

TEST(QuantisedProducts, EqualTheirTwinsOverTails) {
  for (const CudaDtype dtype : kHalves)
    for (const Packing packing : kCodes)
      for (const Size& size : std::vector<Size>{{1, 32, 64, 32},
                                                {5, 40, 192, 64},
                                                {9, 4, 72, 96},
                                                {17, 36, 640, 128},
                                                {3, 20, 1100, 352},
                                                {33, 12, 37, 64},
                                                {70, 32, 8, 32}}) {
        const PackedMatrix matrix = group_quantised_matrix(packing, size.n, size.k, size.group);
        const Product product = {
            dtype, packing, size, matrix, random_values(dtype, size.rows * size.k, 1), random_values(dtype, size.n, 3)};
        EXPECT_EQ(difference(dtype, product.values(), product.expected()), "") << product.name();
      }
}

TEST(QuantisedProducts, EveryOrderOfThreadsGivesTheSameBits) {
  const Size size = {9, 36, 600, 64};
  for (const Packing packing : kCodes) {
    const PackedMatrix matrix = group_quantised_matrix(packing, size.n, size.k, size.group);
    const Product product = {CudaDtype::kBFloat16, packing, size, matrix,
                             random_values(CudaDtype::kBFloat16, size.rows * size.k, 1)};
    settings().seed = 1;
    const std::vector<uint8_t> first = product.run();
    for (const uint64_t seed : {2, 3}) {
      settings().seed = seed;
      EXPECT_EQ(product.run(), first) << product.name();
    }
  }
}

// The terms of each sum cancel except for rounding, so that any other order of additions changes the bits.
TEST(QuantisedProducts, ARowsBitsDoNotDependOnTheNumberOfRows) {
  const Size size = {70, 20, 640, 64};
  for (const Packing packing : kCodes) {
    const PackedMatrix matrix = group_quantised_matrix(packing, size.n, size.k, size.group, 7, size.k / 2);
    Values x = random_values(CudaDtype::kBFloat16, size.rows * size.k, 1);
    for (size_t i = 0; i < x.size(); ++i)
      if (i % size.k >= size.k / 2) x[i] = -x[i - size.k / 2];
    const std::vector<uint8_t> all = Product{CudaDtype::kBFloat16, packing, size, matrix, x}.run();
    for (const size_t rows : {1, 5, 8, 16, 31, 33}) {
      const Size few = {rows, size.n, size.k, size.group};
      const Values some(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(rows * size.k));
      const std::vector<uint8_t> found = Product{CudaDtype::kBFloat16, packing, few, matrix, some}.run();
      EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin())) << rows << " rows, " << name_of(packing);
    }
  }
}

// Returns a random permutation of 0 to k - 1, the order of a matrix's inputs.
std::vector<int32_t> shuffled(size_t k) {
  std::vector<int32_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = k - 1; i > 0; --i)
    std::swap(order[i], order[static_cast<size_t>(philox_uniform(5, 5, i) * static_cast<double>(i + 1))]);
  return order;
}

TEST(QuantisedProducts, TakeInputsInTheirOrder) {
  for (const Packing packing : kCodes)
    for (const Size& size : std::vector<Size>{{6, 36, 200, 64}, {18, 8, 75, 32}}) {
      const CudaDtype dtype = CudaDtype::kHalf;
      const PackedMatrix matrix = group_quantised_matrix(packing, size.n, size.k, size.group);
      const Values x = random_values(dtype, size.rows * size.k, 1);
      const std::vector<int32_t> order = shuffled(size.k);
      Values moved(x.size());
      for (size_t i = 0; i < x.size(); ++i) moved[i] = x[i / size.k * size.k + static_cast<size_t>(order[i % size.k])];
      DeviceMemory<int32_t> places(order);
      const Product product = {dtype, packing, size, matrix, x}, same = {dtype, packing, size, matrix, moved};
      const std::vector<uint8_t> found = product.run([&](kernels::RowsProduct& call) { call.order = places.data(); });
      EXPECT_EQ(found, same.run()) << product.name();
      EXPECT_NE(found, product.run()) << product.name();
    }
}

TEST(QuantisedProducts, AtRestWriteNothing) {
  const Size size = {2, 36, 64, 32};
  const PackedMatrix matrix = group_quantised_matrix(kCodes[0], size.n, size.k, size.group);
  const Product product = {CudaDtype::kHalf, kCodes[0], size, matrix,
                           random_values(CudaDtype::kHalf, size.rows * size.k, 1)};
  DeviceMemory<int32_t> live(std::vector<int32_t>{0});
  const auto with_live = [&](kernels::RowsProduct& call) { call.live = live.data(); };
  EXPECT_EQ(product.run(with_live), Array(CudaDtype::kHalf, size.rows * size.n).bytes());
  live[0] = 1;
  EXPECT_EQ(product.run(with_live), product.run());
}

// A product can end with the gated activation of two products, or add to `out`, whose rows may be wider than the
// result. Both give the same bits as separate kernels.
TEST(QuantisedProducts, EndAsSeparateKernelsDo) {
  for (const CudaDtype dtype : kHalves)
    for (const Packing packing : kCodes)
      for (const Size& size : std::vector<Size>{{1, 32, 64, 32}, {9, 20, 72, 64}, {40, 40, 37, 64}}) {
        const size_t results = size.rows * size.n, stride = size.n + 3;
        const PackedMatrix gate = group_quantised_matrix(packing, size.n, size.k, size.group),
                           up = group_quantised_matrix(packing, size.n, size.k, size.group, 11);
        const Values x = random_values(dtype, size.rows * size.k, 1), bias = random_values(dtype, size.n, 4);
        const Product of_gate = {dtype, packing, size, gate, x, bias},
                      of_up = {dtype, packing, size, up, x, random_values(dtype, size.n, 5)};
        Array gates(dtype, of_gate.values()), ups(dtype, of_up.values()), products(dtype, results);
        ASSERT_EQ(cuda::launch_silu_mul(dtype, gates.data(), ups.data(), static_cast<int64_t>(results), products.data(),
                                        stream()),
                  0);
        DeviceMemory<uint8_t> second(up.packed);
        Array up_bias(dtype, of_up.bias);
        EXPECT_EQ(
            of_gate.run([&](kernels::RowsProduct& call) { call.up = second.data(), call.up_bias = up_bias.data(); }),
            products.bytes())
            << of_gate.name();

        const Values before = random_values(dtype, results, 6), added = gates.values();
        Array residual(dtype, before), wide(dtype, size.rows * stride);
        of_gate.run([&](kernels::RowsProduct& call) {
          call.residual = residual.data(), call.out = wide.data(), call.stride = static_cast<int64_t>(stride);
        });
        const Values found = wide.values();
        for (size_t i = 0; i < found.size(); ++i) {
          const size_t row = i / stride, column = i % stride, at = row * size.n + column;
          if (column >= size.n)
            EXPECT_NE(found[i], found[i]) << "between the rows";
          else
            EXPECT_EQ(found[i], twins::rounded(dtype, static_cast<double>(static_cast<float>(before[at] + added[at]))));
        }
      }
}

TEST(QuantisedProducts, DequantiseToTheNumbersThatTheyStandFor) {
  for (const CudaDtype dtype : kHalves)
    for (const Packing packing : kCodes)
      for (const Size& size :
           std::vector<Size>{{0, 32, 256, 32}, {0, 68, 200, 96}, {0, 12, 37, 64}, {0, 8, 600, 608}}) {
        const PackedMatrix matrix = group_quantised_matrix(packing, size.n, size.k, size.group);
        DeviceMemory<uint8_t> weight(matrix.packed);
        Array out(dtype, size.n * size.k);
        const kernels::DequantisedMatrix call = {.n = static_cast<int64_t>(size.n),
                                                 .k = static_cast<int64_t>(size.k),
                                                 .weight = weight.data(),
                                                 .packing = packing,
                                                 .group = static_cast<int64_t>(size.group),
                                                 .out = out.data()};
        ASSERT_EQ(cuda::launch_dequantise(dtype, call, stream()), 0);
        Values expected;
        for (const double w : matrix.values)
          expected.push_back(twins::rounded(dtype, static_cast<double>(static_cast<float>(w))));
        EXPECT_EQ(out.values(), expected) << fibers::name_of(dtype) << ", " << name_of(packing) << ", " << size.name();
      }
}

TEST(QuantisedProducts, NoBarrierCanBeLeftOut) {
  const Size size = {9, 32, 600, 64};
  const PackedMatrix gate = group_quantised_matrix(Packing::kCodes4, size.n, size.k, size.group),
                     up = group_quantised_matrix(Packing::kCodes4, size.n, size.k, size.group, 11);
  const Product product = {CudaDtype::kHalf, Packing::kCodes4, size, gate,
                           random_values(CudaDtype::kHalf, size.rows * size.k, 1)};
  DeviceMemory<uint8_t> second(up.packed);
  expect_barriers_are_needed(3,
                             [&] { return product.run([&](kernels::RowsProduct& call) { call.up = second.data(); }); });
}

TEST(QuantisedProducts, WhatHasNoPlaceInTheLayoutIsRefused) {
  alignas(16) float none[8] = {};
  const auto code = [&](int64_t n, int64_t group, Packing packing, const void* weight) {
    kernels::RowsProduct call = {};
    call.rows = 1, call.n = n, call.k = 32, call.x = none, call.weight = weight, call.out = none, call.stride = n;
    call.group = group, call.packing = packing;
    return cuda::launch_rows_product(CudaDtype::kHalf, call, stream());
  };
  kernels::RowsProduct both = {};
  both.rows = 1, both.n = 8, both.k = 32, both.x = none, both.weight = none, both.out = none, both.stride = 8;
  both.group = 32, both.packing = Packing::kCodes4, both.up = none;
  both.residual = none;
  EXPECT_NE(cuda::launch_rows_product(CudaDtype::kHalf, both, nullptr), 0);
  both.packing = Packing::kPlain;
  EXPECT_NE(cuda::launch_rows_product(CudaDtype::kHalf, both, nullptr), 0);
  const auto* odd = reinterpret_cast<const uint8_t*>(none) + 8;
  EXPECT_NE(code(6, 32, Packing::kCodes4, none), 0);
  EXPECT_NE(code(8, 48, Packing::kCodes4, none), 0);
  EXPECT_NE(code(8, 0, Packing::kE4m3, none), 0);
  EXPECT_NE(code(8, 32, Packing::kCodes8, odd), 0);
}

}  // namespace
}  // namespace specdec::fibers
