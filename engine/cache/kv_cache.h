// The KV cache of one sequence: a table of blocks of a BlockPool, which hold the keys and values of all layers.
// Sequences with the same prefix share blocks; a shared block is copied before it is written to.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/config/config.h"

namespace specdec::model {

class KvCache {
 public:
  // Uses a pool of its own, which grows as needed.
  KvCache(const DecoderConfig& config, at::Device device, at::ScalarType dtype);
  explicit KvCache(std::shared_ptr<BlockPool> pool);
  KvCache(KvCache&& other) noexcept = default;
  ~KvCache();

  int64_t length() const { return length_; }
  int64_t capacity() const { return static_cast<int64_t>(table_.size()) * BlockPool::kTokens; }
  at::ScalarType dtype() const { return pool_->dtype(); }
  // Returns [G, length, D], a copy or a view.
  at::Tensor keys(int64_t layer) const { return pool_->gather(table_, layer, 0, length_); }
  at::Tensor values(int64_t layer) const { return pool_->gather(table_, layer, 1, length_); }
  // Returns the addresses of the table's blocks on the cache's device, as attention reads them; each block is [layers,
  // 2, G, kTokens, D].
  std::span<void* const> blocks() const { return addresses_; }

  // Drops all tokens from `length` on and releases their blocks. Throws Error(kInternal) if length > length().
  void truncate(int64_t length);
  // Drops all tokens but the first `length` and those at the indices `places`. The indices ascend, are at least
  // `length` and below length(); otherwise throws Error(kInternal).
  void keep(int64_t length, std::span<const int64_t> places);
  // Returns a cache of the first `length` tokens, which shares their blocks and has the same tenant and rope scaling.
  // Throws Error(kInternal) if length > length().
  KvCache prefix(int64_t length) const;
  // Makes room for `capacity` tokens in total. The slots from length() on then lie in blocks that no other cache holds.
  // Throws as BlockPool::take() does.
  void reserve(int64_t capacity);
  // Returns the maximum number of blocks that a pass over `count` tokens takes from the pool. `anew`: the pass may
  // recompute the whole text (rescaled_pass.h).
  int64_t blocks_missing(int64_t count, bool anew = false) const;
  // Writes rows at [length, length + T) of one layer. Returns [G, length + T, D] of keys and values, copies or views.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);  // [T, G, D] each
  void commit(int64_t num_tokens);  // call after the last layer: adds num_tokens to length()

  // Fills an empty cache with the published whole blocks of this tenant that hold the beginning of `tokens`. From then
  // on the cache records its tokens, so that publish() can share them within the tenant. Returns length(). Does nothing
  // in a pool without a budget.
  int64_t adopt(std::span<const int32_t> tokens, uint64_t tenant);
  // Publishes the full blocks of the cache, so that adopt() of other caches finds them. Must be called between passes.
  void publish();

  // Only needed if the rope scaling depends on the length of the text (rope.h). rope_rescale() is the scaling of the
  // cached content. record() stores the tokens at [length, length + T), so that the content can be recomputed. If
  // `positions` is empty, each position equals its slot.
  int64_t rope_rescale() const { return rope_rescale_; }
  void set_rope_rescale(int64_t rope_rescale);  // throws Error(kInternal) unless the cache is empty or has this scaling
  bool records() const { return tenant_.has_value(); }
  void record(std::span<const int32_t> tokens, std::span<const int64_t> positions);
  std::span<const int32_t> tokens() const { return std::span(tokens_).first(static_cast<size_t>(length_)); }
  std::span<const int64_t> positions() const { return std::span(positions_).first(static_cast<size_t>(length_)); }
  int64_t bytes() const { return static_cast<int64_t>(table_.size()) * pool_->block_bytes(); }
  static int64_t bytes_per_token(const DecoderConfig& config, at::ScalarType dtype);

 private:
  PrefixKey key_of(int64_t block) const;   // `block` is an index into the table
  void set(int64_t index, int32_t block);  // index <= table_.size()
  // Makes a block of the table writable and keeps its first `num_slots` slots. If the block is shared, replaces it by a
  // copy of these slots. If it is published, unpublishes it.
  void own(int64_t index, int64_t num_slots);
  std::shared_ptr<BlockPool> pool_;
  std::vector<int32_t> table_;
  std::vector<void*> addresses_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> positions_;
  std::optional<uint64_t> tenant_;
  // published_ is the number of blocks at the beginning of the table that are published.
  int64_t length_ = 0, rope_rescale_ = 0, published_ = 0;
};

}  // namespace specdec::model
