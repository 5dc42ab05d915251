// Runs CUDA kernels on the CPU, so that tests can check them on machines without a GPU. The kernels' own source is
// compiled as C++ with the headers of tests/kernels/fibers/cuda instead of CUDA's. Every thread of a block is a fiber:
// it runs until it has to wait for other threads, at a barrier, a warp operation or an atomic operation. Which fiber
// runs next, and which block, is random under a seed. A kernel that depends on the order then gives other results under
// another seed.
//
// This shows wrong indices, missing and divergent barriers, reads of memory that nobody wrote, accesses outside of
// buffers and launches that no GPU accepts. It does not show the ordering of memory accesses within a barrier interval,
// limits of registers, work of several streams, graphs or speed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

struct CUstream_st;

namespace specdec::fibers {

// Three-dimensional indices and sizes, as CUDA's uint3 and dim3.
struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
struct Size3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Size3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr uint64_t volume() const { return static_cast<uint64_t>(x) * y * z; }
};

// A place in a kernel's source where threads wait for each other.
struct Site {
  const char* file = "";  // a literal
  unsigned line = 0;
  bool operator==(const Site& other) const {
    return line == other.line && (file == other.file || std::string_view(file) == other.file);
  }
};

// Thrown by launch() if the kernel breaks a rule of CUDA: threads that never meet at a barrier, a warp operation that
// names absent lanes, a block that is too large, a launch on a foreign stream.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Settings of the launches that follow, and what the launches so far have met. They belong to the whole process; tests
// run launches from one thread.
struct Settings {
  uint64_t seed = 1;
  Site without;                // this barrier is left out, as if it were missing in the source; none if the line is 0
  std::vector<Site> barriers;  // all barriers that threads reached since the list was cleared, each once
  int64_t launches = 0;
};
Settings& settings();

struct LaunchShape {
  Size3 grid, block;
  size_t shared_bytes = 0;  // of dynamic shared memory
};
// Runs `body` once for every thread of every block, as a kernel. Throws KernelFault, or what the kernel threw.
void launch(const LaunchShape& shape, const std::function<void()>& body);

// The stream that tests hand to the functions which launch kernels. cudaLaunchKernelEx() throws KernelFault for any
// other, such as the default stream: on a GPU the kernel would not wait for those before it, and no graph would have
// it.
CUstream_st* stream();

// The headers in cuda/ define CUDA's names (threadIdx, __syncthreads(), …) by the following functions. Only kernels
// call them.

const Index3& thread_index();
const Index3& block_index();
const Size3& block_size();
const Size3& grid_size();
void* dynamic_shared();
void block_barrier(std::source_location where);
// Lets another fiber run first in half of the cases, so that other threads' operations come between two of this one.
void may_yield();

using LaneValues = std::array<uint64_t, 32>;
// Waits until all lanes of `mask` have called this with the same mask at the same place. Returns the lanes' values.
const LaneValues& exchange(unsigned mask, uint64_t value, std::source_location where);
unsigned lane();
[[noreturn]] void fault(const std::string& message);

}  // namespace specdec::fibers
