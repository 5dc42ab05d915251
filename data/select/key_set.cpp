#include "data/select/key_set.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace specdec::data {

uint64_t hash_key(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

bool KeySet::insert(uint64_t key) {
  if (key == 0) key = 1;
  if (4 * (size_ + 1) > 3 * slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  for (size_t i = key & mask;; i = (i + 1) & mask) {
    if (slots_[i] == key) return false;
    if (slots_[i] != 0) continue;
    slots_[i] = key;
    ++size_;
    return true;
  }
}

void KeySet::grow() {
  std::vector<uint64_t> old(slots_.empty() ? 1024 : 2 * slots_.size());
  old.swap(slots_);
  size_ = 0;
  for (const uint64_t key : old)
    if (key != 0) insert(key);
}

}  // namespace specdec::data
