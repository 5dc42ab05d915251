// Stores the keys and values of one model's sequences in blocks of a fixed number of tokens; a block holds all layers.
// Sequences hold blocks through their tables (kv_cache.h), and several may hold the same one. Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/cpu/cpu.h"
#include "engine/model/config.h"
#include "engine/model/prefix_index.h"

namespace specdec::model {

class BlockPool {
 public:
  static constexpr int64_t kTokens = kernels::cpu::kBlockSlots;  // tokens per block
  static int64_t block_bytes(const DecoderConfig& config, at::ScalarType dtype);

  // With a budget, allocates as many blocks as fit at once and keeps published blocks until their memory is needed.
  // With budget_bytes 0, allocates as needed and publishes nothing. Throws Error(kConfig) if the budget is below one
  // block, Error(kDevice) if the memory cannot be allocated.
  BlockPool(const DecoderConfig& config, at::Device device, at::ScalarType dtype, int64_t budget_bytes = 0);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  at::ScalarType dtype() const { return dtype_; }
  bool bounded() const { return max_blocks_ != 0; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t available() const;  // number of blocks that take() can give
  int64_t held() const { return num_blocks() - static_cast<int64_t>(free_.size()) - num_kept_; }
  int64_t kept() const { return num_kept_; }  // published blocks without holders

  // Returns a block with one holder and undefined content: a free one, else the kept one that was released longest ago.
  // Throws Error(kDevice) if all are held.
  int32_t take();
  void hold(int32_t block);
  // A published block that loses its last holder is kept; the longest kept is reused first.
  void release(int32_t block);
  int32_t holders(int32_t block) const { return at(block).holders; }

  // Adds a holder to the published block with these tokens after this key and returns it, or −1 if there is none.
  int32_t adopt(const PrefixKey& key, std::span<const int32_t> tokens);
  // Returns how many of these tokens, from the beginning, published blocks hold.
  int64_t find(uint64_t tenant, int64_t rope_rescale, std::span<const int32_t> tokens) const;
  // Makes a full block findable by its tokens (kTokens of them). If an equal block was published before, its holder
  // switches to that one. Returns the block to use.
  int32_t publish(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens);
  void unpublish(int32_t block);                                         // call before writing to the block
  uint64_t serial(int32_t block) const { return index_.serial(block); }  // 0: not published

  // The block's [layers, 2 (keys, values), G, kTokens, D]; null if it is not in host memory.
  void* address(int32_t block) const { return at(block).address; }
  // Writes rows [T, G, D] from `slot` on, where T <= kTokens - slot.
  void write(int32_t block, int64_t slot, int64_t layer, int64_t side, const at::Tensor& rows);
  // Copies slots of all layers to another block, or within one if the ranges do not overlap.
  void copy(int32_t from, int64_t from_slot, int32_t to, int64_t to_slot, int64_t count);
  // Returns the first `length` slots of these blocks: [G, length, D].
  at::Tensor gather(std::span<const int32_t> blocks, int64_t layer, int64_t side, int64_t length) const;

 private:
  struct Block {
    void* address = nullptr;
    int32_t holders = 0, slab = 0;
    int32_t older = -1, newer = -1;  // neighbours in the list of kept blocks
  };
  struct Slab {
    int32_t first;      // first block
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
  std::vector<int64_t> shape_;  // of one block
  int64_t block_bytes_, max_blocks_ = 0, num_kept_ = 0;
  std::vector<Slab> slabs_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  int32_t oldest_ = -1, newest_ = -1;
  PrefixIndex index_{kTokens};
};

}  // namespace specdec::model
