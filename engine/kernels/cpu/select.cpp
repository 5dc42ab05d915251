// Chooses the instruction set of the CPU kernels, once per process.
#include <cstdlib>
#include <cstring>

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
SPECDEC_DECLARE(avx512)
#endif
#undef SPECDEC_DECLARE

template <>
int available(const Kernels<float>* out[3]) {
  int n = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq"))
    out[n++] = &avx512::kernels_f32();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = &avx2::kernels_f32();
#endif
  out[n++] = &baseline::kernels_f32();
  return n;
}

template <>
int available(const Kernels<Bf16>* out[3]) {
  const Kernels<float>* same[3];
  const int n = available<float>(same);
  for (int i = 0; i < n; ++i) {
    out[i] = &baseline::kernels_bf16();
#if defined(__x86_64__)
    if (same[i] == &avx512::kernels_f32()) out[i] = &avx512::kernels_bf16();
    if (same[i] == &avx2::kernels_f32()) out[i] = &avx2::kernels_bf16();
#endif
  }
  return n;
}

namespace {

template <class T>
const Kernels<T>& choose() {
  const Kernels<T>* all[3];
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
