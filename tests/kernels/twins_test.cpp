// Compares the twins of the CUDA kernels (the same in plain C++) with the reference, which defines the right results.
#include "engine/self_test/twins.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/kernels/variants.h"

namespace specdec::kernels {
namespace {

struct Type {
  CudaDtype ours;
  at::ScalarType aten;
};
constexpr Type kTypes[] = {
    {CudaDtype::kFloat, at::kFloat}, {CudaDtype::kBFloat16, at::kBFloat16}, {CudaDtype::kHalf, at::kHalf}};

twins::Values values_of(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// Expects equal values up to rounding. In 16 bits, at most one value in a hundred may differ, by at most two steps.
void expect_same(const Type& type, const twins::Values& found, const at::Tensor& expected) {
  const twins::Values wanted = values_of(expected);
  ASSERT_EQ(found.size(), wanted.size());
  size_t unequal = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i],
                type.ours == CudaDtype::kFloat ? 1e-6 * std::max(1.0, std::fabs(wanted[i]))
                                               : 2 * twins::spacing(type.ours, wanted[i]));
    unequal += found[i] != wanted[i] ? 1 : 0;
  }
  if (type.ours != CudaDtype::kFloat) EXPECT_LE(unequal * 100, found.size());
}

TEST(Twins, EqualTheReference) {
  at::manual_seed(5);
  for (const Type& type : kTypes) {
    const at::Tensor x = at::randn({7, 160}).to(type.aten), weight = at::randn({160}).to(type.aten);
    expect_same(type, twins::rms_norm(type.ours, values_of(x), values_of(weight), 1e-5),
                ref::rms_norm(x, weight, 1e-5, {}));
    const at::Tensor gate = (at::randn({7, 160}) * 4).to(type.aten);
    expect_same(type, twins::silu_mul(type.ours, values_of(gate), values_of(x)), ref::silu_mul(gate, x, {}));
    const at::Tensor heads = at::randn({5, 3, 64}).to(type.aten), angles = at::randn({5, 32});
    expect_same(type, twins::rope(type.ours, values_of(heads), values_of(angles.cos()), values_of(angles.sin()), 64),
                ref::rope(heads, angles.cos(), angles.sin(), {}));
  }
}

}  // namespace
}  // namespace specdec::kernels
