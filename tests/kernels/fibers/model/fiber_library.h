// The functions of libspecdec_cuda.so with their kernels on fibers, so that code which calls them runs without a GPU.
// All memory is the host's.
#pragma once

#include "engine/kernels/cuda.h"

namespace specdec::fibers {

// A capture collects calls with their arguments; launching the graph makes these calls again. A copy runs late, as on a
// GPU: when the thread makes the next call that is not a copy, or calls synchronize().
const kernels::CudaLibrary& fiber_library();

struct GraphCounts {
  int64_t captured = 0, launched = 0, freed = 0;
  int64_t copies = 0;            // calls of copy() outside of captures
  int64_t products_at_rest = 0;  // products that were skipped, because all sequences of their pass had stopped
  int64_t wide_products = 0;     // calls of CudaLibrary::wide_product that were not refused
};
GraphCounts& graph_counts();

}  // namespace specdec::fibers
