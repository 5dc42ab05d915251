#include <algorithm>
#include <cmath>

#include "engine/self_test/kernel_cases.h"
#include "engine/self_test/twins.h"

namespace specdec::self_test {

namespace {

namespace twins = kernels::twins;
using kernels::Packing;

constexpr Packing kCodes[] = {Packing::kCodes4, Packing::kCodes8, Packing::kE4m3};

// The operation after the matrix product: none, a gated activation, or the addition of a residual.
enum class End { kPlain, kGated, kResidual };

std::string name_of(Packing packing) {
  switch (packing) {
    case Packing::kInt8:
      return " by int8";
    case Packing::kCodes4:
      return " by codes of 4 bits";
    case Packing::kCodes8:
      return " by codes of 8 bits";
    case Packing::kE4m3:
      return " by E4M3";
    default:
      return "";
  }
}

constexpr size_t kGroup = 64;  // number of inputs that share a scale

struct Product {
  CudaDtype dtype;
  Packing packing;
  End end;
  size_t rows, n, k;
  bool bias;
  bool wide = false;  // whether wide_product computes the product instead of rows_product
  std::string name() const {
    return self_test::name_of(dtype) + name_of(packing) + (wide ? " by cuBLASLt " : " ") + std::to_string(rows) +
           " rows, " + std::to_string(k) + " -> " + std::to_string(n) +
           (end == End::kGated      ? ", gated"
            : end == End::kResidual ? ", added"
                                    : "");
  }
};

// A matrix as fp64 values and in the layout that the kernel reads.
struct Matrix {
  Values values;
  std::vector<uint8_t> memory;
};
Matrix matrix_of(const Product& p, uint64_t stream) {
  if (p.packing != Packing::kPlain) {
    PackedMatrix made = p.packing == Packing::kInt8 ? int8_matrix(p.n, p.k, stream)
                                                    : group_quantised_matrix(p.packing, p.n, p.k, kGroup, stream);
    return {std::move(made.values), std::move(made.packed)};
  }
  Matrix made{random_values(p.dtype, p.n * p.k, stream), {}};
  made.memory = memory_of(p.dtype, made.values);
  return made;
}

// Returns the allowed error of a sum. Tensor cores add in fp32 and may truncate, so the error of a sum of k products
// may be some multiple of 2^-24 of the sum of the products' absolute values.
double rounding_of_sums(const Product& p, const Matrix& matrix) {
  double most = 0;
  for (const double w : matrix.values) most = std::max(most, std::fabs(w));
  return static_cast<double>(p.k) * most * 0x1p-21;
}

// Places rows of n results at distances of `stride`; the elements between them must stay unwritten.
Values spread(const Values& rows, size_t n, size_t stride) {
  Values out(rows.size() / n * stride, kUnwritten);
  for (size_t i = 0; i < rows.size(); ++i) out[i / n * stride + i % n] = rows[i];
  return out;
}

std::string test_product(const TestDevice& device, const Product& p) {
  const Values x = random_values(p.dtype, p.rows * p.k, 1), bias = p.bias ? random_values(p.dtype, p.n, 4) : Values{},
               before = random_values(p.dtype, p.rows * p.n, 6);
  const Matrix weight = matrix_of(p, 2), up = p.end == End::kGated ? matrix_of(p, 3) : Matrix{};
  const size_t stride = p.n + (p.end == End::kPlain || p.wide ? 0 : 3);

  const DeviceValues in(device, p.dtype, x), offsets(device, p.dtype, bias), residual(device, p.dtype, before),
      out(device, p.dtype, p.rows * stride);
  const DeviceArray<uint8_t> matrix(device, weight.memory), second(device, up.memory);
  kernels::RowsProduct call = {};
  call.rows = static_cast<int64_t>(p.rows), call.n = static_cast<int64_t>(p.n), call.k = static_cast<int64_t>(p.k);
  call.x = in.data(), call.weight = matrix.data(), call.out = out.data();
  call.stride = static_cast<int64_t>(stride), call.packing = p.packing, call.group = kGroup;
  if (p.bias) call.bias = offsets.data();
  if (p.end == End::kGated) call.up = second.data();
  if (p.end == End::kResidual) call.residual = residual.data();
  if (p.wide) {
    const DeviceArray<uint8_t> workspace(device, static_cast<size_t>(kernels::kWideProductBytes));
    const int32_t code = device.library.wide_product(p.dtype, device.index, &call, workspace.data());
    if (code == kernels::kNotSupported) return "";  // the engine then uses rows_product()
    finish(device, code);
  } else {
    finish(device, device.library.rows_product(p.dtype, device.index, &call));
  }

  Tolerance tolerance{.share = 0.1, .absolute = rounding_of_sums(p, weight)};
  Values expected = twins::linear(p.dtype, x, weight.values, bias, p.k);
  const auto step = [&](double value) { return twins::spacing(p.dtype, value) + tolerance.absolute; };
  if (p.end == End::kGated) {
    // Tolerance for a gated product: gate and up value may each be rounded either way, and the slope of silu is at most
    // 1.1.
    const Values gates = expected, ups = twins::linear(p.dtype, x, up.values, {}, p.k);
    expected = twins::silu_mul(p.dtype, gates, ups);
    for (size_t i = 0; i < gates.size(); ++i)
      tolerance.each.push_back(1.1 * step(gates[i]) * std::fabs(ups[i]) + std::fabs(gates[i]) * step(ups[i]));
  }
  if (p.end == End::kResidual)
    for (size_t i = 0; i < expected.size(); ++i) {
      tolerance.each.push_back(step(expected[i]));
      expected[i] = twins::rounded(p.dtype, expected[i] + before[i]);
    }
  if (!tolerance.each.empty()) tolerance.each = spread(tolerance.each, p.n, stride);
  return difference(p.dtype, out.read(), spread(expected, p.n, stride), tolerance);
}

struct Size {
  size_t rows, n, k;
  bool bias;
};

std::string test_dequantise(const TestDevice& device, CudaDtype dtype, Packing packing, const Size& size) {
  const PackedMatrix matrix = group_quantised_matrix(packing, size.n, size.k, kGroup);
  const DeviceArray<uint8_t> weight(device, matrix.packed);
  const DeviceValues out(device, dtype, size.n * size.k);
  const kernels::DequantisedMatrix call = {.n = static_cast<int64_t>(size.n),
                                           .k = static_cast<int64_t>(size.k),
                                           .weight = weight.data(),
                                           .packing = packing,
                                           .group = kGroup,
                                           .out = out.data()};
  finish(device, device.library.dequantise(dtype, device.index, &call));
  Values expected;
  for (const double w : matrix.values)
    expected.push_back(twins::rounded(dtype, static_cast<double>(static_cast<float>(w))));
  return difference(dtype, out.read(), expected, {.steps = 0, .share = 0});
}

void add_dequantise(Cases& cases, const std::vector<Size>& sizes) {
  for (const CudaDtype dtype : kHalves)
    for (const Packing packing : kCodes)
      for (const Size& s : sizes)
        cases.push_back({"dequantise", self_test::name_of(dtype) + name_of(packing) + " " + shape_text({s.n, s.k}),
                         [=](const TestDevice& on) { return test_dequantise(on, dtype, packing, s); }});
}

void add(Cases& cases, Packing packing, End end, const std::vector<Size>& sizes) {
  const bool by_group = packing >= Packing::kCodes4;  // these layouts need a multiple of four outputs
  for (const CudaDtype dtype : kHalves)
    for (const Size& s : sizes) {
      const size_t n = by_group ? (s.n + 3) / 4 * 4 : s.n;
      const Product p = {
          .dtype = dtype, .packing = packing, .end = end, .rows = s.rows, .n = n, .k = s.k, .bias = s.bias};
      cases.push_back({"rows_product", p.name(), [p](const TestDevice& on) { return test_product(on, p); }});
    }
}

// Adds products of many rows, which wide_product computes faster than rows_product. k and n have the alignment of real
// models.
void add_wide(Cases& cases, const std::vector<Size>& sizes) {
  for (const CudaDtype dtype : kHalves)
    for (const End end : {End::kPlain, End::kResidual})
      for (const Size& s : sizes) {
        const Product p = {.dtype = dtype,
                           .packing = Packing::kPlain,
                           .end = end,
                           .rows = s.rows,
                           .n = s.n,
                           .k = s.k,
                           .bias = s.bias,
                           .wide = true};
        cases.push_back({"wide_product", p.name(), [p](const TestDevice& on) { return test_product(on, p); }});
      }
}

}  // namespace

void add_product_cases(Cases& cases, Extent extent) {
  std::vector<Size> plain = {{3, 20, 264, true}, {9, 17, 37, true}}, ends = {{9, 19, 72, true}},
                    quantised = {{5, 40, 192, true}}, dequantised = {{0, 36, 200, false}};
  if (extent != Extent::kFew) {
    plain.insert(plain.end(), {{1, 500, 4096, false},
                               {5, 4096 + 21, 24, true},
                               {16, 300, 2048, false},
                               {40, 8192 + 40, 8, true},
                               {64, 200, 1000, true},
                               {130, 17, 64, true},
                               {256, 64, 512, false}});
    ends.insert(ends.end(), {{1, 300, 1024, false}, {33, 4100, 8, true}, {70, 40, 37, true}});
    quantised.insert(quantised.end(),
                     {{1, 300, 4096, false}, {17, 33, 640, true}, {40, 9, 37, true}, {256, 64, 128, true}});
    dequantised.insert(dequantised.end(), {{0, 300, 1024, false}, {0, 8, 37, false}});
  }
  if (extent == Extent::kMany) {
    for (const size_t rows : {2, 7, 8, 31, 32, 63, 65, 255}) plain.push_back({rows, 129, 328, rows % 2 == 1});
    for (const size_t n : {1, 15, 16, 31, 6144}) quantised.push_back({6, n, 448, true});
    plain.push_back({12, 28672, 512, false});
    ends.push_back({64, 1500, 1024, false});
    dequantised.push_back({0, 6144, 448, false});
  }
  add(cases, Packing::kPlain, End::kPlain, plain);
  add(cases, Packing::kInt8, End::kPlain, quantised);
  for (const Packing packing : kCodes) add(cases, packing, End::kPlain, quantised);
  for (const End end : {End::kGated, End::kResidual}) {
    add(cases, Packing::kPlain, end, ends);
    add(cases, Packing::kInt8, end, ends);
    for (const Packing packing : kCodes) add(cases, packing, end, ends);
  }
  add_dequantise(cases, dequantised);
  add_wide(cases, extent == Extent::kFew ? std::vector<Size>{{65, 64, 128, true}}
                                         : std::vector<Size>{{65, 64, 128, true}, {256, 512, 1024, false}});
}

}  // namespace specdec::self_test
