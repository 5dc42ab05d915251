// Stores the keys and values of one model's sequences in blocks of a fixed number of tokens. A block holds all layers
// of its tokens. Sequences refer to blocks through their tables (kv_cache.h), and several sequences may share a block.
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/prefix_index.h"
#include "engine/config/config.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/cuda.h"

namespace specdec::model {

class BlockPool {
 public:
  static constexpr int64_t kTokens = kernels::cpu::kBlockSlots;  // tokens per block
  static int64_t block_bytes(const DecoderConfig& config, at::ScalarType dtype);

  // With budget_bytes > 0, allocates as many blocks as fit at once, and keeps published blocks in the prefix cache
  // until their memory is needed. With budget_bytes = 0, allocates as needed, and no block is published. Throws
  // Error(kConfig) if the budget is less than one block, Error(kDevice) if the memory cannot be allocated.
  BlockPool(const DecoderConfig& config, at::Device device, at::ScalarType dtype, int64_t budget_bytes = 0);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  at::ScalarType dtype() const { return dtype_; }
  bool bounded() const { return max_blocks_ != 0; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t available() const;  // number of blocks that take() can still return
  int64_t held() const { return num_blocks() - static_cast<int64_t>(free_.size()) - num_kept_; }
  int64_t kept() const { return num_kept_; }  // blocks that no sequence holds, kept because adopt() may find them

  // Returns a block whose only holder is the caller and whose content is undefined. Takes a free block. If there is
  // none, takes the published block without holders that was released longest ago. Throws Error(kDevice) if all blocks
  // are held.
  int32_t take();
  void hold(int32_t block);
  // Removes a holder. A published block (one that adopt() finds) stays in the prefix cache when it has no holder.
  // take() reuses such blocks, least recently released first. Throws Error(kInternal) if the block has no holder.
  void release(int32_t block);
  int32_t holders(int32_t block) const { return at(block).holders; }

  // Finds the published block with this key and these tokens, and adds a holder. Returns the block, or −1 if there is
  // none.
  int32_t adopt(const PrefixKey& key, std::span<const int32_t> tokens);
  // Returns how many tokens at the beginning of `tokens` are in this tenant's published blocks under this rope scaling.
  int64_t find(uint64_t tenant, int64_t rope_rescale, std::span<const int32_t> tokens) const;
  // Publishes a full block, so that adopt() finds it by its kTokens tokens. If an equal block is already published,
  // releases `block` and holds the published block instead. Returns the block to use from now on.
  int32_t publish(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens);
  void unpublish(int32_t block);  // adopt() no longer finds the block; call before writing to it
  uint64_t serial(int32_t block) const { return index_.serial(block); }  // 0: the block is not published

  // Returns the address, on the pool's device, of the block's memory [layers, 2 (keys, values), G, kTokens, D].
  void* address(int32_t block) const { return at(block).address; }
  // Writes rows [T, G, D] of one layer's keys (side 0) or values (side 1) from `slot` on, where T <= kTokens - slot.
  void write(int32_t block, int64_t slot, int64_t layer, int64_t side, const at::Tensor& rows);
  // Copies `count` slots of all layers to another block, or within one block if the two ranges do not overlap.
  void copy(int32_t from, int64_t from_slot, int32_t to, int64_t to_slot, int64_t count);
  // Copies one slot, in all layers, to the same or an earlier position of the sequence. A list of moves is carried out
  // in its order, in which the source positions ascend, and so do the destination positions.
  struct Move {
    int32_t from, to;  // blocks
    int32_t from_slot, to_slot;
  };
  void move(std::span<const Move> moves);
  // Converts `moves`, at most kernels::SlotMoves::kMost, to the form that the kernel move_slots() reads.
  kernels::SlotMoves slot_moves(std::span<const Move> moves) const;
  // Returns the first `length` slots of these blocks: [G, length, D].
  at::Tensor gather(std::span<const int32_t> blocks, int64_t layer, int64_t side, int64_t length) const;

 private:
  struct Block {
    void* address = nullptr;
    int32_t holders = 0, slab = 0;
    int32_t older = -1, newer = -1;  // neighbours in the list of published blocks without holders
  };
  struct Slab {
    int32_t first;      // number of the first block in this allocation
    at::Tensor memory;  // [blocks, layers, 2, G, kTokens, D]
  };
  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  at::Tensor slots(int32_t block, int64_t first, int64_t count) const;  // [layers, 2, G, count, D]
  void grow(int64_t count);
  void keep(int32_t block);
  void unkeep(int32_t block);

  at::Device device_;
  at::ScalarType dtype_;
  std::vector<int64_t> shape_;  // shape of one block
  int64_t block_bytes_, max_blocks_ = 0, num_kept_ = 0;
  std::vector<Slab> slabs_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  int32_t oldest_ = -1, newest_ = -1;
  PrefixIndex index_{kTokens};
};

}  // namespace specdec::model
