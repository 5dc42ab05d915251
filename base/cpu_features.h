// The instruction sets that this machine's CPU offers for computing.
#pragma once

#include <string>

namespace specdec {

struct CpuFeatures {
  // avx512 means the subsets F, BW, DQ and VL, which LibTorch's and our own kernels need together.
  bool avx2 = false, avx512 = false;
  // Whether the CPU has instructions that multiply bf16 numbers at least as fast as fp32 numbers. On a CPU without such
  // instructions, LibTorch multiplies 16-bit matrices many times more slowly than fp32 matrices.
  bool avx512_bf16 = false, amx_bf16 = false;
  bool multiplies_bf16() const { return avx512_bf16 || amx_bf16; }
  std::string text() const;  // such as "AVX2, AVX-512, AVX-512 BF16"; "none of AVX2, …" if all are false
};
// Returns the features of this machine that LibTorch may use to multiply 16-bit matrices. LibTorch multiplies them with
// oneDNN, which obeys the environment variable ONEDNN_MAX_CPU_ISA (or DNNL_MAX_CPU_ISA).
CpuFeatures cpu_features();
// Returns which of the features `found` oneDNN still uses if ONEDNN_MAX_CPU_ISA has the value `max_cpu_isa`, such as
// "AVX2" or "AVX512_CORE_BF16". An unknown value limits nothing, as in oneDNN. Source:
// https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
CpuFeatures limited_features(CpuFeatures found, std::string max_cpu_isa);

}  // namespace specdec
