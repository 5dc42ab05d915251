// Maps tokens to cached blocks: finds the chain of full blocks that holds the longest prefix of a text. Used by
// BlockPool.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace specdec::model {

// The context of a block: its tenant, its rope scaling, and the block before it.
struct PrefixKey {
  uint64_t tenant = 0;       // a tenant finds only its own blocks
  int64_t rope_rescale = 0;  // KvCache::rope_rescale()
  uint64_t parent = 0;       // serial() of the preceding block; 0: this block begins the text
  bool operator==(const PrefixKey&) const = default;
};

class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t block_tokens) : block_tokens_(static_cast<size_t>(block_tokens)) {}
  void resize(size_t num_blocks);  // blocks are numbered from 0 to num_blocks − 1
  // Returns the block with this key and these tokens, or −1. Key and tokens are compared as well as the hash, so a hash
  // collision never gives a wrong block.
  int32_t find(const PrefixKey& key, std::span<const int32_t> tokens) const;
  // Adds a block; `tokens` must be a whole block. If another block has the same hash, does nothing, so the other block
  // stays in the index.
  void insert(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens);
  void erase(int32_t block);  // does nothing if the block is not in the index
  // Returns a number that identifies the block's content together with all preceding blocks, or 0 if the block is not
  // in the index. A number is never reused.
  uint64_t serial(int32_t block) const { return entries_[static_cast<size_t>(block)].serial; }
  size_t size() const { return by_hash_.size(); }

 private:
  struct Entry {
    PrefixKey key;
    uint64_t hash = 0, serial = 0;
  };
  std::span<const int32_t> tokens_of(int32_t block) const {
    return std::span(tokens_).subspan(static_cast<size_t>(block) * block_tokens_, block_tokens_);
  }
  size_t block_tokens_;
  std::vector<Entry> entries_;   // indexed by block
  std::vector<int32_t> tokens_;  // [blocks, block_tokens]
  std::unordered_map<uint64_t, int32_t> by_hash_;
  uint64_t last_serial_ = 0;
};

}  // namespace specdec::model
