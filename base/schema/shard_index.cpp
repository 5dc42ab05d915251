#include "base/schema/shard_index.h"

#include <set>

namespace specdec {

namespace {

constexpr ErrorKind kIndex = ErrorKind::kData;

Json to_json(const ShardFile& s) {
  return {{"tokens", s.tokens},
          {"rows", s.rows},
          {"tokens_sha256", s.tokens_sha256},
          {"rows_sha256", s.rows_sha256},
          {"split", s.split},
          {"num_rows", s.num_rows},
          {"num_tokens", s.num_tokens},
          {"num_loss_tokens", s.num_loss_tokens}};
}

ShardFile shard_from_json(const Json& o, const std::string& where) {
  ShardFile s;
  s.tokens = json_string(o, "tokens", where, kIndex);
  s.rows = json_string(o, "rows", where, kIndex);
  s.tokens_sha256 = json_digest(o, "tokens_sha256", false, where, kIndex);
  s.rows_sha256 = json_digest(o, "rows_sha256", false, where, kIndex);
  s.split = json_string(o, "split", where, kIndex);
  s.num_rows = json_int(o, "num_rows", {0, kMaxCount}, where, kIndex);
  s.num_tokens = json_int(o, "num_tokens", {0, kMaxCount}, where, kIndex);
  s.num_loss_tokens = json_int(o, "num_loss_tokens", {0, kMaxCount}, where, kIndex);
  return s;
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != "." &&
         name != "..";
}

}  // namespace

void ShardIndex::validate(const std::string& where) const {
  const auto check = [&](bool ok, const std::string& text) {
    if (!ok) throw Error(kIndex, where + ": " + text);
  };
  check(is_sha256_hex(tokenizer_digest), "tokenizer_digest: expected 64 hexadecimal digits");
  check(is_sha256_hex(target_id), "target_id: expected 64 hexadecimal digits");
  check(vocab_size >= 1, "vocab_size: expected a number >= 1");
  check(max_length >= 0 && truncated_rows >= 0 && dropped_tokens >= 0 && duplicates >= 0,
        "counts: expected numbers >= 0");
  std::set<std::string_view> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardFile& s = shards[i];
    const std::string at = "shards[" + std::to_string(i) + "]: ";
    check(is_file_name(s.tokens) && is_file_name(s.rows), at + "tokens, rows: expected file names without '/'");
    for (const std::string& name : {std::cref(s.tokens), std::cref(s.rows)})
      check(names.insert(name).second, at + "the file '" + name + "' for the second time");
    check(is_sha256_hex(s.tokens_sha256) && is_sha256_hex(s.rows_sha256),
          at + "tokens_sha256, rows_sha256: expected 64 hexadecimal digits");
    check(s.split == "train" || s.split == "holdout", at + "split: expected train or holdout, found '" + s.split + "'");
    check(s.num_rows >= 0 && s.num_loss_tokens >= 0 && s.num_loss_tokens <= s.num_tokens,
          at + "expected num_loss_tokens <= num_tokens");
  }
}

Json to_json(const ShardIndex& index) {
  Json shards = Json::array(), sources = Json::array();
  for (const ShardFile& s : index.shards) shards.push_back(to_json(s));
  for (const auto& [file, digest] : index.sources) sources.push_back({{"file", file}, {"sha256", digest}});
  return {{"schema", "specdec.data/" + std::to_string(ShardIndex::kVersion)},
          {"tokenizer_digest", index.tokenizer_digest},
          {"target_id", index.target_id},
          {"vocab_size", index.vocab_size},
          {"written_by", index.written_by},
          {"max_length", index.max_length},
          {"truncated_rows", index.truncated_rows},
          {"dropped_tokens", index.dropped_tokens},
          {"rejects", index.rejects},
          {"redactions", index.redactions},
          {"duplicates", index.duplicates},
          {"sources", sources},
          {"shards", shards},
          {"tool_version", index.tool_version},
          {"started", index.started}};
}

ShardIndex shard_index_from_json(const Json& object, const std::string& where) {
  require_schema(object, "data", ShardIndex::kVersion, where);
  ShardIndex index;
  index.tokenizer_digest = json_digest(object, "tokenizer_digest", false, where, kIndex);
  index.target_id = json_digest(object, "target_id", false, where, kIndex);
  index.vocab_size = json_int(object, "vocab_size", {1, 1 << 24}, where, kIndex);
  index.written_by = json_string(object, "written_by", "unknown", where, kIndex);
  index.max_length = json_int(object, "max_length", {.low = 0, .high = kMaxCount, .fallback = 0}, where, kIndex);
  index.truncated_rows =
      json_int(object, "truncated_rows", {.low = 0, .high = kMaxCount, .fallback = 0}, where, kIndex);
  index.dropped_tokens =
      json_int(object, "dropped_tokens", {.low = 0, .high = kMaxCount, .fallback = 0}, where, kIndex);
  index.rejects = json_counts(object, "rejects", where, kIndex);
  index.redactions = json_counts(object, "redactions", where, kIndex);
  index.duplicates = json_int(object, "duplicates", {.low = 0, .high = kMaxCount, .fallback = 0}, where, kIndex);
  for (const Json& s : json_array(object, "sources", 1 << 20, where, kIndex))
    index.sources.emplace_back(json_string(s, "file", where + ": sources", kIndex),
                               json_digest(s, "sha256", false, where + ": sources", kIndex));
  for (const Json& s : json_array(object, "shards", 1 << 20, where, kIndex))
    index.shards.push_back(shard_from_json(s, where + ": shards[" + std::to_string(index.shards.size()) + "]"));
  index.tool_version = json_string(object, "tool_version", "", where, kIndex);
  index.started = json_string(object, "started", "", where, kIndex);
  index.validate(where);
  return index;
}

Json to_json(const std::vector<TurnCalls>& calls) {
  Json out = Json::array();
  for (const TurnCalls& turn : calls) out.push_back({{"begin", turn.begin}, {"names", turn.names}});
  return out;
}

std::vector<TurnCalls> turn_calls_from_json(const Json& object, int64_t tokens, const std::string& where) {
  constexpr size_t kMaxCalls = 4096;
  const std::string inside = where + ": calls";
  std::vector<TurnCalls> out;
  for (const Json& turn : json_array(object, "calls", kMaxCalls, where, kIndex)) {
    TurnCalls calls;
    calls.begin = json_int(turn, "begin", {0, tokens - 1}, inside, kIndex);
    for (const Json& name : json_array(turn, "names", kMaxCalls, inside, kIndex)) {
      if (!name.is_string()) throw Error(kIndex, inside + ": names: expected strings");
      calls.names.push_back(name.get<std::string>());
    }
    out.push_back(std::move(calls));
  }
  return out;
}

}  // namespace specdec
