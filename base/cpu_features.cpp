#include "base/cpu_features.h"

namespace specdec {

std::string CpuFeatures::text() const {
  std::string out;
  const auto add = [&](bool has, const char* name) {
    if (has) out += (out.empty() ? "" : ", ") + std::string(name);
  };
  add(avx2, "AVX2"), add(avx512, "AVX-512"), add(avx512_bf16, "AVX-512 BF16"), add(amx_bf16, "AMX BF16");
  return out.empty() ? "none of AVX2, AVX-512 and AMX" : out;
}

CpuFeatures cpu_features() {
  CpuFeatures out;
#if defined(__x86_64__)
  __builtin_cpu_init();
  out.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  out.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  out.avx512_bf16 = out.avx512 && __builtin_cpu_supports("avx512bf16");
  out.amx_bf16 = __builtin_cpu_supports("amx-bf16");
#endif
  return out;
}

}  // namespace specdec
