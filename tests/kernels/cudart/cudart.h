// Stands in for the CUDA runtime (libcudart) in tests of engine/kernels/cuda/library.cpp, which no machine without a
// GPU runs otherwise. It computes nothing: it notes on which stream each piece of work was started, and refuses what
// CUDA refuses while a stream is being captured, with CUDA's codes. It has two devices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::cudart {

// A kernel (by the name in its symbol), "copy" or a launch of a graph, which is followed by the graph's own work.
struct Work {
  std::string name;
  cudaStream_t stream = nullptr;
  int device = 0;
  bool early = false;  // the kernel may start before the previous one has ended
};

// The work that devices were given since the list was cleared. Work of a stream that is captured goes to its graph.
std::vector<Work>& started();
// The work that the last capture which ended has collected.
const std::vector<Work>& captured();

// Makes the next call of a function fail with a code.
void refuse(const std::string& function, cudaError_t code);

// The number of captures that are under way, and of graphs, executable or not, that exist.
int64_t captures();
int64_t graphs();

}  // namespace specdec::cudart
