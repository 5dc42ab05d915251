// The functions of libspecdec_cuda.so done by fibers on a CPU, so that code which calls them runs without a GPU. All
// memory is the host's.
#pragma once

#include "engine/kernels/cuda.h"

namespace specdec::fibers {

const kernels::CudaLibrary& fiber_library();

}  // namespace specdec::fibers
