// A set of 64-bit keys with 8 bytes per slot and a load of at most 3/4. Ingest stores one key for each row it has seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace specdec::data {

// Returns the XXH3 hash of the text. The probability that any two of n texts share a key is n² / 2^65 (one in 3700 for
// 10^8 rows).
uint64_t hash_key(std::string_view text);

class KeySet {
 public:
  // Returns true if the key was not in the set.
  bool insert(uint64_t key);
  size_t size() const { return size_; }

 private:
  void grow();
  std::vector<uint64_t> slots_;  // 0 = free slot; the key 0 is stored as 1
  size_t size_ = 0;
};

}  // namespace specdec::data
