// `data stats`: reports what a data directory contains. Reading the directory checks every digest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/schema/shard_index.h"

namespace specdec::data {

struct GroupCounts {
  int64_t rows = 0, conversations = 0, tokens = 0, loss_tokens = 0;
};

struct DataStats {
  ShardIndex index;
  std::string digest;                                                 // SHA-256 of index.json
  std::map<std::string, GroupCounts> splits;                          // "train" and "holdout" → counts
  std::map<std::string, std::map<std::string, GroupCounts>> domains;  // split → domain ("" = none) → counts
  double length_p50 = 0, length_p95 = 0;                              // tokens per row
  int64_t length_max = 0;
  int64_t predicted_tokens = 0;  // Σ over all rows of (tokens − 1), because no position predicts a row's first token
  int64_t shared_conversations = 0;  // number of conversations in both splits; 0 unless the directory was tampered with
  double bigram_coverage = 0;        // share of the hold-out's loss tokens whose (previous, token) pair occurs in train
  bool has_coverage = false;         // true if train has rows and the hold-out has loss tokens
};

// Throws Error(kData) if the directory was not written by this program or is damaged.
DataStats data_stats(const std::filesystem::path& directory);
void visit_counts(Fields& f, DataStats& stats);  // visits all fields except the lengths
void visit_fields(Fields& f, DataStats& stats);
std::string to_table(const DataStats& stats);

// Returns the counts as text: "email 2, phone 1".
std::string counts_text(const std::map<std::string, int64_t>& counts);

}  // namespace specdec::data
