// The door to CUDA. What needs libtorch_cuda is one shared library that is loaded at the first use of a CUDA device, so
// that a process that runs on the CPU starts without the CUDA half of LibTorch. Built with SPECDEC_CUDA=OFF every call
// says so.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::kernels {

enum class CudaDtype : int32_t { kFloat, kBFloat16, kHalf };

// What the shared library offers, as plain C types. Pointers are device memory; launches go to the current stream of
// `device`. The launches return a CUDA error code (0 = launched).
struct CudaLibrary {
  int32_t version;            // kCudaLibraryVersion
  int32_t (*device_count)();  // 0 when there is no driver or no device
  int32_t (*memory)(int32_t device, int64_t* free_bytes, int64_t* total_bytes);
  const char* (*error_text)(int32_t code);
  int32_t (*nccl_version)();  // e.g. 22809
  // out[r, :] = round(x[r, :] / sqrt(mean(x²) + eps)) · weight; x, out [rows, n].
  int32_t (*rms_norm)(CudaDtype dtype, int32_t device, const void* x, const void* weight, float eps, int64_t rows,
                      int64_t n, void* out);
  int32_t (*silu_mul)(CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n, void* out);
  // x, out [rows, heads, d]; cos, sin [rows, d / 2] fp32.
  int32_t (*rope)(CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin, int64_t rows,
                  int64_t heads, int64_t d, void* out);
};
inline constexpr int32_t kCudaLibraryVersion = 1;

// Loads on first use. Throws Error(kDevice) with the reason: not built in, LibTorch without CUDA, library missing.
const CudaLibrary& cuda_library();

// Devices that can be used. 0: `reason`, if given, says why (not built in, no driver, …). Looks for a driver first, so
// it costs nothing without one. Call it before other ATen work: ATen asks once whether there is a CUDA half.
int cuda_device_count(std::string* reason = nullptr);

}  // namespace specdec::kernels
