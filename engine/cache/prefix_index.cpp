#include "engine/cache/prefix_index.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace specdec::model {

namespace {

uint64_t hash_of(const PrefixKey& key, std::span<const int32_t> tokens) {
  static_assert(sizeof(PrefixKey) == 24, "no padding is hashed");
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), XXH3_64bits(&key, sizeof key));
}

}  // namespace

void PrefixIndex::resize(size_t num_blocks) {
  entries_.resize(num_blocks);
  tokens_.resize(num_blocks * block_tokens_);
}

int32_t PrefixIndex::find(const PrefixKey& key, std::span<const int32_t> tokens) const {
  const auto it = by_hash_.find(hash_of(key, tokens));
  if (it == by_hash_.end()) return -1;
  const int32_t block = it->second;
  return entries_[static_cast<size_t>(block)].key == key && std::ranges::equal(tokens_of(block), tokens) ? block : -1;
}

void PrefixIndex::insert(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens) {
  const uint64_t hash = hash_of(key, tokens);
  erase(block);
  if (!by_hash_.emplace(hash, block).second) return;
  entries_[static_cast<size_t>(block)] = {key, hash, ++last_serial_};
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(block) * block_tokens_));
}

void PrefixIndex::erase(int32_t block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  if (entry.serial == 0) return;
  by_hash_.erase(entry.hash);
  entry = {};
}

}  // namespace specdec::model
