// The target's answers for the rows of a data directory, on disk: LABELS/index.json and shards. While labels are being
// written, LABELS/shards.jsonl lists the shards that index.json does not name yet. Several runs of distill can share
// labels. A shard is one safetensors file for consecutive rows of the data (TokenRow::index). Its P entries are the
// learnt positions of these rows (loss_mask[t] = 1 with t >= 1, in the order of t). A row that the target refused has
// no entries.
// * Always: row_start I64 [R + 1], the first entry of each of the R rows.
// * Kind "top_k": ids I32 [P, K], the likeliest tokens, likeliest first; logprobs F32 [P, K], their log-probabilities;
//   rest F32 [P], the logarithm of the total probability of all other tokens.
// * Kind "hidden": hidden BF16 [P, E], the residual stream after the last layer, before the final norm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/fingerprint.h"

namespace specdec {

struct LabelShard {
  std::string file, sha256;
  int64_t num_rows = 0, num_positions = 0;
};
void visit_fields(Fields& f, LabelShard& shard);

struct LabelIndex {
  static constexpr int kVersion = 1;  // schema "specdec.labels/1"
  static constexpr int64_t kMostTopK = 1024;
  std::string kind;         // "top_k" | "hidden"
  int64_t top_k = 0;        // K if `kind` is "top_k", else 0
  int64_t hidden_size = 0;  // E if `kind` is "hidden", else 0
  double temperature = 1;   // temperature of the softmax that gave the log-probabilities
  int64_t vocab_size = 0;
  std::string data_digest;            // sha256 of the data's index.json
  std::string tokenizer_digest;       // the digest Fingerprint::tokenizer
  std::optional<Fingerprint> target;  // empty if the files of the endpoint's model were not available
  std::string model;                  // the model's name at the endpoint; "" if the target ran in this process
  int64_t num_rows = 0;               // number of rows of the data
  std::vector<LabelShard> shards;     // the shards written so far, from row 0 on; complete labels cover all rows
  std::string tool_version, started;

  int64_t labelled_rows() const;
  bool complete() const { return labelled_rows() == num_rows; }
  void validate(const std::string& where) const;
};
void visit_contents(Fields& f, LabelIndex& index);  // visits all fields except schema, tool_version and started
void visit_fields(Fields& f, LabelIndex& index);
Json to_json(const LabelIndex& index);
LabelIndex label_index_from_json(const Json& object, const std::string& where);
// Returns, as JSON, what the content of the labels depends on: all fields except shards, tool_version and started.
Json label_settings(const LabelIndex& index);

}  // namespace specdec
