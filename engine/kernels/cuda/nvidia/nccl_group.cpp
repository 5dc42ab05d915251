// Creates the NCCL process group of several GPUs. In a build without NCCL's header (SPECDEC_NCCL undefined), the
// function reports that.
#include <cstdio>

#include "engine/kernels/cuda/launch.h"

#ifdef SPECDEC_NCCL
#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace specdec::kernels::cuda {

void* nccl_group([[maybe_unused]] void* store, [[maybe_unused]] int32_t rank, [[maybe_unused]] int32_t ranks,
                 [[maybe_unused]] int64_t timeout_ms, char* error, int64_t error_bytes) {
  const auto room = static_cast<size_t>(error_bytes);
#ifdef SPECDEC_NCCL
  try {
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    const auto shared =
        c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(static_cast<c10d::Store*>(store));
    c10::intrusive_ptr<c10d::Backend> group = c10::make_intrusive<c10d::ProcessGroupNCCL>(shared, rank, ranks, options);
    return group.release();
  } catch (const std::exception& e) {
    std::snprintf(error, room, "%s", e.what());
  }
#else
  std::snprintf(error, room, "this build has no NCCL: nccl.h was not found when it was compiled");
#endif
  return nullptr;
}

}  // namespace specdec::kernels::cuda
