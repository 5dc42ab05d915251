// Which blocks of a cache hold which tokens behind which others: a chain of full blocks is found again by what was
// read.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace specdec::model {

// What comes before a block, and for whom it was read.
struct PrefixKey {
  uint64_t tenant = 0;       // finds its own blocks only
  int64_t rope_rescale = 0;  // KvCache::rope_rescale()
  uint64_t parent = 0;       // serial() of the block before; 0: the text begins here
  bool operator==(const PrefixKey&) const = default;
};

class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t block_tokens) : block_tokens_(static_cast<size_t>(block_tokens)) {}
  void resize(size_t num_blocks);  // blocks are numbers below this
  // The block whose key and tokens these are, or -1. Hashes only say where to look.
  int32_t find(const PrefixKey& key, std::span<const int32_t> tokens) const;
  // `tokens`: a whole block. Does nothing where another block has the same hash: that one is found, or neither.
  void insert(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens);
  void erase(int32_t block);  // nothing where it is not in the index
  // Names the block's content, and with it all that comes before. Never used twice; 0: not in the index.
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
  std::vector<Entry> entries_;   // by block
  std::vector<int32_t> tokens_;  // [blocks, block_tokens]
  std::unordered_map<uint64_t, int32_t> by_hash_;
  uint64_t last_serial_ = 0;
};

}  // namespace specdec::model
