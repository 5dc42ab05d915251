// The functions of libspecdec_cuda.so done by fibers on a CPU, so that code which calls them runs without a GPU. All
// memory is the host's.
#pragma once

#include "engine/kernels/cuda.h"

namespace specdec::fibers {

// A capture collects the calls with their arguments, and the graph makes them again. Copies are late, as on a GPU: they
// are done when the thread gives the library further work, or waits by synchronize().
const kernels::CudaLibrary& fiber_library();

struct GraphCounts {
  int64_t captured = 0, launched = 0, freed = 0;
  int64_t copies = 0;            // that were not captured
  int64_t products_at_rest = 0;  // of passes that nobody needed, as graphs or not
};
GraphCounts& graph_counts();

}  // namespace specdec::fibers
