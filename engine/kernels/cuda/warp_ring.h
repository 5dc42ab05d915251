// How the weights of a product reach a warp: by copies to shared memory that are begun several steps before their use.
// So how much memory is on its way to a multiprocessor does not depend on how many registers the products leave, or on
// what the compiler makes of a loop (tests/kernels/bytes_in_flight.py).
#pragma once

#include <ptx.h>

#include <cstdint>

namespace specdec::kernels::cuda {

constexpr int kProductWarps = 8;  // of a block
// Shared memory of a block: what every GPU gives without being asked for more. Two or three blocks share a
// multiprocessor.
constexpr int kRingBytes = 48 * 1024;

// A ring of stages in shared memory for each warp of a block. All but one are being filled while that one is read.
template <int kStageBytes>
class WarpRing {
 public:
  static constexpr int kStages = kRingBytes / kProductWarps / kStageBytes;
  static_assert(kStages >= 3 && kStageBytes % 16 == 0);

  __device__ WarpRing()
      : stages_(static_cast<uint8_t*>(shared_memory()) + static_cast<int>(threadIdx.x) / 32 * kStages * kStageBytes) {}

  // Calls begin(stage) kStages - 1 times, for as many stages.
  template <class F>
  __device__ void start(const F& begin) {
#pragma unroll 1
    for (int i = 0; i + 1 < kStages; ++i) fill(begin);
  }
  // Waits for the oldest stage, and calls begin(stage) for the one that was read before it. begin() begins to copy.
  // With kShared, lanes read what others have copied.
  template <bool kShared, class F>
  __device__ const uint8_t* next(const F& begin) {
    wait_for_copies<kStages - 2>();
    if constexpr (kShared) __syncwarp();
    const uint8_t* stage = stages_ + read_;
    read_ = after(read_);
    fill(begin);
    return stage;
  }
  // To be called before the memory is used for something else, and followed by a barrier.
  __device__ void finish() { wait_for_copies<0>(); }

 private:
  __device__ static int after(int at) { return at == (kStages - 1) * kStageBytes ? 0 : at + kStageBytes; }
  template <class F>
  __device__ void fill(const F& begin) {
    begin(stages_ + filled_);
    end_group_of_copies();
    filled_ = after(filled_);
  }

  uint8_t* stages_;
  int read_ = 0, filled_ = 0;
};

}  // namespace specdec::kernels::cuda
