// Reads quantised weights for the tensor cores: a lane reads its share of a unit of inputs of a block of 32 outputs and
// converts the codes to 16-bit numbers, exactly; the caller multiplies by the fp32 scales. The layouts are those of
// kernels/cpu/cpu.h (Int8) and kernels/quantised_matrix.h.
#pragma once

#include <ptx.h>

#include "engine/kernels/cuda/device.h"

namespace specdec::kernels::cuda {

constexpr int kBlockOutputs = 32;  // outputs per block in both layouts

// The position of a unit in a block of `outputs` outputs. `group` is the address of the group (inputs that share a
// scale), which has `units` units; `unit` is the index of the unit in its group.
struct UnitPlace {
  const uint8_t* group;
  int unit, units, outputs;
};

// Iterates over the units of a block, from unit `first` on in steps of `step`.
class UnitWalk {
 public:
  __device__ UnitWalk(int first, int step, int units)
      : group_(first / units), unit_(first % units), step_groups_(step / units), step_units_(step % units) {}
  __device__ UnitPlace place(const uint8_t* block, int64_t group_bytes, int units, int outputs) const {
    return {block + group_ * group_bytes * outputs, unit_, units, outputs};
  }
  __device__ void next(int units) {
    group_ += step_groups_, unit_ += step_units_;
    if (unit_ >= units) unit_ -= units, ++group_;
  }

 private:
  int64_t group_;
  int unit_, step_groups_, step_units_;
};

template <class T>
__device__ uint32_t pair_of(int8_t low, int8_t high) {
  return bits(narrow<T>(static_cast<float>(low))) | bits(narrow<T>(static_cast<float>(high))) << 16;
}

// A lane's share of 64 inputs that have their own scale: inputs 16 · member to 16 · member + 15 of outputs 4 · group to
// 4 · group + 3.
template <class T>
struct Int8Weights {
  static constexpr int kInputs = 64;
  static __device__ int64_t group_bytes(int) { return kInputs + 4; }  // bytes per output

  uint32_t pairs[8][4];  // [i][o] holds the numbers of the inputs 2 · i and 2 · i + 1 for output o
  float scales[4];

  __device__ void load(const UnitPlace& place, int group, int member) {
    const int outputs = place.outputs;
    const auto* scale = reinterpret_cast<const float*>(place.group);
#pragma unroll
    for (int o = 0; o < 4; ++o) scales[o] = 4 * group + o < outputs ? scale[4 * group + o] : 0.0f;
    const auto* values = reinterpret_cast<const int8_t*>(place.group) + 4 * outputs;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int8_t* row = values + (8 * member + i) * 2 * outputs + 8 * group;
      int8_t some[8] = {};
      if (outputs == kBlockOutputs) {
        const uint2 all = *reinterpret_cast<const uint2*>(row);
#pragma unroll
        for (int b = 0; b < 8; ++b) some[b] = static_cast<int8_t>((b < 4 ? all.x : all.y) >> (b % 4 * 8) & 0xffu);
      } else {
#pragma unroll
        for (int b = 0; b < 8; ++b)
          if (4 * group + b / 2 < outputs) some[b] = row[b];
      }
#pragma unroll
      for (int o = 0; o < 4; ++o) pairs[i][o] = pair_of<T>(some[2 * o], some[2 * o + 1]);
    }
  }
};

// Constants of type T, duplicated in both halves of a register, that convert codes to numbers by bit operations: kLarge
// with a code in its low bits is the number kLarge + code.
template <class T>
struct PairConstants;
template <>
struct PairConstants<__nv_bfloat16> {
  static constexpr uint32_t kOne = 0x3F803F80u, kLarge = 0x43004300u;  // twice 1, twice 128
  // E4M3's exponent and fraction bits, moved to the place of T's (for bf16: shifted right by four bits), represent the
  // number divided by 2^120.
  static constexpr int kE4m3Shift = 4;
  static constexpr uint32_t kE4m3Factor = 0x7B807B80u;
};
template <>
struct PairConstants<__half> {
  static constexpr uint32_t kOne = 0x3C003C00u, kLarge = 0x64006400u;  // twice 1, twice 1024
  static constexpr int kE4m3Shift = 1;  // the shifted bits represent the number divided by 2^8
  static constexpr uint32_t kE4m3Factor = 0x5C005C00u;
};
constexpr uint32_t kMinusZeros = 0x80008000u;

// A lane's share of a unit of 32 inputs: inputs 8 · member to 8 · member + 7 of outputs 4 · group to 4 · group + 3.
// Integer codes are returned with their zero point subtracted.
template <class T, Packing kPacking>
struct GroupQuantisedWeights {
  static constexpr int kInputs = kUnitInputs, kUnitBytes = kPacking == Packing::kCodes4 ? 16 : 32;
  static __device__ int64_t group_bytes(int units) { return kUnitBytes * int64_t{units} + 4; }

  uint32_t pairs[4][4];  // [i][o] holds the numbers of the share's inputs 2 · i and 2 · i + 1 for its output o
  float scales[4];

  __device__ void load(const UnitPlace& place, int group, int member) {
    uint4 first = {}, second = {}, words = {};
    const int lane = 4 * group + member;
    if (lane < place.outputs) {
      const uint8_t* codes = place.group + place.unit * kUnitBytes * place.outputs + 16 * lane;
      first = *reinterpret_cast<const uint4*>(codes);
      if constexpr (kUnitBytes == 32) second = *reinterpret_cast<const uint4*>(codes + 16 * place.outputs);
      words = *reinterpret_cast<const uint4*>(place.group + place.units * kUnitBytes * place.outputs + 16 * group);
    }
    take(0, first.x, second.x, words.x);
    take(1, first.y, second.y, words.y);
    take(2, first.z, second.z, words.z);
    take(3, first.w, second.w, words.w);
  }

 private:
  using Constants = PairConstants<T>;

  __device__ void take(int output, uint32_t first, uint32_t second, uint32_t word) {
    if constexpr (kPacking == Packing::kE4m3) {
      scales[output] = __int_as_float(static_cast<int>(word));
      pairs[0][output] = e4m3(first << 8), pairs[1][output] = e4m3(first);
      pairs[2][output] = e4m3(second << 8), pairs[3][output] = e4m3(second);
    } else {
      scales[output] = __half2float(__ushort_as_half(static_cast<unsigned short>(word & 0xffffu)));
      const uint32_t zero = minus_zero(word >> 16);
      if constexpr (kPacking == Packing::kCodes4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i][output] = integers(first >> 4 * i & 0x000f000fu, zero);
      } else {
        pairs[0][output] = integers(first & 0x00ff00ffu, zero),
        pairs[1][output] = integers(first >> 8 & 0x00ff00ffu, zero);
        pairs[2][output] = integers(second & 0x00ff00ffu, zero),
        pairs[3][output] = integers(second >> 8 & 0x00ff00ffu, zero);
      }
    }
  }

  // Converts two E4M3 codes, which are the upper bytes of the two halves of `codes`.
  __device__ static uint32_t e4m3(uint32_t codes) {
    const uint32_t number = (codes & kMinusZeros) | (codes & 0x7f007f00u) >> Constants::kE4m3Shift;
    return fma_pairs<T>(number, Constants::kE4m3Factor, kMinusZeros);
  }

  // In bf16 only seven bits fit below kLarge, so the highest bit of an 8-bit code is added separately.
  static constexpr bool kInSteps = kPacking == Packing::kCodes8 && Constants::kLarge == 0x43004300u;

  // Returns the addend that subtracts the zero point from two codes: -(kLarge + zero) or, with kInSteps, -zero.
  __device__ static uint32_t minus_zero(uint32_t zero) {
    if constexpr (kInSteps)
      return bits(narrow<T>(-static_cast<float>(zero))) * 0x00010001u;
    else
      return kMinusZeros | Constants::kLarge | zero * 0x00010001u;
  }
  __device__ static uint32_t integers(uint32_t codes, uint32_t zero) {
    if constexpr (kInSteps) {
      const uint32_t lacks = (~codes >> 7 & 0x00010001u) * 0xC300u;  // -128 where the highest bit is 0
      codes = fma_pairs<T>(Constants::kLarge | (codes & 0x007f007fu), Constants::kOne, lacks);
      return fma_pairs<T>(codes, Constants::kOne, zero);
    } else {
      return fma_pairs<T>(Constants::kLarge | codes, Constants::kOne, zero);
    }
  }
};

// Returns f(Weights, units) for the weight type of a packing whose groups have `group` inputs.
template <class T, class F>
int with_weights(Packing packing, int64_t group, const F& f) {
  const int units = static_cast<int>(group / kUnitInputs);
  const bool whole = group > 0 && group % kUnitInputs == 0 && group / kUnitInputs == units;
  if (packing == Packing::kInt8) return f(Int8Weights<T>{}, 1);
  if (packing == Packing::kCodes4 && whole) return f(GroupQuantisedWeights<T, Packing::kCodes4>{}, units);
  if (packing == Packing::kCodes8 && whole) return f(GroupQuantisedWeights<T, Packing::kCodes8>{}, units);
  if (packing == Packing::kE4m3 && whole) return f(GroupQuantisedWeights<T, Packing::kE4m3>{}, units);
  return static_cast<int>(cudaErrorInvalidValue);
}

inline bool aligned_to_16(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

}  // namespace specdec::kernels::cuda
