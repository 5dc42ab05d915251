// Reads quantised weights for the tensor cores: a lane reads its share of a unit of inputs of a block of 32 outputs
// and makes 16-bit numbers of its codes. The numbers are exact; the caller multiplies by the scales, which are fp32.
// The layouts are those of kernels/cpu/cpu.h (Int8) and kernels/quantised_matrix.h.
#pragma once

#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/warp_ring.h"

namespace specdec::kernels::cuda {

constexpr int kBlockOutputs = 32;  // outputs of a block of the layouts

// Where a unit lies, in a block of `outputs` outputs. `group` is the address of the inputs that share a scale, which
// are `units` units; the unit is number `unit` of them.
struct UnitPlace {
  const uint8_t* group;
  int unit, units, outputs;
};

// Walks over the units of a block, from one on and with steps of one size. `group_bytes` are those of one output.
class UnitWalk {
 public:
  __device__ UnitWalk(const uint8_t* block, int outputs, int units, int64_t group_bytes, int first, int step)
      : bytes_(static_cast<int>(group_bytes) * outputs),
        step_bytes_(step / units * bytes_),
        place_{block + int64_t{first / units} * bytes_, first % units, units, outputs},
        step_units_(step % units) {}
  __device__ const UnitPlace& place() const { return place_; }
  // Returns the group, of one unit, that was the place so many steps ago.
  __device__ const uint8_t* before(int steps) const { return place_.group - steps * step_bytes_; }
  __device__ void next() {
    place_.unit += step_units_, place_.group += step_bytes_;
    if (place_.unit >= place_.units) place_.unit -= place_.units, place_.group += bytes_;
  }

 private:
  int bytes_, step_bytes_;
  UnitPlace place_;
  int step_units_;
};

// Numbers of type T, twice each, from which codes become numbers without conversions: a code in the low bits of kLarge
// stands for kLarge plus the code.
template <class T>
struct PairConstants;
template <>
struct PairConstants<__nv_bfloat16> {
  static constexpr uint32_t kOne = 0x3F803F80u, kLarge = 0x43004300u;  // 1, 128
  // E4M3's exponent and fraction at the place of T's, four bits lower than in the upper half of a number, are the
  // number divided by 2^120.
  static constexpr int kE4m3Shift = 4;
  static constexpr uint32_t kE4m3Factor = 0x7B807B80u;
};
template <>
struct PairConstants<__half> {
  static constexpr uint32_t kOne = 0x3C003C00u, kLarge = 0x64006400u;  // 1, 1024
  static constexpr int kE4m3Shift = 1;                                 // divided by 2^8
  static constexpr uint32_t kE4m3Factor = 0x5C005C00u;
};
constexpr uint32_t kMinusZeros = 0x80008000u;

// A lane's share of 64 inputs with a scale of their own: inputs 16 · member to 16 · member + 15 of outputs 4 · group to
// 4 · group + 3. In shared memory the values of a block of kBlockOutputs outputs lie so that neither their copies nor
// their reads meet at a bank.
template <class T>
struct Int8Weights {
  static constexpr int kInputs = 64, kStageBytes = kInputs * kBlockOutputs;
  // The lanes read the scales themselves, a step ahead, because a ring has no room for them.
  static constexpr bool kScalesApart = true;
  static __device__ int64_t group_bytes(int) { return kInputs + 4; }  // of one output

  uint32_t pairs[8][4];  // [i][o] holds the numbers of the inputs 2 · i and 2 · i + 1 for output o
  float scales[4];

  // Only blocks of kBlockOutputs outputs lie at multiples of 16 bytes. Of others the bytes are moved one by one.
  static __device__ void begin_copies(uint8_t* stage, const UnitPlace& place, int lane, bool reads) {
    const uint8_t* values = place.group + 4 * place.outputs;
    if (place.outputs == kBlockOutputs) {
      const int first = place_of(0, lane / 4, lane % 4);
#pragma unroll
      for (int m = 0; m < 4; ++m) begin_copy(stage + (first ^ 32 * m), values + 512 * m + 16 * lane, reads);
    } else if (reads) {
#pragma unroll 1
      for (int i = lane; i < kStageBytes; i += 32) {
        const int pair = i / 64, byte = i % 64;
        const bool there = byte / 2 < place.outputs;
        stage[place_of(pair / 8, pair % 8, byte / 16) + byte % 16] =
            there ? values[2 * pair * place.outputs + byte] : uint8_t{0};
      }
    }
  }
  static __device__ uint4 scales_of(const uint8_t* unit, int outputs, int group) {
    const auto* scale = reinterpret_cast<const uint4*>(unit);
    if (outputs == kBlockOutputs) return scale[group];
    const auto of = [&](int output) { return output < outputs ? reinterpret_cast<const uint32_t*>(unit)[output] : 0; };
    return {of(4 * group), of(4 * group + 1), of(4 * group + 2), of(4 * group + 3)};
  }
  __device__ void take(const uint8_t* stage, const uint4& words, int group, int member) {
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int o = 0; o < 4; ++o) scales[o] = __int_as_float(static_cast<int>(all[o]));
    const int even = place_of(member, 0, group / 2) + group % 2 * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      take_values(i, *reinterpret_cast<const uint2*>(stage + (i % 2 == 0 ? even : even ^ 32) + 256 * i));
  }

 private:
  // Returns where 16 bytes lie in a stage: the q-th of those of the inputs 2 · i and 2 · i + 1 of a member.
  static __device__ int place_of(int member, int i, int q) {
    return 256 * i + q / 2 * 128 + (member ^ (i % 2 + q / 2 * 2)) * 32 + q % 2 * 16;
  }
  // Two neighbouring bytes are the inputs of an output. Their seven lower bits beside kLarge stand for kLarge plus a
  // number, of which kLarge is taken away, and 128 more for the highest bit.
  __device__ void take_values(int i, const uint2& bytes) {
    using Constants = PairConstants<T>;
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      const uint32_t codes = __byte_perm(o < 2 ? bytes.x : bytes.y, 0, o % 2 == 0 ? 0x4140u : 0x4342u);
      pairs[i][o] = fma_pairs<T>(Constants::kLarge | (codes & 0x007f007fu), Constants::kOne,
                                 Constants::kLarge | kMinusZeros | (codes & 0x00800080u));
    }
  }
};

// A lane's share of a unit of 32 inputs: inputs 8 · member to 8 · member + 7 of outputs 4 · group to 4 · group + 3.
// Integers are less by their zero point.
template <class T, Packing kPacking>
struct GroupQuantisedWeights {
  static constexpr int kInputs = kUnitInputs, kUnitBytes = kPacking == Packing::kCodes4 ? 16 : 32,
                       kStageBytes = (kUnitBytes + 4) * kBlockOutputs;  // codes, then scales
  static constexpr bool kScalesApart = false;
  static __device__ int64_t group_bytes(int units) { return kUnitBytes * int64_t{units} + 4; }

  uint32_t pairs[4][4];  // [i][o] holds the numbers of the share's inputs 2 · i and 2 · i + 1 for its output o
  float scales[4];

  static __device__ void begin_copies(uint8_t* stage, const UnitPlace& place, int lane, bool reads) {
    const bool there = reads && lane < place.outputs;
    const uint8_t* codes = codes_of(place) + 16 * lane;
    begin_copy(stage + 16 * lane, codes, there);
    if constexpr (kUnitBytes == 32) begin_copy(stage + 512 + 16 * lane, codes + 16 * place.outputs, there);
    if (lane < kBlockOutputs / 4)
      begin_copy(stage + kUnitBytes * kBlockOutputs + 16 * lane, words_of(place) + lane,
                 reads && 4 * lane < place.outputs);
  }
  __device__ void take(const uint8_t* stage, const uint4&, int group, int member) {
    const auto* codes = reinterpret_cast<const uint4*>(stage) + 4 * group + member;
    take_all(codes[0], kUnitBytes == 32 ? codes[32] : uint4{},
             reinterpret_cast<const uint4*>(stage + kUnitBytes * kBlockOutputs)[group]);
  }
  __device__ void load(const UnitPlace& place, int group, int member) {
    uint4 first = {}, second = {}, words = {};
    const int lane = 4 * group + member;
    if (lane < place.outputs) {
      const auto* codes = reinterpret_cast<const uint4*>(codes_of(place)) + lane;
      first = codes[0];
      if constexpr (kUnitBytes == 32) second = codes[place.outputs];
      words = words_of(place)[group];
    }
    take_all(first, second, words);
  }

 private:
  using Constants = PairConstants<T>;

  static __device__ const uint8_t* codes_of(const UnitPlace& place) {
    return place.group + place.unit * kUnitBytes * place.outputs;
  }
  static __device__ const uint4* words_of(const UnitPlace& place) {
    return reinterpret_cast<const uint4*>(place.group + place.units * kUnitBytes * place.outputs);
  }
  __device__ void take_all(const uint4& first, const uint4& second, const uint4& words) {
    take_output(0, first.x, second.x, words.x);
    take_output(1, first.y, second.y, words.y);
    take_output(2, first.z, second.z, words.z);
    take_output(3, first.w, second.w, words.w);
  }
  __device__ void take_output(int output, uint32_t first, uint32_t second, uint32_t word) {
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

  // The bytes of two numbers are the upper bytes of the halves of `codes`.
  __device__ static uint32_t e4m3(uint32_t codes) {
    const uint32_t number = (codes & kMinusZeros) | (codes & 0x7f007f00u) >> Constants::kE4m3Shift;
    return fma_pairs<T>(number, Constants::kE4m3Factor, kMinusZeros);
  }

  // Eight bits do not fit beside kLarge in bf16: their highest is added by itself.
  static constexpr bool kInSteps = kPacking == Packing::kCodes8 && Constants::kLarge == 0x43004300u;

  // Returns what is added to two codes beside kLarge, or to the codes themselves.
  __device__ static uint32_t minus_zero(uint32_t zero) {
    if constexpr (kInSteps)
      return bits(narrow<T>(-static_cast<float>(zero))) * 0x00010001u;
    else
      return kMinusZeros | Constants::kLarge | zero * 0x00010001u;
  }
  __device__ static uint32_t integers(uint32_t codes, uint32_t zero) {
    if constexpr (kInSteps) {
      const uint32_t lacks = (~codes >> 7 & 0x00010001u) * 0xC300u;  // -128 without the highest bit
      codes = fma_pairs<T>(Constants::kLarge | (codes & 0x007f007fu), Constants::kOne, lacks);
      return fma_pairs<T>(codes, Constants::kOne, zero);
    } else {
      return fma_pairs<T>(Constants::kLarge | codes, Constants::kOne, zero);
    }
  }
};

// Returns f(Weights, units) for the weights of a packing with `group` inputs to a scale.
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
