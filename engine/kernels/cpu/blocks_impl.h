// Builds the table of kernels for an instruction set that adds dot products of bytes (VNNI) to another one: products
// with block-quantised matrices are its own, everything else is the other's. Included with SPECDEC_ISA and
// SPECDEC_LANES defined, and with SPECDEC_BASE, the namespace of the other instruction set.
#include "engine/kernels/cpu/linear_blocks.h"

namespace specdec::kernels::cpu {

namespace SPECDEC_BASE {
const Kernels<float>& kernels_f32();
const Kernels<Bf16>& kernels_bf16();
}  // namespace SPECDEC_BASE

namespace SPECDEC_ISA {

namespace {

#define SPECDEC_TEXT2(x) #x
#define SPECDEC_TEXT(x) SPECDEC_TEXT2(x)

template <class T>
Kernels<T> with_own_blocks(Kernels<T> table) {
  table.name = SPECDEC_TEXT(SPECDEC_ISA);
  table.linear_blocks = linear_blocks<SPECDEC_LANES, T>;
  return table;
}

}  // namespace

const Kernels<float>& kernels_f32();
const Kernels<Bf16>& kernels_bf16();
const Kernels<float>& kernels_f32() {
  static const Kernels<float> table = with_own_blocks(SPECDEC_BASE::kernels_f32());
  return table;
}
const Kernels<Bf16>& kernels_bf16() {
  static const Kernels<Bf16> table = with_own_blocks(SPECDEC_BASE::kernels_bf16());
  return table;
}

}  // namespace SPECDEC_ISA

}  // namespace specdec::kernels::cpu
