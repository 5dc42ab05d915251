// Arrays of numbers for tests of kernels: random values, their form in a device's memory, and the comparison of a
// kernel's results with those of its twin.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/small_float.h"
#include "engine/self_test/twins.h"

namespace specdec::self_test {

using kernels::CudaDtype;
using kernels::twins::Values;

inline constexpr CudaDtype kDtypes[] = {CudaDtype::kFloat, CudaDtype::kBFloat16, CudaDtype::kHalf};
inline constexpr CudaDtype kHalves[] = {CudaDtype::kBFloat16, CudaDtype::kHalf};

// What no kernel wrote, in memory that was filled with ones before: it is no number in any type.
inline constexpr double kUnwritten = std::numeric_limits<double>::quiet_NaN();

inline std::string name_of(CudaDtype dtype) {
  return dtype == CudaDtype::kFloat ? "fp32" : dtype == CudaDtype::kBFloat16 ? "bf16" : "fp16";
}
inline size_t bytes_of(CudaDtype dtype) { return dtype == CudaDtype::kFloat ? 4 : 2; }

// Returns values between -range and range that are numbers of this type.
inline Values random_values(CudaDtype dtype, size_t n, uint64_t stream, double range = 1) {
  Values out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = kernels::twins::rounded(dtype, range * (2 * philox_uniform(7, stream, i) - 1));
  return out;
}

// Returns the bits of a number of this type. It finds those of fp16 by search, to be independent of what it tests.
inline uint32_t bits_of(CudaDtype dtype, double value) {
  if (std::isnan(value)) return dtype == CudaDtype::kFloat ? 0xFFFFFFFFu : 0xFFFFu;
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

// Returns ids of a table of `rows` rows, as many, in no order and some of them twice.
inline std::vector<int32_t> gathered_ids(size_t rows) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < rows; ++i) out.push_back(static_cast<int32_t>((rows - 1 + i * i) % rows));
  return out;
}

// The form of numbers in a device's memory, and back.
inline std::vector<uint8_t> memory_of(CudaDtype dtype, const Values& values) {
  const size_t width = bytes_of(dtype);
  std::vector<uint8_t> out(values.size() * width);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = bits_of(dtype, values[i]);
    for (size_t b = 0; b < width; ++b) out[i * width + b] = static_cast<uint8_t>(bits >> (8 * b));
  }
  return out;
}
inline Values values_in(CudaDtype dtype, const std::vector<uint8_t>& memory) {
  const size_t width = bytes_of(dtype);
  Values out(memory.size() / width);
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t bits = 0;
    for (size_t b = 0; b < width; ++b) bits |= static_cast<uint32_t>(memory[i * width + b]) << (8 * b);
    out[i] = value_of(dtype, bits);
  }
  return out;
}

// How far results may be from a twin's. In 16 bits they may differ by some steps, since a value between two numbers may
// be rounded either way before it goes on, but only a share of them does.
struct Tolerance {
  double steps = 2;
  double share = 0.01;
  double relative = 1e-5;  // in fp32, for results above 1; others may differ by this number itself
  double absolute = 0;     // is added to what any result may differ by
  Values each = {};        // if not empty, what each result may differ by besides
};

// Describes the worst of a kernel's results, or how many are rounded in another way; empty if all are right. Where the
// twin has kUnwritten, the kernel must have written nothing.
inline std::string difference(CudaDtype dtype, const Values& found, const Values& expected,
                              const Tolerance& tolerance = {}) {
  std::ostringstream text;
  text.precision(8);
  if (found.size() != expected.size()) {
    text << found.size() << " results, expected " << expected.size();
    return text.str();
  }
  const auto allowed = [&](size_t i) {
    const double own = dtype == CudaDtype::kFloat ? tolerance.relative * std::max(1.0, std::fabs(expected[i]))
                                                  : tolerance.steps * kernels::twins::spacing(dtype, expected[i]);
    return own + tolerance.absolute + (tolerance.each.empty() ? 0 : tolerance.each[i]);
  };
  size_t unequal = 0, worst = 0;
  double most = 0;  // the worst error, in units of what is allowed
  for (size_t i = 0; i < found.size(); ++i) {
    if ((std::isnan(found[i]) && std::isnan(expected[i])) || found[i] == expected[i]) continue;
    ++unequal;
    const double error = std::fabs(found[i] - expected[i]) / allowed(i),
                 badness = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    if (badness > most) most = badness, worst = i;
  }
  if (most > 1) {
    text << "element " << worst << " of " << found.size() << " is " << found[worst] << ", expected " << expected[worst]
         << " within " << (std::isnan(expected[worst]) ? 0 : allowed(worst));
    return text.str();
  }
  if (dtype == CudaDtype::kFloat ||
      static_cast<double>(unequal) <= tolerance.share * static_cast<double>(found.size()) + 1)
    return {};
  text << unequal << " of " << found.size() << " results are rounded in another way, the worst is element " << worst
       << ": " << found[worst] << ", expected " << expected[worst];
  return text.str();
}

// Int8 weights [n, k] in the layout that engine/kernels/cpu/cpu.h describes, and the numbers that they stand for.
struct Int8Matrix {
  std::vector<uint8_t> packed;
  Values values;
};
inline Int8Matrix int8_matrix(size_t n, size_t k, uint64_t seed = 7) {
  constexpr size_t kOutputs = 32, kGroup = 64;
  Int8Matrix out;
  out.values.resize(n * k);
  uint64_t next = 0;
  for (size_t first = 0; first < n; first += kOutputs) {
    const size_t outputs = std::min(kOutputs, n - first);
    for (size_t begin = 0; begin < k; begin += kGroup) {
      std::vector<float> scales;
      for (size_t o = 0; o < outputs; ++o)
        scales.push_back(static_cast<float>(0.01 + philox_uniform(seed, 8, next++) / 99));
      const auto* bytes = reinterpret_cast<const uint8_t*>(scales.data());
      out.packed.insert(out.packed.end(), bytes, bytes + 4 * outputs);
      for (size_t pair = 0; pair < kGroup / 2; ++pair)
        for (size_t o = 0; o < outputs; ++o)
          for (size_t i = begin + 2 * pair; i < begin + 2 * pair + 2; ++i) {
            const auto code = i < k ? static_cast<int8_t>(255 * philox_uniform(seed, 9, next++) - 127) : int8_t{0};
            out.packed.push_back(static_cast<uint8_t>(code));
            if (i < k) out.values[(first + o) * k + i] = static_cast<double>(scales[o]) * code;
          }
    }
  }
  return out;
}

}  // namespace specdec::self_test
