// Converts floating-point numbers of 8 and 16 bits to fp32, and fp32 to those of 16 bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace specdec {

// OCP's E4M3: 4 exponent bits with bias 7, 3 mantissa bits, no infinities; all ones is NaN.
inline float e4m3_to_float(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float sign = code & 128 ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                               : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10));
}

inline float fp16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  // Subnormals are mantissa · 2^-24, the unit in the last place of 0.5. Without branches, loops can be vectorised.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000u | mantissa) - 0.5f);
  const uint32_t normal = (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  return std::bit_cast<float>(sign | (exponent == 0 ? subnormal : normal));
}

inline float bf16_to_float(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// These two round to the nearest number, and to the one with an even last bit if two are as near. Numbers that are too
// large become infinite; NaN stays NaN.
inline uint16_t float_to_fp16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  uint32_t code;
  if (magnitude > 0x7f800000)
    code = 0x7e00;
  else if (magnitude < 0x38800000)  // under 2^-14: the sum with 0.5 rounds to a multiple of 2^-24
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  else
    code = std::min<uint32_t>((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13, 0x7c00);
  return static_cast<uint16_t>(sign | code);
}

inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 64);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace specdec
