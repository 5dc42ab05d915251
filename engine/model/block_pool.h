// Keys and values of one model's sequences in blocks of a fixed number of tokens, all layers of a block together.
// Sequences hold blocks through their tables (kv_cache.h), several may hold one. One thread at a time.
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
  static constexpr int64_t kTokens = kernels::cpu::kBlockSlots;  // of a block
  static int64_t block_bytes(const DecoderConfig& config, at::ScalarType dtype);

  // budget_bytes: taken at once, as many blocks as fit, and what was published stays until its memory is needed. 0:
  // memory is taken as needed, and nothing is published. Throws Error(kConfig) for a budget below one block,
  // Error(kDevice) where there is no such memory.
  BlockPool(const DecoderConfig& config, at::Device device, at::ScalarType dtype, int64_t budget_bytes = 0);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  at::ScalarType dtype() const { return dtype_; }
  bool bounded() const { return max_blocks_ != 0; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t available() const;  // blocks that take() can give
  int64_t held() const { return num_blocks() - static_cast<int64_t>(free_.size()) - num_kept_; }
  int64_t kept() const { return num_kept_; }  // published, without holders

  // A block with one holder and undefined content: a free one, else the published one that nobody has held for longest.
  // Throws Error(kDevice) if all are held.
  int32_t take();
  void hold(int32_t block);
  void release(int32_t block);  // a published block without holders is kept, last released last reused
  int32_t holders(int32_t block) const { return at(block).holders; }

  // A published block with these tokens behind this key, with one more holder; -1: none.
  int32_t adopt(const PrefixKey& key, std::span<const int32_t> tokens);
  // Tokens of the published blocks that hold this text from its beginning.
  int64_t find(uint64_t tenant, int64_t rope_rescale, std::span<const int32_t> tokens) const;
  // From now on the block is found by its tokens (kTokens). Returns the block that is: where one was published already
  // its holder holds that.
  int32_t publish(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens);
  void unpublish(int32_t block);                                         // before it is written to
  uint64_t serial(int32_t block) const { return index_.serial(block); }  // 0: not published

  // The block's [layers, 2 (keys, values), G, kTokens, D]; null outside of host memory.
  void* address(int32_t block) const { return at(block).address; }
  void write(int32_t block, int64_t slot, int64_t layer, int64_t side,
             const at::Tensor& rows);  // [T, G, D], T <= kTokens - slot
  void copy(int32_t from, int64_t from_slot, int32_t to, int64_t to_slot,
            int64_t count);  // slots, all layers, another block or apart
  at::Tensor gather(std::span<const int32_t> blocks, int64_t layer, int64_t side,
                    int64_t length) const;  // the first slots: [G, length, D]

 private:
  struct Block {
    void* address = nullptr;
    int32_t holders = 0, slab = 0;
    int32_t older = -1, newer = -1;  // neighbours among the kept ones
  };
  struct Slab {
    int32_t first;      // block
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
  std::vector<int64_t> shape_;  // of a block
  int64_t block_bytes_, max_blocks_ = 0, num_kept_ = 0;
  std::vector<Slab> slabs_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  int32_t oldest_ = -1, newest_ = -1;
  PrefixIndex index_{kTokens};
};

}  // namespace specdec::model
