// Matrices to int8 and back (the layout is cpu.h's).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels::cpu {

namespace {

float scale_of(float largest) {
  const auto bits = std::bit_cast<uint32_t>(largest / 127);
  return std::bit_cast<float>((bits + 0xffu) & ~0xffu);
}

// f(scale, values, outputs, first output, first input, inputs) over the groups of each block.
template <class Byte, class F>
void over_groups(Byte* w, int64_t k, int64_t n, int64_t begin, int64_t end, const F& f) {
  for (int64_t first = begin; first < end; first += kInt8Outputs) {
    const int64_t width = std::min(kInt8Outputs, n - first);
    Byte* at = w + first * int8_row_bytes(k);
    for (int64_t input = 0; input < k; input += kInt8Group, at += width * (kInt8Group + 4))
      f(at, at + 4 * width, width, first, input, std::min(kInt8Group, k - input));
  }
}

}  // namespace

void quantise(const float* w, int64_t k, int64_t n, int64_t begin, int64_t end, Int8* out) {
  over_groups(out, k, n, begin, end, [&](Int8* scales, Int8* values, int64_t width, int64_t first, int64_t input, int64_t inputs) {
    std::memset(values, 0, static_cast<size_t>(width * kInt8Group));
    for (int64_t o = 0; o < width; ++o) {
      const float* from = w + (first + o) * k + input;
      float largest = 0;
      for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, std::abs(from[i]));
      const float scale = scale_of(largest);
      std::memcpy(scales + 4 * o, &scale, sizeof scale);
      for (int64_t i = 0; i < inputs && scale > 0; ++i) values[i * width + o].value = static_cast<int8_t>(std::lrint(from[i] / scale));
    }
  });
}

void dequantise(const Int8* w, int64_t k, int64_t n, int64_t begin, int64_t end, float* out) {
  over_groups(w, k, n, begin, end, [&](const Int8* scales, const Int8* values, int64_t width, int64_t first, int64_t input, int64_t inputs) {
    for (int64_t o = 0; o < width; ++o) {
      float scale;
      std::memcpy(&scale, scales + 4 * o, sizeof scale);
      for (int64_t i = 0; i < inputs; ++i) out[(first + o) * k + input + i] = scale * static_cast<float>(values[i * width + o].value);
    }
  });
}

}  // namespace specdec::kernels::cpu
