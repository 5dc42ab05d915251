#include "base/schema/label_index.h"

namespace specdec {

namespace {

constexpr ErrorKind kLabels = ErrorKind::kData;

}  // namespace

void visit_fields(Fields& f, LabelShard& s) {
  f.type("LabelShard", "A file of labels, for consecutive rows of the data.");
  f("file", s.file);
  f.digest("sha256", s.sha256);
  f("num_rows", s.num_rows, kAnyCount);
  f("num_positions", s.num_positions, kAnyCount);
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
  check((kind == "top_k") == (top_k > 0) && (kind == "hidden") == (hidden_size > 0),
        "expected top_k for kind top_k, or hidden_size for kind hidden");
  check(top_k <= vocab_size, "top_k: expected at most vocab_size");
  for (size_t i = 0; i < shards.size(); ++i)
    check(!shards[i].file.empty() && shards[i].file.find('/') == std::string::npos &&
              shards[i].file.find('\0') == std::string::npos && shards[i].file[0] != '.',
          "shards[" + std::to_string(i) + "]: file: expected a file name inside the directory");
  check(labelled_rows() <= num_rows, "shards: expected at most num_rows rows together");
}

void visit_settings(Fields& f, LabelIndex& i) {
  f.one_of("kind", i.kind, {"top_k", "hidden"});
  f("top_k", i.top_k, {0, LabelIndex::kMostTopK});
  f("hidden_size", i.hidden_size, {0, 1 << 20});
  f("temperature", i.temperature, {1e-6, 1e6});
  f("vocab_size", i.vocab_size, {1, 1 << 24});
  f.digest("data_digest", i.data_digest);
  f.digest("tokenizer_digest", i.tokenizer_digest);
  f("target", i.target);
  f(defaulted("model"), i.model);
  f("num_rows", i.num_rows, kAnyCount);
}

void visit_contents(Fields& f, LabelIndex& i) {
  visit_settings(f, i);
  f("shards", i.shards, {.numbered = true});
}

void visit_fields(Fields& f, LabelIndex& i) {
  f.schema("labels", LabelIndex::kVersion);
  visit_contents(f, i);
  f(defaulted("tool_version"), i.tool_version);
  f(defaulted("started"), i.started);
}

Json to_json(const LabelIndex& index) { return json_of(index); }

Json label_settings(const LabelIndex& index) {
  return json_of_fields([&](Fields& f) { visit_settings(f, const_cast<LabelIndex&>(index)); });
}

LabelIndex label_index_from_json(const Json& o, const std::string& where) {
  LabelIndex index = read_fields<LabelIndex>(o, where, kLabels);
  index.validate(where);
  return index;
}

}  // namespace specdec
