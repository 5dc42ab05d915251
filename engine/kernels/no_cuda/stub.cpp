// Linked where the tree is built with SPECDEC_CUDA=OFF.
#include "base/error.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels {

const CudaLibrary& cuda_library() {
  throw Error(ErrorKind::kDevice, "this build has no CUDA support (SPECDEC_CUDA=OFF): use --device cpu");
}
int cuda_device_count() { return 0; }

namespace cuda {
void rms_norm(const at::Tensor&, const at::Tensor&, double, const at::Tensor&) { cuda_library(); }
void rope(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) { cuda_library(); }
void silu_mul(const at::Tensor&, const at::Tensor&, const at::Tensor&) { cuda_library(); }
}  // namespace cuda

}  // namespace specdec::kernels
