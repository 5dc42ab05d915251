// Helpers for tests of the CPU kernels that work on plain arrays instead of tensors.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/philox.h"
#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels::cpu {

inline std::vector<float> random(size_t n, uint64_t stream) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(philox_uniform(3, stream, i) * 2 - 1);
  return out;
}
template <class T>
std::vector<T> narrowed(const Kernels<T>& kernels, const std::vector<float>& x) {
  std::vector<T> out(x.size());
  kernels.narrow(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}
template <class T>
std::vector<float> widened(const Kernels<T>& kernels, const std::vector<T>& x) {
  std::vector<float> out(x.size());
  kernels.widen(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

template <class T>
class CpuKernels : public testing::Test {
 protected:
  CpuKernels() { count = available<T>(all); }
  const Kernels<T>* all[kInstructionSets];
  int count = 0;
};
using Types = testing::Types<float, Bf16>;

// Expects that x wᵀ + bias was added to columns 2 to n − 2 (inclusive) of the first `used` rows of `out` [rows, n], and
// that all other elements still have the value 0.5 that the whole array had before.
inline void expect_products(const std::vector<float>& out, const std::vector<float>& x, const std::vector<float>& w,
                            const std::vector<float>& bias, int64_t rows, int64_t used, int64_t k, int64_t n,
                            const char* set, double tolerance = 1e-5) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[static_cast<size_t>(r * k + i)]) * w[static_cast<size_t>(c * k + i)];
      const bool given = r < used && c >= 2 && c < n - 1;
      EXPECT_NEAR(out[static_cast<size_t>(r * n + c)], given ? 0.5 + sum + bias[static_cast<size_t>(c)] : 0.5,
                  tolerance)
          << set << " k " << k << " row " << r << " column " << c;
    }
  }
}

}  // namespace specdec::kernels::cpu
