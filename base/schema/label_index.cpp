#include "base/schema/label_index.h"

namespace specdec {

namespace {

constexpr ErrorKind kLabels = ErrorKind::kData;

}  // namespace

Json to_json(const LabelShard& s) {
  return {{"file", s.file}, {"sha256", s.sha256}, {"num_rows", s.num_rows}, {"num_positions", s.num_positions}};
}

LabelShard label_shard_from_json(const Json& o, const std::string& where) {
  return {json_string(o, "file", where, kLabels), json_digest(o, "sha256", false, where, kLabels),
          json_int(o, "num_rows", {0, kMaxCount}, where, kLabels),
          json_int(o, "num_positions", {0, kMaxCount}, where, kLabels)};
}

int64_t LabelIndex::labelled_rows() const {
  int64_t rows = 0;
  for (const LabelShard& s : shards) rows += s.num_rows;
  return rows;
}

void LabelIndex::validate(const std::string& where) const {
  const auto check = [&](bool ok, const std::string& text) {
    if (!ok) throw Error(kLabels, where + ": " + text);
  };
  check(kind == "top_k" || kind == "hidden", "kind: expected top_k or hidden, found '" + kind.substr(0, 40) + "'");
  check((kind == "top_k") == (top_k > 0) && (kind == "hidden") == (hidden_size > 0),
        "expected top_k for kind top_k, or hidden_size for kind hidden");
  check(top_k <= vocab_size, "top_k: expected at most vocab_size");
  for (size_t i = 0; i < shards.size(); ++i)
    check(!shards[i].file.empty() && shards[i].file.find('/') == std::string::npos &&
              shards[i].file.find('\0') == std::string::npos && shards[i].file[0] != '.',
          "shards[" + std::to_string(i) + "]: file: expected a file name inside the directory");
  check(labelled_rows() <= num_rows, "shards: expected at most num_rows rows together");
}

Json label_settings(const LabelIndex& i) {
  return {{"kind", i.kind},
          {"top_k", i.top_k},
          {"hidden_size", i.hidden_size},
          {"temperature", i.temperature},
          {"vocab_size", i.vocab_size},
          {"data_digest", i.data_digest},
          {"tokenizer_digest", i.tokenizer_digest},
          {"target", i.target ? to_json(*i.target) : Json(nullptr)},
          {"model", i.model},
          {"num_rows", i.num_rows}};
}

Json to_json(const LabelIndex& index) {
  Json out = label_settings(index), shards = Json::array();
  for (const LabelShard& s : index.shards) shards.push_back(to_json(s));
  out["schema"] = "specdec.labels/" + std::to_string(LabelIndex::kVersion);
  out["shards"] = shards;
  out["tool_version"] = index.tool_version;
  out["started"] = index.started;
  return out;
}

LabelIndex label_index_from_json(const Json& o, const std::string& where) {
  require_schema(o, "labels", LabelIndex::kVersion, where);
  LabelIndex index;
  index.kind = json_string(o, "kind", where, kLabels);
  index.top_k = json_int(o, "top_k", {0, LabelIndex::kMostTopK}, where, kLabels);
  index.hidden_size = json_int(o, "hidden_size", {0, 1 << 20}, where, kLabels);
  index.temperature = json_double(o, "temperature", {1e-6, 1e6}, where, kLabels);
  index.vocab_size = json_int(o, "vocab_size", {1, 1 << 24}, where, kLabels);
  index.data_digest = json_digest(o, "data_digest", false, where, kLabels);
  index.tokenizer_digest = json_digest(o, "tokenizer_digest", false, where, kLabels);
  if (const auto target = o.find("target"); target != o.end() && !target->is_null())
    index.target = fingerprint_from_json(*target, where + ": target", kLabels);
  index.model = json_string(o, "model", "", where, kLabels);
  index.num_rows = json_int(o, "num_rows", {0, kMaxCount}, where, kLabels);
  for (const Json& s : json_array(o, "shards", 1 << 20, where, kLabels))
    index.shards.push_back(label_shard_from_json(s, where + ": shards[" + std::to_string(index.shards.size()) + "]"));
  index.tool_version = json_string(o, "tool_version", "", where, kLabels);
  index.started = json_string(o, "started", "", where, kLabels);
  index.validate(where);
  return index;
}

}  // namespace specdec
