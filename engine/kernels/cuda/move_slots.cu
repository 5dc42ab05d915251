// Moves the keys and values of accepted tokens to other slots of their sequence, to close the gaps left by rejected
// nodes.
#include "engine/kernels/cuda/device.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// Each thread moves one number of every token, token by token in order, because a token may be written to the slot that
// an earlier token was read from.
__global__ void __launch_bounds__(kThreads) move_numbers(SlotMoves moves) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= static_cast<int64_t>(moves.planes) * moves.d) return;
  const int64_t plane = at / moves.d * kPagedSlots * moves.d, number = at % moves.d;
  const auto place = [&](uint64_t block, int32_t slot) {
    return reinterpret_cast<uint16_t*>(block) + plane + static_cast<int64_t>(slot) * moves.d + number;
  };
  for (int32_t i = 0; i < moves.count; ++i)
    *place(moves.to_block[i], moves.to[i]) = *place(moves.from_block[i], moves.from[i]);
}

}  // namespace

int launch_move_slots(const SlotMoves& moves, Stream stream) {
  if (moves.count == 0) return 0;
  if (moves.count > SlotMoves::kMost) return static_cast<int>(cudaErrorInvalidValue);
  const int64_t numbers = static_cast<int64_t>(moves.planes) * moves.d;
  return launch(stream, dim3(static_cast<unsigned>((numbers + kThreads - 1) / kThreads)), kThreads, 0, move_numbers,
                moves);
}

}  // namespace specdec::kernels::cuda
