#include <cmath>

#include "engine/self_test/kernel_cases.h"
#include "engine/self_test/twins.h"

namespace specdec::self_test {

namespace {

namespace twins = kernels::twins;

int64_t wide(size_t n) { return static_cast<int64_t>(n); }

std::string test_rms_norm(const TestDevice& device, CudaDtype dtype, size_t rows, size_t n) {
  const Values x = random_values(dtype, rows * n, n, 3), weight = random_values(dtype, n, 2);
  const DeviceValues in(device, dtype, x), scale(device, dtype, weight), out(device, dtype, x.size());
  finish(device, device.library.rms_norm(dtype, device.index, in.data(), scale.data(), kNormEps, wide(rows), wide(n),
                                         out.data()));
  return difference(dtype, out.read(), twins::rms_norm(dtype, x, weight, static_cast<double>(kNormEps)));
}

std::string test_silu_mul(const TestDevice& device, CudaDtype dtype, size_t n) {
  const Values gate = random_values(dtype, n, n, 8), up = random_values(dtype, n, 3);
  const DeviceValues g(device, dtype, gate), u(device, dtype, up), out(device, dtype, n);
  finish(device, device.library.silu_mul(dtype, device.index, g.data(), u.data(), wide(n), out.data()));
  return difference(dtype, out.read(), twins::silu_mul(dtype, gate, up));
}

std::string test_rope(const TestDevice& device, CudaDtype dtype, size_t rows, size_t heads, size_t d) {
  const Values x = random_values(dtype, rows * heads * d, d);
  Values cosines, sines;
  for (size_t i = 0; i < rows * d / 2; ++i) {
    cosines.push_back(twins::rounded(CudaDtype::kFloat, std::cos(static_cast<double>(i))));
    sines.push_back(twins::rounded(CudaDtype::kFloat, std::sin(static_cast<double>(i))));
  }
  const DeviceValues in(device, dtype, x), c(device, CudaDtype::kFloat, cosines), s(device, CudaDtype::kFloat, sines),
      out(device, dtype, x.size());
  finish(device, device.library.rope(dtype, device.index, in.data(), c.floats(), s.floats(), wide(rows), wide(heads),
                                     wide(d), out.data()));
  return difference(dtype, out.read(), twins::rope(dtype, x, cosines, sines, d));
}

std::string test_gather_rows(const TestDevice& device, CudaDtype dtype, size_t rows, size_t n) {
  const std::vector<int32_t> ids = gathered_ids(rows);
  const Values table = random_values(dtype, rows * n, n);
  const DeviceValues in(device, dtype, table), out(device, dtype, table.size());
  const DeviceArray<int32_t> chosen(device, ids);
  finish(device,
         device.library.gather_rows(dtype, device.index, in.data(), chosen.data(), wide(rows), wide(n), out.data()));
  return difference(dtype, out.read(), twins::gather_rows(table, ids, n));
}

struct Shape3 {
  size_t rows, heads, d;
};

}  // namespace

void add_row_cases(Cases& cases, Extent extent) {
  std::vector<std::array<size_t, 2>> norms = {{3, 257}};
  std::vector<size_t> products = {257};
  std::vector<Shape3> rotations = {{5, 3, 64}};
  if (extent != Extent::kFew) {
    norms.insert(norms.end(), {{1, 1}, {5, 1000}, {64, 4096}, {2, 16384}});
    products.insert(products.end(), {1, 1000, 43008});
    rotations.insert(rotations.end(), {{1, 1, 2}, {33, 8, 96}, {4, 32, 128}});
  }
  if (extent == Extent::kMany) {
    for (const size_t n : {3, 31, 32, 33, 255, 256, 2048, 5120, 8192}) norms.push_back({7, n});
    products.insert(products.end(), {31, 255, 256, 458752});
    for (const size_t d : {6, 40, 80, 112, 256}) rotations.push_back({65, 5, d});
  }
  for (const CudaDtype dtype : kDtypes) {
    const std::string type = name_of(dtype) + " ";
    for (const auto& [rows, n] : norms)
      cases.push_back({"rms_norm", type + shape_text({rows, n}),
                       [=, rows = rows, n = n](const TestDevice& on) { return test_rms_norm(on, dtype, rows, n); }});
    for (const auto& [rows, n] : norms)
      cases.push_back({"gather_rows", type + shape_text({rows, n}),
                       [=, rows = rows, n = n](const TestDevice& on) { return test_gather_rows(on, dtype, rows, n); }});
    for (const size_t n : products)
      cases.push_back(
          {"silu_mul", type + shape_text({n}), [=](const TestDevice& on) { return test_silu_mul(on, dtype, n); }});
    for (const Shape3& s : rotations)
      cases.push_back({"rope", type + shape_text({s.rows, s.heads, s.d}),
                       [=](const TestDevice& on) { return test_rope(on, dtype, s.rows, s.heads, s.d); }});
  }
}

}  // namespace specdec::self_test
