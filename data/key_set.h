// Set of 64-bit keys in 8 bytes at a load of at most 3/4: what ingest remembers of each row it has seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace specdec::data {

// XXH3: some two of n texts share a key with probability n² / 2^65 (one in 3700 for 10^8 rows).
uint64_t hash_key(std::string_view text);

class KeySet {
 public:
  // True if the key was not there.
  bool insert(uint64_t key);
  size_t size() const { return size_; }

 private:
  void grow();
  std::vector<uint64_t> slots_;  // 0 = free; the key 0 is kept as 1
  size_t size_ = 0;
};

}  // namespace specdec::data
