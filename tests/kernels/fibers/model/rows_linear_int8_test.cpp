// Multiplies by int8 weights on fibers, in the packed form that quantise_int8() writes.
#include <gtest/gtest.h>

#include "engine/kernels/ops.h"
#include "tests/kernels/fibers/model/fiber_library.h"

namespace specdec::kernels {
namespace {

at::Tensor multiply(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias) {
  const CudaDtype dtype = x.scalar_type() == at::kHalf ? CudaDtype::kHalf : CudaDtype::kBFloat16;
  const at::Tensor out = at::full({x.size(0), packed.size(0)}, NAN, x.options());
  const RowsProduct product = {.rows = x.size(0),
                               .n = packed.size(0),
                               .k = x.size(1),
                               .x = x.const_data_ptr(),
                               .weight = packed.const_data_ptr(),
                               .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                               .up = nullptr,
                               .up_bias = nullptr,
                               .residual = nullptr,
                               .out = out.mutable_data_ptr(),
                               .stride = packed.size(0),
                               .packing = Packing::kInt8,
                               .group = 0,
                               .order = nullptr,
                               .live = nullptr};
  EXPECT_EQ(fibers::fiber_library().rows_product(dtype, 0, &product), 0);
  return out;
}

TEST(RowsLinearInt8, EqualsTheDequantisedProduct) {
  at::manual_seed(4);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const auto& [rows, n, k] : std::vector<std::array<int64_t, 3>>{
             {1, 32, 64}, {5, 40, 192}, {8, 7, 40}, {9, 64, 100}, {17, 33, 640}, {33, 32, 64}, {70, 9, 37}}) {
      const at::Tensor x = at::randn({rows, k}).to(dtype), bias = at::randn({n}).to(dtype),
                       packed = quantise_int8(at::randn({n, k}));
      const at::Tensor expected =
          at::linear(x.to(at::kDouble), dequantise_int8(packed, k).to(at::kDouble)) + bias.to(at::kDouble);
      const at::Tensor found = multiply(x, packed, bias);
      const double step = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
      const at::Tensor error = (found.to(at::kDouble) - expected).abs() / expected.abs().clamp_min(1);
      EXPECT_LE(error.max().item<double>(), step / 2 + 1e-4) << rows << " x " << k << " -> " << n;
      EXPECT_FALSE(found.isnan().any().item<bool>());
    }
}

TEST(RowsLinearInt8, ARowsBitsDoNotDependOnTheNumberOfRows) {
  at::manual_seed(5);
  const at::Tensor half = at::randn({40, 300}), x = at::cat({half, half}, 1).to(at::kBFloat16);
  const at::Tensor w = at::randn({20, 300}), packed = quantise_int8(at::cat({w, -w}, 1));  // the halves cancel
  const at::Tensor all = multiply(x, packed, {});
  for (const int64_t rows : {1, 8, 9, 31})
    EXPECT_TRUE(at::equal(multiply(x.slice(0, 0, rows), packed, {}), all.slice(0, 0, rows))) << rows;
}

}  // namespace
}  // namespace specdec::kernels
