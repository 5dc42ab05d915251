// Keys and values of one sequence for every layer: a table of blocks of a pool, which sequences with the same beginning
// share. A block that others hold too is copied before it is written to.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/model/block_pool.h"
#include "engine/model/config.h"

namespace specdec::model {

class KvCache {
 public:
  KvCache(const DecoderConfig& config, at::Device device,
          at::ScalarType dtype);  // in a pool of its own, which grows as needed
  explicit KvCache(std::shared_ptr<BlockPool> pool);
  KvCache(KvCache&& other) noexcept = default;
  ~KvCache();

  int64_t length() const { return length_; }
  int64_t capacity() const { return static_cast<int64_t>(table_.size()) * BlockPool::kTokens; }
  at::ScalarType dtype() const { return pool_->dtype(); }
  at::Tensor keys(int64_t layer) const {
    return pool_->gather(table_, layer, 0, length_);
  }  // [G, length, D], a copy or a view
  at::Tensor values(int64_t layer) const { return pool_->gather(table_, layer, 1, length_); }
  // In host memory the table as attention reads it: of each block [layers, 2, G, kTokens, D].
  std::span<void* const> blocks() const { return addresses_; }

  void truncate(int64_t length);  // length <= length(); throws Error(kInternal) otherwise. Gives back what lies beyond
  // The first `length` tokens and, in this order, those at `places` in [length, length()), rising; throws likewise.
  void keep(int64_t length, std::span<const int64_t> places);
  // the first tokens, in the same blocks, with all that is known of them; throws likewise
  KvCache prefix(int64_t length) const;
  // Makes room for so many tokens, in blocks that nobody else holds from length() on. Throws as BlockPool::take().
  void reserve(int64_t capacity);
  // How many blocks a pass over `count` tokens takes at most; `anew`: one that may write the whole text anew
  // (rescaled_pass.h).
  int64_t blocks_missing(int64_t count, bool anew = false) const;
  // Writes rows at [length, length + T) of one layer and returns [G, length + T, D] of keys and values, copies or
  // views.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);  // [T, G, D] each
  void commit(int64_t num_tokens);  // after the last layer: length += num_tokens

  // An empty cache takes what published blocks hold of a text, whole blocks, and from then on records what it reads, to
  // publish() it for this tenant. Returns length(). Nothing is published in a pool without budget.
  int64_t adopt(std::span<const int32_t> tokens, uint64_t tenant);
  void publish();  // the blocks that are full now; between passes

  // For texts whose scaling depends on their length (rope.h): the scaling of the content, and the tokens at [length,
  // length + T), which are kept so that the content can be computed anew. No positions: they follow the slots.
  int64_t rope_rescale() const { return rope_rescale_; }
  void set_rope_rescale(int64_t rope_rescale);  // throws Error(kInternal) unless the cache is empty or has this one
  bool records() const { return tenant_.has_value(); }
  void record(std::span<const int32_t> tokens, std::span<const int64_t> positions);
  std::span<const int32_t> tokens() const { return std::span(tokens_).first(static_cast<size_t>(length_)); }
  std::span<const int64_t> positions() const { return std::span(positions_).first(static_cast<size_t>(length_)); }
  int64_t bytes() const { return static_cast<int64_t>(table_.size()) * pool_->block_bytes(); }
  static int64_t bytes_per_token(const DecoderConfig& config, at::ScalarType dtype);

 private:
  PrefixKey key_of(int64_t block) const;   // in the table
  void set(int64_t index, int32_t block);  // index at most table_.size()
  void own(int64_t index,
           int64_t num_slots);  // the block in the table is written to behind its first slots, which stay
  std::shared_ptr<BlockPool> pool_;
  std::vector<int32_t> table_;
  std::vector<void*> addresses_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> positions_;
  std::optional<uint64_t> tenant_;
  int64_t length_ = 0, rope_rescale_ = 0, published_ = 0;  // the first blocks of the table
};

}  // namespace specdec::model
