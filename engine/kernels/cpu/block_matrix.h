// Matrices of GGUF files, whose rows are stored in quantised blocks (base/gguf/blocks.h), in the layout in which CPU
// products read them. The values are those of the file: weight = scale · (code − offset) or scale · code + min.
//
// A matrix [n, k] is cut into blocks of kPackOutputs outputs; the last block is padded with zeros, so memory for
// block_outputs(n) outputs is needed. A block stores its supers one after the other (a super is kGroups groups of
// kBlockInputs inputs). A super stores one fp16 scale per output, one fp16 min per output if the kind has mins, and its
// groups. A group stores, if the kind has supers of several groups, one byte per output that multiplies the super's
// scale and one that multiplies its min (or two bytes per output for the scales of the two halves of the group), and
// then the codes. Codes are unsigned bytes, four adjacent inputs (a quad) of an output side by side, [quads, outputs,
// 4]. Codes of 4 bits: byte plane j of the four planes holds quad j in the low and quad j + 4 in the high half of each
// byte. Codes of 6 bits: these planes hold the lower four bits; two more planes hold the upper two: plane j quad j +
// 2·i at bit 2·i.
#pragma once

#include <cstdint>

#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels::cpu {

// Describes a kind for the kernels. Bits of a code as stored, the largest code (codes of 5 bits are stored as 6),
// groups of a super, scales of a group, the code that stands for zero, and whether values have a minimum instead.
template <int Bits, int Largest, int Groups, int Scales, int Offset, bool Mins>
struct BlockLayout {
  static constexpr int kBits = Bits, kLargest = Largest, kGroups = Groups, kScales = Scales, kOffset = Offset;
  static constexpr bool kMins = Mins;
  // Bytes per output.
  static constexpr int64_t kHeadBytes = Mins ? 4 : 2, kGroupScaleBytes = Groups == 1 ? 0 : 2,
                           kGroupBytes = kGroupScaleBytes + kBlockInputs * Bits / 8,
                           kSuperBytes = kHeadBytes + Groups * kGroupBytes;
};

// Calls f<Layout>() for the layout of a kind.
template <class F>
inline auto with_layout(BlockKind kind, const F& f) {
  switch (kind) {
    case BlockKind::kQ4_0:
      return f.template operator()<BlockLayout<4, 15, 1, 1, 8, false>>();
    case BlockKind::kQ4_1:
      return f.template operator()<BlockLayout<4, 15, 1, 1, 0, true>>();
    case BlockKind::kQ5_0:
      return f.template operator()<BlockLayout<6, 31, 1, 1, 16, false>>();
    case BlockKind::kQ5_1:
      return f.template operator()<BlockLayout<6, 31, 1, 1, 0, true>>();
    case BlockKind::kQ4_K:
      return f.template operator()<BlockLayout<4, 15, 8, 1, 0, true>>();
    case BlockKind::kQ5_K:
      return f.template operator()<BlockLayout<6, 31, 8, 1, 0, true>>();
    case BlockKind::kQ6_K:
      return f.template operator()<BlockLayout<6, 63, 8, 2, 32, false>>();
    case BlockKind::kQ8_0:
      break;
  }
  return f.template operator()<BlockLayout<8, 255, 1, 1, 128, false>>();
}

static constexpr int64_t block_outputs(int64_t n) { return (n + kPackOutputs - 1) / kPackOutputs * kPackOutputs; }

}  // namespace specdec::kernels::cpu
