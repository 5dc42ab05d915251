// The interface to CUDA. Everything that needs libtorch_cuda is in one shared library, libspecdec_cuda.so, which is
// loaded at the first use of a CUDA device. A process that runs on the CPU therefore starts without the CUDA half of
// LibTorch. In a build with SPECDEC_CUDA=OFF, every call reports that CUDA is not built in.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::kernels {

enum class CudaDtype : int32_t { kFloat, kBFloat16, kHalf };

// The functions of the shared library, with plain C types. Data pointers point to device memory. Launches go to the
// current stream of `device` and return a CUDA error code; 0 means launched, and kCudaException that a library threw.
struct CudaLibrary {
  int32_t version;            // must equal kCudaLibraryVersion
  int32_t (*device_count)();  // 0 if there is no driver or no device
  int32_t (*memory)(int32_t device, int64_t* free_bytes, int64_t* total_bytes);
  const char* (*error_text)(int32_t code);  // of kCudaException, the last one's message in this thread
  int32_t (*synchronize)(int32_t device);   // waits until the current stream is idle
  // Computes out[r, :] = round(x[r, :] / sqrt(mean(x²) + eps)) · weight, where round() rounds to `dtype`; x, out [rows,
  // n].
  int32_t (*rms_norm)(CudaDtype dtype, int32_t device, const void* x, const void* weight, float eps, int64_t rows,
                      int64_t n, void* out);
  int32_t (*silu_mul)(CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n, void* out);
  // x, out [rows, heads, d]; cos, sin [rows, d / 2] fp32.
  int32_t (*rope)(CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin, int64_t rows,
                  int64_t heads, int64_t d, void* out);
  // Makes the NCCL group of `ranks` processes, which find each other in `store`, a c10d::Store*. Returns a
  // c10d::Backend* that the caller owns, or null with the reason in error[error_bytes].
  void* (*nccl_group)(void* store, int32_t rank, int32_t ranks, int64_t timeout_ms, char* error, int64_t error_bytes);
};
inline constexpr int32_t kCudaLibraryVersion = 4;
inline constexpr int32_t kCudaException = -1;

// Returns the library, which is loaded at the first call. Throws Error(kDevice) if CUDA is not built in, LibTorch has
// no CUDA half, or the library is missing or of another version.
const CudaLibrary& cuda_library();

// Returns the number of usable CUDA devices. If it is 0, `reason` (if given) is set to the cause (not built in, no
// driver, …). Checks for a driver first, so that nothing is loaded without one. Call it before any other ATen work,
// because ATen checks only once whether its CUDA half is loaded.
int cuda_device_count(std::string* reason = nullptr);

}  // namespace specdec::kernels
