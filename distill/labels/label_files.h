// Writes and reads labels, the target's answers on disk (base/schema/label_index.h).
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

// The answers for one row: P entries, one for each learnt position, or none.
struct RowLabels {
  std::vector<int32_t> ids;      // [P, K]
  std::vector<float> logprobs;   // [P, K]
  std::vector<float> rest;       // [P]
  std::vector<uint16_t> hidden;  // [P, E] bf16
  int64_t positions = 0;
};

// The smallest logarithm of a rest that is stored: a target that knows all probabilities has no rest.
inline constexpr float kLeastLogRest = -69.0f;

// A token at one position, and its log-probability.
struct TokenLogprob {
  int32_t id;
  float logprob;
};
// Sorts the tokens of one position by probability, keeps the K likeliest, and appends them to `row`. The
// log-probability of the rest is that of all other tokens. Throws Error(kData) with `where` for fewer than K tokens,
// for a token twice or outside the vocabulary, for log-probabilities that are above 0 or not numbers, or whose sum is
// above one.
void append_position(std::vector<TokenLogprob> tokens, const LabelIndex& index, const std::string& where,
                     RowLabels& row);

// Writes labels row by row, in the order of the data. A shard is complete on disk before shards.jsonl names it, so a
// run that was stopped is resumed from the last shard. finish() moves the names to index.json and removes shards.jsonl.
class LabelWriter {
 public:
  // Throws Error(kUsage) if the directory has other files; if it has labels and `resume` is not set; or if these have
  // other settings than `index`, naming the settings that differ. Throws Error(kNetwork) if another process writes
  // there.
  LabelWriter(std::filesystem::path directory, LabelIndex index, bool resume);

  const LabelIndex& index() const { return index_; }
  int64_t next_row() const { return next_row_; }  // rows before it are labelled
  void add(const RowLabels& row);
  void flush();   // writes the rows that are in no shard yet
  void finish();  // the same, and completes index.json; all rows must be there

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

// Returns the index of labels for all rows of their data; none if the directory has no labels, or not all of them.
std::optional<LabelIndex> complete_labels(const std::filesystem::path& directory);

// What labels must have been made for.
struct LabelUse {
  std::string data_digest, tokenizer_digest;
  std::string target_id;  // "" = not known here
  double temperature = 1;
  std::string data, target;  // for messages
};

class LabelReader {
 public:
  // Opens the directory and checks it. Throws Error(kData) if labels are damaged, not complete, or of another target,
  // tokenizer or data; Error(kUsage) if top_k labels have another temperature.
  LabelReader(const std::filesystem::path& directory, const LabelUse& use);

  const LabelIndex& index() const { return index_; }
  int64_t positions(int64_t row) const;  // 0 if the target refused the row
  // Reads the first `positions` entries of a row. Throws Error(kData) for token ids outside the vocabulary and values
  // that are not log-probabilities or not finite.
  RowLabels read(int64_t row, int64_t positions) const;

 private:
  // A shard is opened for each read, because there may be more shards than a process may have open files.
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
