// Finds texts that are nearly the same as an earlier one: MinHash of word 5-grams, looked up by locality-sensitive
// hashing. A. Broder, "On the resemblance and containment of documents" (1997); bands as in Leskovec, Rajaraman,
// Ullman, "Mining of Massive Datasets", section 3.4.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/schema/traffic_record.h"
#include "data/select/scratch_file.h"

namespace specdec::data {

inline constexpr int kMinHashes = 128, kBands = 16, kBandRows = kMinHashes / kBands, kShingleWords = 5;
using MinHash = std::array<uint32_t, kMinHashes>;

// Returns one hash per word, in order. A word is a run of letters and digits, with ASCII letters in lower case, or one
// character from U+0800 on (scripts without spaces).
std::vector<uint64_t> word_hashes(std::string_view text);
// Returns the hashes of all runs of 5 words (of the whole text if it has fewer), with repeats.
std::vector<uint64_t> shingles(std::string_view text);
MinHash min_hash(const std::vector<uint64_t>& shingles);
// Returns the share of equal entries, which estimates the Jaccard similarity J of the two sets of shingles. The
// standard deviation of the estimate is sqrt(J (1 − J) / 128).
double estimated_similarity(const MinHash& a, const MinHash& b);

// Returns the new part of a row: the last answer and the messages since the answer before it. Rows that log a growing
// conversation share their beginning, but are not duplicates.
std::string newest_exchange(const TrafficRecord& record);

class NearDuplicates {
 public:
  // Two texts of similarity J are compared with probability 1 − (1 − J^8)^16 (0.95 at 0.8, 0.01 at 0.4). They are
  // duplicates if their estimated similarity is at least `threshold`. Signatures are in a scratch file in `directory`;
  // the hash bands of about the latest `max_rows` rows are in memory (up to 256 bytes each, 128 MiB by default). Older
  // rows are forgotten.
  NearDuplicates(const std::filesystem::path& directory, double threshold, size_t max_rows = size_t{1} << 19);

  // Returns true if an earlier text is near-equal; otherwise remembers the text and returns false. Texts with fewer
  // than 5 words are never near-equal to another one.
  bool seen(std::string_view text);

 private:
  struct Slot {
    uint32_t key = 0;
    uint32_t row = 0;  // row number from 1; 0 = free slot
  };
  bool is_near(const MinHash& signature, uint32_t row) const;
  void remember(uint32_t key, uint32_t row);
  void grow();

  double threshold_;
  size_t max_slots_;
  ScratchFile signatures_;
  std::vector<Slot> slots_;
  size_t used_ = 0;
  uint32_t num_rows_ = 0;
};

}  // namespace specdec::data
