// Computes the addresses of keys and values in the paged KV cache.
#pragma once

#include <cstdint>

#include "engine/kernels/cuda.h"

namespace specdec::kernels::cuda {

// Returns the address of the rows [kPagedSlots, d] of one block with a layer's keys (side 0) or values (side 1) of a kv
// head.
inline __device__ uint16_t* side_of(const PagedPass& pass, int64_t layer, int64_t side, int64_t kv_head, int64_t table,
                                    int64_t block) {
  return reinterpret_cast<uint16_t*>(pass.blocks[table + block]) +
         ((layer * 2 + side) * pass.kv_heads + kv_head) * kPagedSlots * pass.d;
}

}  // namespace specdec::kernels::cuda
