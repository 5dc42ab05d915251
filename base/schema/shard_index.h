// The output of `data ingest`: DIR/index.json and shards of tokens. data writes it; distill, validate and bench read
// it. A shard is one safetensors file with the tensors tokens I32 [N], loss_mask U8 [N], row_start I64 [R+1]. The
// metadata of its rows (id, conversation, domain, prompt_tokens, sampling, calls) is in a JSONL file beside it, one
// line per row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/run_options.h"

namespace specdec {

struct ShardFile {
  std::string tokens, rows;  // file names inside the directory
  std::string tokens_sha256, rows_sha256;
  std::string split;  // "train" | "holdout"
  int64_t num_rows = 0, num_tokens = 0, num_loss_tokens = 0;
};

struct ShardSource {
  std::string file, sha256;
};

struct ShardIndex {
  static constexpr int kVersion = 1;  // schema "specdec.data/1"
  std::string tokenizer_digest;       // Fingerprint::tokenizer of the target that the text was tokenised for
  std::string target_id;              // Fingerprint::id of that target
  int64_t vocab_size = 0;
  std::string written_by = "unknown";  // author of the answers: "target" (the model target_id), "unknown" or a name
  int64_t max_length = 0;              // limit of a row in tokens; 0 = rows are not cut
  int64_t truncated_rows = 0, dropped_tokens = 0;
  std::map<std::string, int64_t> rejects;  // reason → number of rejected rows
  std::map<std::string, int64_t> redactions;
  int64_t duplicates = 0;
  std::vector<ShardSource> sources;
  std::vector<ShardFile> shards;
  std::string tool_version, started;

  void validate(const std::string& where) const;
};
void visit_fields(Fields& f, ShardSource& source);
void visit_fields(Fields& f, ShardFile& shard);
void visit_contents(Fields& f, ShardIndex& index);  // visits all fields except schema, tool_version and started
void visit_fields(Fields& f, ShardIndex& index);
Json to_json(const ShardIndex& index);
ShardIndex shard_index_from_json(const Json& object, const std::string& where);

// The functions that one assistant turn of a row calls.
struct TurnCalls {
  int64_t begin = 0;  // index of the answer's first token
  std::vector<std::string> names;
};

// Format: [{"begin": 12, "names": ["get_weather"]}]. turn_calls_from_json() reads the list from the key "calls" of
// `object`. Throws Error(kData), also if a `begin` is not below `tokens`.
Json to_json(const std::vector<TurnCalls>& calls);
std::vector<TurnCalls> turn_calls_from_json(const Json& object, int64_t tokens, const std::string& where);

// One tokenised row in memory.
struct TokenRow {
  std::string id, conversation, domain;
  std::vector<int32_t> tokens;
  // 1 = the draft learns from this token, because the assistant wrote it. Has the length of `tokens`.
  std::vector<uint8_t> loss_mask;
  int64_t prompt_tokens = 0;  // a roll-out starts from tokens[0, prompt_tokens)
  SamplingOptions sampling;
  bool has_sampling = false;
  int64_t index = 0;             // the row's place among all rows of its directory, in file order
  std::vector<TurnCalls> calls;  // one for each learnt answer that calls functions, in order
};

}  // namespace specdec
