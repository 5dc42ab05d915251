// Runs CUDA kernels on the CPU, so that tests can check them on machines without a GPU. The kernels' own source is
// compiled as C++ with the headers of tests/kernels/fibers/cuda instead of CUDA's. Every thread of a block is a fiber:
// it runs until it has to wait for other threads, at a barrier, a warp operation or an atomic operation. A seed decides
// randomly which fiber and which block runs next, so a kernel that depends on the order gives different results under
// different seeds.
//
// This finds wrong indices, missing and divergent barriers, reads of unwritten memory, accesses outside of buffers, and
// launches that no GPU accepts. It does not find wrong order of memory accesses between two barriers, and does not
// model register limits, concurrent streams, graphs or speed.
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

// A barrier or a warp operation in a kernel's source, where threads wait for each other.
struct Site {
  const char* file = "";  // a string literal, which is never freed
  unsigned line = 0;
  bool operator==(const Site& other) const {
    return line == other.line && (file == other.file || std::string_view(file) == other.file);
  }
};

// Thrown by launch() if the kernel breaks a rule of CUDA: some threads never reach a barrier, a warp operation names
// lanes that do not exist, a block is too large, or the launch is on a wrong stream.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Settings of the following launches, and a record of the launches so far. They are global to the process; tests launch
// from one thread only.
struct Settings {
  uint64_t seed = 1;
  Site without;                // a barrier to leave out, as if it were missing in the source; none if the line is 0
  std::vector<Site> barriers;  // each barrier that threads have reached since the list was cleared, once
  int64_t launches = 0;
};
Settings& settings();

struct LaunchShape {
  Size3 grid, block;
  size_t shared_bytes = 0;  // size of the dynamic shared memory
};
// Runs `body` once for every thread of every block, as a kernel. Throws KernelFault, or an exception of `body`.
void launch(const LaunchShape& shape, const std::function<void()>& body);

// The stream that tests pass to the functions that launch kernels. cudaLaunchKernelEx() throws KernelFault for any
// other stream, such as the default stream. On a GPU, a kernel on another stream would not wait for the kernels before
// it, and would be missing in captured graphs.
CUstream_st* stream();

// The headers in cuda/ implement CUDA's names (threadIdx, __syncthreads(), …) with the following functions, which may
// be called only inside a kernel.

const Index3& thread_index();
const Index3& block_index();
const Size3& block_size();
const Size3& grid_size();
void* dynamic_shared();
void block_barrier(std::source_location where);
// In half of the calls lets another fiber run first, so that its operations come between two of the running fiber.
void may_yield();

using LaneValues = std::array<uint64_t, 32>;
// Waits until all lanes of `mask` have called exchange() with this mask from the same place. Returns the lanes' values.
const LaneValues& exchange(unsigned mask, uint64_t value, std::source_location where);
unsigned lane();
[[noreturn]] void fault(const std::string& message);

}  // namespace specdec::fibers
