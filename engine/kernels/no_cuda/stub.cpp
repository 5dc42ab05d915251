// Replaces the CUDA library when specdec is built with SPECDEC_CUDA=OFF.
#include "base/error.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels {

namespace {
constexpr const char* kReason = "this build has no CUDA support (SPECDEC_CUDA=OFF)";
}

const CudaLibrary& cuda_library() { throw Error(ErrorKind::kDevice, kReason); }

int cuda_device_count(std::string* reason) {
  if (reason) *reason = kReason;
  return 0;
}

namespace cuda {
void rms_norm(const at::Tensor&, const at::Tensor&, double, const at::Tensor&) { cuda_library(); }
void rope(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) { cuda_library(); }
void silu_mul(const at::Tensor&, const at::Tensor&, const at::Tensor&) { cuda_library(); }
void linear(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) { cuda_library(); }
void dequantise(const at::Tensor&, const at::Tensor&) { cuda_library(); }
}  // namespace cuda

}  // namespace specdec::kernels
