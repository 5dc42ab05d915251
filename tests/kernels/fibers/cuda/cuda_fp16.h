// Stands in for CUDA's header of this name on fibers: fp16, rounded to nearest, ties to even.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/small_float.h"

struct __half {
  uint16_t bits;
};
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half x) { return specdec::fp16_to_float(x.bits); }
inline __half __float2half(float x) {
  if (x != x) return {0x7FFF};
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float size = std::fabs(x);
  if (size == 0) return {sign};
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7C00)};  // rounds to infinity
  // Neighbouring fp16 numbers of this size differ by 2^(exponent - 11), with frexp()'s exponent, and by 2^-24 near
  // zero.
  int exponent = 0;
  std::frexp(size, &exponent);
  const int spacing = exponent - 1 < -14 ? -24 : exponent - 11;
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, -spacing)));
  // `steps` counts from zero within the subnormal numbers, and from 1024 in each binade. A carry into the next binade
  // has the right bits by itself.
  if (spacing == -24) return {static_cast<uint16_t>(sign | steps)};
  return {static_cast<uint16_t>(sign | (((static_cast<uint32_t>(spacing + 25) << 10) + (steps - 1024))))};
}
