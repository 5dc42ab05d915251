#include "base/cpu_features.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace specdec {

std::string CpuFeatures::text() const {
  std::string out;
  const auto add = [&](bool has, const char* name) {
    if (has) out += (out.empty() ? "" : ", ") + std::string(name);
  };
  add(avx2, "AVX2"), add(avx512, "AVX-512"), add(avx512_bf16, "AVX-512 BF16"), add(amx_bf16, "AMX BF16");
  return out.empty() ? "none of AVX2, AVX-512 and AMX" : out;
}

CpuFeatures limited_features(CpuFeatures found, std::string isa) {
  std::transform(isa.begin(), isa.end(), isa.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto at_most = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), isa) != names.end();
  };
  const bool sse = at_most({"SSE41", "AVX"}), avx2 = sse || at_most({"AVX2", "AVX2_VNNI", "AVX2_VNNI_2"});
  const bool avx512 = avx2 || at_most({"AVX512_CORE", "AVX512_CORE_VNNI"});
  const bool bf16 = avx512 || at_most({"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"});
  if (sse) found.avx2 = false;
  if (avx2) found.avx512 = false;
  if (avx512) found.avx512_bf16 = false;
  if (bf16) found.amx_bf16 = false;
  return found;
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
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    if (const char* const limit = std::getenv(name)) return limited_features(out, limit);
  }
  return out;
}

}  // namespace specdec
