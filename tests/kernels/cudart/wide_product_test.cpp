// Runs engine/kernels/cuda/nvidia/wide_product.cpp over a stub of cuBLASLt, and compares the products with their
// definition.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/philox.h"
#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/cudart/cublaslt.h"

namespace specdec::kernels::cuda {
namespace {

using cublaslt::counts;

// Numbers of 16 bits that bf16 and fp16 store alike in the tests: small multiples of 1/8.
struct Numbers {
  std::vector<float> values;
  std::vector<uint16_t> memory;
  Numbers(CudaDtype dtype, size_t n, uint64_t stream) {
    PhiloxStream random(17, stream);
    for (size_t i = 0; i < n; ++i) add(dtype, static_cast<float>(static_cast<int>(random.below(17)) - 8) / 8);
  }
  void add(CudaDtype dtype, float x) {
    values.push_back(x);
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof wide);
    const auto half = static_cast<_Float16>(x);
    uint16_t bits = static_cast<uint16_t>(wide >> 16);
    if (dtype == CudaDtype::kHalf) std::memcpy(&bits, &half, sizeof bits);
    memory.push_back(bits);
  }
};

float widen(CudaDtype dtype, uint16_t bits) {
  if (dtype == CudaDtype::kHalf) {
    _Float16 half;
    std::memcpy(&half, &bits, sizeof half);
    return static_cast<float>(half);
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

constexpr int64_t kRows = 5, kOutputs = 12, kInputs = 16;
Stream stream() { return reinterpret_cast<Stream>(uintptr_t{0x1234}); }

int32_t multiply(CudaDtype dtype, const RowsProduct& p) {
  static std::vector<uint8_t> workspace(64);
  return launch_wide_product(dtype, 0, p, workspace.data(), static_cast<int64_t>(workspace.size()), stream());
}

RowsProduct product_of(const Numbers& x, const Numbers& weight, std::vector<uint16_t>& out, int64_t stride) {
  RowsProduct p = {};
  p.rows = kRows, p.n = kOutputs, p.k = kInputs, p.stride = stride;
  p.x = x.memory.data(), p.weight = weight.memory.data(), p.out = out.data();
  return p;
}

TEST(WideProduct, EqualsItsDefinition) {
  constexpr uint16_t kUnwritten = 0x7fff;
  for (const CudaDtype dtype : {CudaDtype::kBFloat16, CudaDtype::kHalf})
    for (const bool biased : {false, true})
      for (const bool added : {false, true})
        for (const int64_t stride : {kOutputs, kOutputs + 8}) {
          const Numbers x(dtype, kRows * kInputs, 1), weight(dtype, kOutputs * kInputs, 2), bias(dtype, kOutputs, 3),
              residual(dtype, kRows * kOutputs, 4);
          std::vector<uint16_t> out(static_cast<size_t>(kRows * stride), kUnwritten);
          RowsProduct p = product_of(x, weight, out, stride);
          if (biased) p.bias = bias.memory.data();
          if (added) p.residual = residual.memory.data();
          ASSERT_EQ(multiply(dtype, p), 0);
          EXPECT_EQ(counts().stream, stream());
          EXPECT_EQ(counts().reductions, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});  // sums in fp32
          for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t o = 0; o < kOutputs; ++o) {
              float sum = 0;
              for (int64_t i = 0; i < kInputs; ++i)
                sum += x.values[static_cast<size_t>(r * kInputs + i)] *
                       weight.values[static_cast<size_t>(o * kInputs + i)];
              if (biased) sum += bias.values[static_cast<size_t>(o)];
              if (added) sum += residual.values[static_cast<size_t>(r * kOutputs + o)];
              EXPECT_NEAR(widen(dtype, out[static_cast<size_t>(r * stride + o)]), sum, std::abs(sum) / 256)
                  << "row " << r << ", output " << o << (biased ? ", bias" : "") << (added ? ", residual" : "");
            }
            for (int64_t o = kOutputs; o < stride; ++o) EXPECT_EQ(out[static_cast<size_t>(r * stride + o)], kUnwritten);
          }
        }
}

TEST(WideProduct, AddsToItsOwnOutput) {
  const Numbers x(CudaDtype::kHalf, kRows * kInputs, 1), weight(CudaDtype::kHalf, kOutputs * kInputs, 2),
      before(CudaDtype::kHalf, kRows * kOutputs, 4);
  std::vector<uint16_t> apart(before.memory.size()), own = before.memory;
  RowsProduct p = product_of(x, weight, apart, kOutputs);
  p.residual = before.memory.data();
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  p = product_of(x, weight, own, kOutputs);
  p.residual = own.data();
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  EXPECT_EQ(own, apart);
}

// An algorithm is chosen once for each shape, and a bias at another address does not need another choice.
TEST(WideProduct, ChoosesOnceForAShape) {
  const Numbers x(CudaDtype::kHalf, kRows * kInputs, 1), weight(CudaDtype::kHalf, kOutputs * kInputs, 2);
  alignas(256) static uint16_t biases[2][128], outs[2][128];
  biases[1][0] = 0x3c00;  // 1 in fp16
  std::vector<uint16_t> unused;
  RowsProduct p = product_of(x, weight, unused, kOutputs);
  p.bias = biases[0], p.out = outs[0];
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  const int64_t chosen = counts().chosen, alive = counts().alive;
  p.bias = biases[1], p.out = outs[1];
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  EXPECT_NEAR(widen(CudaDtype::kHalf, outs[1][0]), widen(CudaDtype::kHalf, outs[0][0]) + 1, 0.02);
  EXPECT_EQ(outs[1][1], outs[0][1]);
  EXPECT_EQ(counts().chosen, chosen);
  EXPECT_EQ(counts().alive, alive);
}

// cuBLASLt must not assume more alignment than the addresses have.
TEST(WideProduct, TellsTheAlignmentOfItsOperands) {
  alignas(256) static uint16_t memory[3][1024];
  RowsProduct p = {};
  p.rows = 4, p.n = 128, p.k = 128, p.stride = 128;
  p.x = memory[0], p.weight = memory[1], p.out = memory[2];
  p.n = 8, p.k = 128, p.stride = 128;
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  EXPECT_EQ(counts().alignment, 256u);
  p.x = memory[0] + 8;
  p.rows = 3;
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  EXPECT_EQ(counts().alignment, 16u);
  p.stride = 129;
  ASSERT_EQ(multiply(CudaDtype::kHalf, p), 0);
  EXPECT_EQ(counts().alignment, 2u);
}

TEST(WideProduct, LeavesOtherProductsToOtherKernels) {
  const Numbers x(CudaDtype::kHalf, kRows * kInputs, 1), weight(CudaDtype::kHalf, kOutputs * kInputs, 2);
  std::vector<uint16_t> out(static_cast<size_t>(kRows * kOutputs));
  const RowsProduct p = product_of(x, weight, out, kOutputs);
  RowsProduct packed = p, gated = p, other = p;
  packed.packing = Packing::kInt8;
  gated.up = p.weight;
  EXPECT_EQ(multiply(CudaDtype::kHalf, packed), kNotSupported);
  EXPECT_EQ(multiply(CudaDtype::kHalf, gated), kNotSupported);
  EXPECT_EQ(multiply(CudaDtype::kFloat, p), kNotSupported);
  counts().refuses = true;
  other.rows = 3;
  EXPECT_EQ(multiply(CudaDtype::kHalf, other), kNotSupported);
  counts().refuses = false;
  EXPECT_EQ(multiply(CudaDtype::kHalf, other), kNotSupported);  // the refusal is remembered
  EXPECT_EQ(out, std::vector<uint16_t>(out.size()));
}

}  // namespace
}  // namespace specdec::kernels::cuda
