// Computes the addresses of keys and values in the paged KV cache.
#pragma once

#include <ptx.h>

#include <cstdint>

#include "engine/kernels/cuda.h"

namespace specdec::kernels::cuda {

// Returns where the rows [kPagedSlots, d] of a layer's keys (side 0) or values (side 1) of a kv head begin in a block.
inline __device__ int64_t place_in_block(const PagedPass& pass, int64_t layer, int64_t side, int64_t kv_head) {
  return ((layer * 2 + side) * pass.kv_heads + kv_head) * kPagedSlots * pass.d;
}
// Returns the address of these rows in the block at an address.
inline __device__ uint16_t* side_in(const PagedPass& pass, int64_t layer, int64_t side, int64_t kv_head,
                                    uint64_t block) {
  return global_memory<uint16_t>(block) + place_in_block(pass, layer, side, kv_head);
}
// Returns their address in the block at a place of a sequence's table.
inline __device__ uint16_t* side_of(const PagedPass& pass, int64_t layer, int64_t side, int64_t kv_head, int64_t table,
                                    int64_t block) {
  return reinterpret_cast<uint16_t*>(pass.blocks[table + block]) + place_in_block(pass, layer, side, kv_head);
}

}  // namespace specdec::kernels::cuda
