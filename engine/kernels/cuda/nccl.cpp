// Links NCCL and returns its version; gradients over several GPUs go through NCCL.
#include <nccl.h>

#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

int32_t nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

}  // namespace specdec::kernels::cuda
