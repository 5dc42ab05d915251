// Packs matrices into the layouts in which products read them, and unpacks them (layouts: cpu.h).
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

// Calls f(group, number of outputs, first output, first input, number of inputs) for each group of inputs of each block
// in outputs [begin, end).
template <class S, class F>
void over_groups(S* w, int64_t k, int64_t n, int64_t begin, int64_t end, const F& f) {
  for (int64_t first = begin; first < end; first += kPackOutputs) {
    const int64_t width = std::min(kPackOutputs, n - first);
    S* at = w + first * pack_row_bytes(w, k) / static_cast<int64_t>(sizeof(S));
    for (int64_t input = 0; input < k; input += kPackGroup) {
      const int64_t inputs = std::min(kPackGroup, k - input);
      f(at, width, first, input, inputs);
      at += pack_group_bytes(w, inputs, width) / static_cast<int64_t>(sizeof(S));
    }
  }
}

// Returns the index within a group of the weight for input i and output o, for a group of `width` outputs.
int64_t place(const Packed<float>*, int64_t width, int64_t i, int64_t o) { return i * width + o; }
int64_t place(const void*, int64_t width, int64_t i, int64_t o) { return (i / 2 * width + o) * 2 + i % 2; }

}  // namespace

template <class T>
void pack(const T* w, int64_t k, int64_t n, int64_t begin, int64_t end, Packed<T>* out) {
  over_groups(
      out, k, n, begin, end, [&](Packed<T>* group, int64_t width, int64_t first, int64_t input, int64_t inputs) {
        if (inputs % 2 != 0)
          std::memset(static_cast<void*>(group), 0, static_cast<size_t>(pack_group_bytes(group, inputs, width)));
        for (int64_t o = 0; o < width; ++o) {
          for (int64_t i = 0; i < inputs; ++i) group[place(group, width, i, o)].value = w[(first + o) * k + input + i];
        }
      });
}

template <class T>
void unpack(const Packed<T>* w, int64_t k, int64_t n, int64_t begin, int64_t end, T* out) {
  over_groups(w, k, n, begin, end,
              [&](const Packed<T>* group, int64_t width, int64_t first, int64_t input, int64_t inputs) {
                for (int64_t o = 0; o < width; ++o) {
                  for (int64_t i = 0; i < inputs; ++i)
                    out[(first + o) * k + input + i] = group[place(group, width, i, o)].value;
                }
              });
}

template void pack(const float*, int64_t, int64_t, int64_t, int64_t, Packed<float>*);
template void pack(const Bf16*, int64_t, int64_t, int64_t, int64_t, Packed<Bf16>*);
template void unpack(const Packed<float>*, int64_t, int64_t, int64_t, int64_t, float*);
template void unpack(const Packed<Bf16>*, int64_t, int64_t, int64_t, int64_t, Bf16*);

void quantise(const float* w, int64_t k, int64_t n, int64_t begin, int64_t end, Int8* out) {
  over_groups(out, k, n, begin, end, [&](Int8* group, int64_t width, int64_t first, int64_t input, int64_t inputs) {
    Int8* values = group + pack_scale_bytes(group, width);
    std::memset(values, 0, static_cast<size_t>(width * kPackGroup));
    for (int64_t o = 0; o < width; ++o) {
      const float* from = w + (first + o) * k + input;
      float largest = 0;
      for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, std::abs(from[i]));
      const float scale = scale_of(largest);
      std::memcpy(group + 4 * o, &scale, sizeof scale);
      for (int64_t i = 0; i < inputs && scale > 0; ++i)
        values[place(values, width, i, o)].value = static_cast<int8_t>(std::lrint(from[i] / scale));
    }
  });
}

void dequantise(const Int8* w, int64_t k, int64_t n, int64_t begin, int64_t end, float* out) {
  over_groups(w, k, n, begin, end, [&](const Int8* group, int64_t width, int64_t first, int64_t input, int64_t inputs) {
    const Int8* values = group + pack_scale_bytes(group, width);
    for (int64_t o = 0; o < width; ++o) {
      float scale;
      std::memcpy(&scale, group + 4 * o, sizeof scale);
      for (int64_t i = 0; i < inputs; ++i)
        out[(first + o) * k + input + i] = scale * static_cast<float>(values[place(values, width, i, o)].value);
    }
  });
}

}  // namespace specdec::kernels::cpu
