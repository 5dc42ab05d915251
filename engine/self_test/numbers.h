// Arrays of numbers for tests of kernels: random values, their representation in device memory, and the comparison of a
// kernel's results with those of its plain C++ implementation (its "twin", twins.h).
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

// The value of elements that no kernel wrote: memory is first filled with 1 bits, which are a NaN in every type.
inline constexpr double kUnwritten = std::numeric_limits<double>::quiet_NaN();

inline std::string name_of(CudaDtype dtype) {
  return dtype == CudaDtype::kFloat ? "fp32" : dtype == CudaDtype::kBFloat16 ? "bf16" : "fp16";
}
inline size_t bytes_of(CudaDtype dtype) { return dtype == CudaDtype::kFloat ? 4 : 2; }

// Returns values between -range and range that this type can represent.
inline Values random_values(CudaDtype dtype, size_t n, uint64_t stream, double range = 1) {
  Values out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = kernels::twins::rounded(dtype, range * (2 * philox_uniform(7, stream, i) - 1));
  return out;
}

// Returns the bits of a number in this type. For fp16 it finds the bits by bisection, to be independent of the code
// under test.
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

// Returns `rows` ids of a table of `rows` rows, unsorted and with repetitions.
inline std::vector<int32_t> gathered_ids(size_t rows) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < rows; ++i) out.push_back(static_cast<int32_t>((rows - 1 + i * i) % rows));
  return out;
}

// memory_of() returns the representation of numbers in device memory.
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

// The allowed difference between a kernel's results and those of its plain C++ implementation. A value between two
// 16-bit numbers may be rounded either way. So 16-bit results may differ by a few steps, but only a small share of them
// may differ at all.
struct Tolerance {
  double steps = 2;        // in 16 bits: the allowed difference, in spacings of the type's numbers
  double share = 0.01;     // in 16 bits: the share of results that may differ at all
  double relative = 1e-5;  // in fp32: the allowed difference relative to the result, or to 1 if the result is smaller
  double absolute = 0;     // in all types: added to the allowed difference
  Values each = {};        // if not empty, also added: one allowance per result
};

// Describes the worst wrong result of a kernel, or reports that too many results are rounded differently; empty if all
// are right. Where `expected` has kUnwritten, the kernel must not have written.
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
  double most = 0;  // the largest error, as a multiple of the allowed difference
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

// Quantised weights [n, k] in the layout that a kernel reads, and the numbers that they represent.
struct PackedMatrix {
  std::vector<uint8_t> packed;
  Values values;
};
// Returns random int8 weights in the layout of engine/kernels/cpu/cpu.h.
inline PackedMatrix int8_matrix(size_t n, size_t k, uint64_t seed = 7) {
  constexpr size_t kOutputs = 32, kGroup = 64;
  PackedMatrix out;
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

// Returns random weights in the layout of engine/kernels/quantised_matrix.h, in which `group` inputs share a scale. If
// `period` is not 0, it is a multiple of the group, and the weights repeat after `period` inputs.
inline PackedMatrix group_quantised_matrix(kernels::Packing packing, size_t n, size_t k, size_t group,
                                           uint64_t seed = 7, size_t period = 0) {
  constexpr size_t kOutputs = 32, kUnit = 32;
  const bool four = packing == kernels::Packing::kCodes4, e4m3 = packing == kernels::Packing::kE4m3;
  const size_t unit_bytes = four ? 16 : 32, units = group / kUnit, groups = (k + group - 1) / group,
               group_bytes = units * unit_bytes + 4;
  if (period == 0) period = groups * group;
  const auto drawn = [&](uint64_t stream, size_t output, size_t place) {
    return philox_uniform(seed, stream, output * 65536 + place);
  };
  PackedMatrix out{std::vector<uint8_t>(n * groups * group_bytes), Values(n * k)};
  for (size_t o = 0; o < n; ++o) {
    const size_t first = o / kOutputs * kOutputs, outputs = std::min(kOutputs, n - first), at = o - first;
    for (size_t g = 0; g < groups; ++g) {
      uint8_t* const codes = &out.packed[first * groups * group_bytes + g * group_bytes * outputs];
      const size_t same = g * group % period / group;
      double scale = 0.01 + drawn(8, o, same) / 99, zero = 0;
      uint32_t word = 0;
      if (e4m3) {
        const auto narrow = static_cast<float>(scale / 99);
        scale = static_cast<double>(narrow), word = std::bit_cast<uint32_t>(narrow);
      } else {
        scale = kernels::twins::rounded(CudaDtype::kHalf, four ? scale : scale / 16);
        zero = std::floor(drawn(10, o, same) * (four ? 16 : 256));
        word = bits_of(CudaDtype::kHalf, scale) | static_cast<uint32_t>(zero) << 16;
      }
      for (size_t b = 0; b < 4; ++b)
        codes[units * unit_bytes * outputs + 4 * at + b] = static_cast<uint8_t>(word >> (8 * b));
      for (size_t i = g * group; i < std::min(k, (g + 1) * group); ++i) {
        auto code = static_cast<uint8_t>(drawn(9, o, i % period) * (four ? 16 : 256));
        if (e4m3 && (code & 127) == 127) code = 0;  // replaces NaN
        const size_t t = i % 8, lane = at / 4 * 4 + i % kUnit / 8,
                     number =
                         (i % group / kUnit * unit_bytes + t / 4 * (four ? 0 : 16)) * outputs + 16 * lane + at % 4 * 4;
        constexpr size_t kPlaces[] = {0, 2, 1, 3};
        if (four)
          codes[number + t % 2 * 2 + t / 4] |= static_cast<uint8_t>(code << (t / 2 % 2 * 4));
        else
          codes[number + kPlaces[t % 4]] = code;
        out.values[o * k + i] = scale * ((e4m3 ? static_cast<double>(e4m3_to_float(code)) : code) - zero);
      }
    }
  }
  return out;
}

}  // namespace specdec::self_test
