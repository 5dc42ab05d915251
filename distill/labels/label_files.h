// Writes and reads labels: the target's top-k log-probabilities or hidden states on disk (base/schema/label_index.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "base/safetensors.h"
#include "base/schema/label_index.h"
#include "base/schema/shard_index.h"

namespace specdec::distill {

// Labels of one row: P entries, one for each position in the loss (loss_mask 1). P = 0 if the endpoint refused the row.
struct RowLabels {
  std::vector<int32_t> ids;      // [P, K]
  std::vector<float> logprobs;   // [P, K]
  std::vector<float> rest;       // [P]
  std::vector<uint16_t> hidden;  // [P, E] bf16
  int64_t positions = 0;
};

// For each position, labels store the logarithm of the total probability of the tokens outside the top k. That total
// may be 0, so logarithms below kLeastLogRest are stored as kLeastLogRest.
inline constexpr float kLeastLogRest = -69.0f;

// A token at one position, and its log-probability.
struct TokenLogprob {
  int32_t id;
  float logprob;
};
// Sorts the tokens of one position by probability, and appends the K likeliest to `row` with the log-probability of all
// other tokens together. Throws Error(kData) with `where` for fewer than K tokens, a repeated token, a token outside
// the vocabulary, a log-probability that is NaN or above 0, or probabilities whose sum is above 1.
void append_position(std::vector<TokenLogprob> tokens, const LabelIndex& index, const std::string& where,
                     RowLabels& row);

// Writes labels row by row, in the order of the data. A shard is complete on disk before shards.jsonl names it, so a
// stopped run is resumed after the last complete shard. finish() writes the shards' names to index.json and removes
// shards.jsonl.
class LabelWriter {
 public:
  // Throws Error(kUsage) if the directory has foreign files, if it has labels and `resume` is not set, or if it has
  // labels made with other settings than `index` (the message names the settings). Throws Error(kNetwork), which means
  // "try again", while another process writes to the directory.
  LabelWriter(std::filesystem::path directory, LabelIndex index, bool resume);

  const LabelIndex& index() const { return index_; }
  int64_t next_row() const { return next_row_; }  // index of the first row that is not labelled yet
  void add(const RowLabels& row);
  void flush();   // writes the rows added since the last shard as a new shard
  void finish();  // calls flush() and completes index.json; all rows must have been added

 private:
  void write_shard();
  void write_index();

  std::filesystem::path directory_;
  LabelIndex index_;
  std::optional<FileLock> lock_;
  RowLabels pending_;
  std::vector<int64_t> row_start_{0};
  int64_t next_row_ = 0, most_positions_;
};

// Returns the index if the directory has labels for all rows of the data; nothing if labels are missing.
std::optional<LabelIndex> complete_labels(const std::filesystem::path& directory);

// The data, tokenizer and target that the labels must belong to.
struct LabelUse {
  std::string data_digest, tokenizer_digest;
  std::string target_id;  // id of the target's fingerprint; "" = unknown
  double temperature = 1;
  std::string data, target;  // shown in error messages
};

class LabelReader {
 public:
  // Opens the directory and checks the labels. Throws Error(kData) if they are damaged, incomplete, or belong to
  // another target, tokenizer or data; Error(kUsage) if top-k labels were computed at another temperature.
  LabelReader(const std::filesystem::path& directory, const LabelUse& use);

  const LabelIndex& index() const { return index_; }
  int64_t positions(int64_t row) const;  // 0 if the endpoint refused the row
  // Reads the first `positions` entries of a row. Throws Error(kData) for token ids outside the vocabulary, invalid
  // log-probabilities and non-finite values.
  RowLabels read(int64_t row, int64_t positions) const;

 private:
  // A shard file is opened anew for each read, because there may be more shards than files that a process may keep
  // open.
  struct Shard {
    std::filesystem::path path;
    std::map<std::string, TensorEntry> tensors;
    int64_t first_row;
    std::vector<int64_t> row_start;
  };
  const Shard& shard_of(int64_t row) const;

  LabelIndex index_;
  std::vector<Shard> shards_;
};

}  // namespace specdec::distill
