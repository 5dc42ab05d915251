#include "base/schema/shard_index.h"

#include <set>

namespace specdec {

namespace {

constexpr ErrorKind kIndex = ErrorKind::kData;
constexpr size_t kMaxCalls = 4096;

bool is_file_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != "." &&
         name != "..";
}

}  // namespace

void ShardIndex::validate(const std::string& where) const {
  const auto check = [&](bool ok, const std::string& text) {
    if (!ok) throw Error(kIndex, where + ": " + text);
  };
  std::set<std::string_view> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardFile& s = shards[i];
    const std::string at = "shards[" + std::to_string(i) + "]: ";
    check(is_file_name(s.tokens) && is_file_name(s.rows), at + "tokens, rows: expected file names without '/'");
    for (const std::string& name : {std::cref(s.tokens), std::cref(s.rows)})
      check(names.insert(name).second, at + "the file '" + name + "' for the second time");
    check(s.num_loss_tokens <= s.num_tokens, at + "expected num_loss_tokens <= num_tokens");
  }
}

void visit_fields(Fields& f, ShardFile& s) {
  f.type("Shard", "The files of one shard.");
  f("tokens", s.tokens);
  f("rows", s.rows);
  f.digest("tokens_sha256", s.tokens_sha256);
  f.digest("rows_sha256", s.rows_sha256);
  f.one_of("split", s.split, {"train", "holdout"});
  f("num_rows", s.num_rows, kAnyCount);
  f("num_tokens", s.num_tokens, kAnyCount);
  f("num_loss_tokens", s.num_loss_tokens, kAnyCount);
}

void visit_fields(Fields& f, ShardSource& source) {
  f.type("Source", "A log and its digest.");
  f("file", source.file);
  f.digest("sha256", source.sha256);
}

void visit_contents(Fields& f, ShardIndex& i) {
  f.digest("tokenizer_digest", i.tokenizer_digest);
  f.digest("target_id", i.target_id);
  f("vocab_size", i.vocab_size, {1, 1 << 24});
  f(defaulted("written_by"), i.written_by);
  f(defaulted("max_length"), i.max_length, kAnyCount);
  f(defaulted("truncated_rows"), i.truncated_rows, kAnyCount);
  f(defaulted("dropped_tokens"), i.dropped_tokens, kAnyCount);
  f(defaulted("rejects"), i.rejects);
  f(defaulted("redactions"), i.redactions);
  f(defaulted("duplicates"), i.duplicates, kAnyCount);
  f("sources", i.sources);
  f("shards", i.shards, {.numbered = true});
}

void visit_fields(Fields& f, ShardIndex& i) {
  f.schema("data", ShardIndex::kVersion);
  visit_contents(f, i);
  f(defaulted("tool_version"), i.tool_version);
  f(defaulted("started"), i.started);
}

Json to_json(const ShardIndex& index) { return json_of(index); }

ShardIndex shard_index_from_json(const Json& object, const std::string& where) {
  ShardIndex index = read_fields<ShardIndex>(object, where, kIndex);
  index.validate(where);
  return index;
}

void visit_fields(Fields& f, TurnCalls& turn) {
  f("begin", turn.begin, kAnyCount);
  f("names", turn.names, {kMaxCalls});
}

Json to_json(const std::vector<TurnCalls>& calls) {
  Json out = Json::array();
  for (const TurnCalls& turn : calls) out.push_back(json_of(turn));
  return out;
}

std::vector<TurnCalls> turn_calls_from_json(const Json& object, int64_t tokens, const std::string& where) {
  std::vector<TurnCalls> calls;
  read_fields(object, where, kIndex, [&](Fields& f) {
    f("calls", calls, {kMaxCalls});
    for (const TurnCalls& turn : calls)
      if (turn.begin >= tokens) f.refuse("calls: begin: expected an index below " + std::to_string(tokens));
  });
  return calls;
}

}  // namespace specdec
