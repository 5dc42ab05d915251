// Chooses the instruction set of the CPU kernels, once per process.
#include <cstdlib>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels::cpu {

#define SPECDEC_DECLARE(isa)           \
  namespace isa {                      \
  const Kernels<float>& kernels_f32(); \
  const Kernels<Bf16>& kernels_bf16(); \
  }
SPECDEC_DECLARE(baseline)
#if defined(__x86_64__)
SPECDEC_DECLARE(avx2)
SPECDEC_DECLARE(avx_vnni)
SPECDEC_DECLARE(avx512)
SPECDEC_DECLARE(avx512_vnni)
#endif
#undef SPECDEC_DECLARE

namespace {

struct Variant {
  bool supported;
  const Kernels<float>& (*wide)();
  const Kernels<Bf16>& (*narrow)();
};

#if defined(__x86_64__)
// Returns whether the CPU has 256-bit VNNI instructions without AVX-512 (CPUID leaf 7, subleaf 1, EAX bit 4).
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}
#endif

// Fills `out` with all variants, best first.
void list_variants(Variant out[kInstructionSets]) {
  int n = 0;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"),
             avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  out[n++] = {avx512 && __builtin_cpu_supports("avx512vnni"), avx512_vnni::kernels_f32, avx512_vnni::kernels_bf16};
  out[n++] = {avx512, avx512::kernels_f32, avx512::kernels_bf16};
  out[n++] = {avx2 && has_avx_vnni(), avx_vnni::kernels_f32, avx_vnni::kernels_bf16};
  out[n++] = {avx2, avx2::kernels_f32, avx2::kernels_bf16};
#endif
  for (; n < kInstructionSets; ++n) out[n] = {false, baseline::kernels_f32, baseline::kernels_bf16};
  out[kInstructionSets - 1].supported = true;
}

}  // namespace

template <>
int available(const Kernels<float>* out[kInstructionSets]) {
  Variant all[kInstructionSets];
  list_variants(all);
  int n = 0;
  for (const Variant& variant : all) {
    if (variant.supported) out[n++] = &variant.wide();
  }
  return n;
}

template <>
int available(const Kernels<Bf16>* out[kInstructionSets]) {
  Variant all[kInstructionSets];
  list_variants(all);
  int n = 0;
  for (const Variant& variant : all) {
    if (variant.supported) out[n++] = &variant.narrow();
  }
  return n;
}

namespace {

template <class T>
const Kernels<T>& choose() {
  const Kernels<T>* all[kInstructionSets];
  const int n = available<T>(all);
  const char* wanted = std::getenv("SPECDEC_KERNELS");
  for (int i = 0; wanted && i < n; ++i) {
    if (std::strcmp(all[i]->name, wanted) == 0) return *all[i];
  }
  return *all[0];
}

}  // namespace

template <>
const Kernels<float>& kernels() {
  static const Kernels<float>& chosen = choose<float>();
  return chosen;
}
template <>
const Kernels<Bf16>& kernels() {
  static const Kernels<Bf16>& chosen = choose<Bf16>();
  return chosen;
}

}  // namespace specdec::kernels::cpu
