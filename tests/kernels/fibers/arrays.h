// Arrays of kernels in tests: random values, their form in a kernel's memory, and comparison with a twin's results.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/small_float.h"
#include "tests/kernels/fibers/device_memory.h"
#include "tests/kernels/twins.h"

namespace specdec::fibers {

using kernels::CudaDtype;
using kernels::twins::Values;

inline constexpr CudaDtype kDtypes[] = {CudaDtype::kFloat, CudaDtype::kBFloat16, CudaDtype::kHalf};

inline std::string name_of(CudaDtype dtype) {
  return dtype == CudaDtype::kFloat ? "fp32" : dtype == CudaDtype::kBFloat16 ? "bf16" : "fp16";
}

// Returns values between -range and range that are numbers of this type.
inline Values random_values(CudaDtype dtype, size_t n, uint64_t stream, double range = 1) {
  Values out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = kernels::twins::rounded(dtype, range * (2 * philox_uniform(7, stream, i) - 1));
  return out;
}

// Returns the bits of a number of this type. It finds those of fp16 by search, to be independent of what it tests.
inline uint32_t bits_of(CudaDtype dtype, double value) {
  const auto wide = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (dtype == CudaDtype::kFloat) return wide;
  if (dtype == CudaDtype::kBFloat16) return wide >> 16;
  uint32_t low = 0, high = 0x7C00;  // positive numbers of fp16 ascend with their bits
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (static_cast<double>(fp16_to_float(static_cast<uint16_t>(middle))) <= std::fabs(value) ? low : high) = middle;
  }
  return low | (std::signbit(value) ? 0x8000u : 0u);
}
inline double value_of(CudaDtype dtype, uint32_t bits) {
  return dtype == CudaDtype::kFloat      ? static_cast<double>(std::bit_cast<float>(bits))
         : dtype == CudaDtype::kBFloat16 ? static_cast<double>(bf16_to_float(static_cast<uint16_t>(bits)))
                                         : static_cast<double>(fp16_to_float(static_cast<uint16_t>(bits)));
}

// An array in a kernel's memory.
class Array {
 public:
  Array(CudaDtype dtype, size_t n) : dtype_(dtype), memory_(n * width()) {}
  Array(CudaDtype dtype, const Values& values) : Array(dtype, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t bits = bits_of(dtype, values[i]);
      std::memcpy(memory_.data() + i * width(), &bits, width());
    }
  }
  void* data() { return memory_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory_.data());
  }
  std::vector<uint8_t> bytes() { return memory_.read(); }
  Values values() {
    const std::vector<uint8_t> all = bytes();
    Values out(all.size() / width());
    for (size_t i = 0; i < out.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, all.data() + i * width(), width());
      out[i] = value_of(dtype_, bits);
    }
    return out;
  }

 private:
  size_t width() const { return dtype_ == CudaDtype::kFloat ? 4 : 2; }
  CudaDtype dtype_;
  DeviceMemory<uint8_t> memory_;
};

// Returns what is wrong with a kernel's results, or an empty text. In fp32 they may differ from the twin's by 1e-5,
// relative to results above 1. In 16 bits they may differ by two steps, since a value between two numbers may be
// rounded either way before it is multiplied, but only one in a hundred does.
inline std::string difference(CudaDtype dtype, const Values& found, const Values& expected) {
  if (found.size() != expected.size()) return "another number of results";
  size_t unequal = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double step = kernels::twins::spacing(dtype, expected[i]),
                 most = dtype == CudaDtype::kFloat ? 1e-5 * std::max(1.0, std::fabs(expected[i])) : 2 * step;
    if (!(std::fabs(found[i] - expected[i]) <= most))
      return name_of(dtype) + " element " + std::to_string(i) + " of " + std::to_string(found.size()) + " is " +
             std::to_string(found[i]) + ", expected " + std::to_string(expected[i]);
    if (found[i] != expected[i]) ++unequal;
  }
  if (dtype != CudaDtype::kFloat && unequal * 100 > found.size() + 99)
    return name_of(dtype) + ": " + std::to_string(unequal) + " of " + std::to_string(found.size()) +
           " results are rounded in another way";
  return {};
}

}  // namespace specdec::fibers
