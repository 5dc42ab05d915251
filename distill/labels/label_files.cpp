#include "distill/labels/label_files.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "base/file.h"
#include "base/format.h"
#include "base/output_directory.h"
#include "base/sha256.h"

namespace specdec::distill {

namespace {

constexpr int64_t kShardBytes = int64_t{8} << 20;
// Lists the shards of an unfinished run, one per line. Appending a line is fast, while rewriting all of index.json
// after each of many shards would take longer than writing the shards.
constexpr const char* kAddedShards = "shards.jsonl";
constexpr size_t kMostAddedBytes = size_t{1} << 30;

int64_t bytes_per_position(const LabelIndex& index) {
  return index.kind == "top_k" ? 8 * index.top_k + 4 : 2 * index.hidden_size;
}

std::string shard_name(size_t number) { return format("labels-%05zu.safetensors", number); }

// Returns the names of the settings that differ, comma-separated.
std::string differing_settings(const LabelIndex& a, const LabelIndex& b) {
  const Json x = label_settings(a), y = label_settings(b);
  std::string out;
  for (const auto& [key, value] : x.items())
    if (y.at(key) != value) out += (out.empty() ? "" : ", ") + key;
  return out;
}

// Reads index.json and adds the shards that shards.jsonl lists for an unfinished run. A last line without a newline,
// written by a killed run, is ignored.
LabelIndex read_index(const fs::path& directory) {
  const fs::path file = directory / "index.json", added = directory / kAddedShards;
  LabelIndex index = label_index_from_json(read_json(file), file.string());
  if (!fs::exists(added)) return index;
  const std::string text = read_file(added, kMostAddedBytes);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string where = added.string() + ": shard " + std::to_string(index.shards.size());
    const Json line = parse_json(std::string_view(text).substr(begin, end - begin), where);
    LabelShard shard = read_fields<LabelShard>(line, where);
    // If a run was killed inside finish(), shards.jsonl still lists shards that index.json lists too. They are skipped
    // here.
    if (shard.file == shard_name(index.shards.size())) index.shards.push_back(std::move(shard));
  }
  index.validate(added.string());
  return index;
}

[[noreturn]] void damaged_labels(const fs::path& file, const std::string& what) {
  throw Error(ErrorKind::kData, file.string() + ": " + what + ": the labels are damaged, write them again");
}

// Checks the tensors of a shard and returns its tensor row_start.
std::vector<int64_t> check_label_shard(const SafetensorsFile& file, const LabelIndex& index, const LabelShard& shard) {
  const fs::path& path = file.file().path();
  const auto expect = [&](const char* name, const char* dtype, std::vector<int64_t> shape) -> const TensorEntry& {
    const auto it = file.tensors().find(name);
    if (it == file.tensors().end() || it->second.dtype != dtype || it->second.shape != shape)
      damaged_labels(path, std::string("tensor ") + name + " is missing or has another type or shape");
    return it->second;
  };
  const TensorEntry& starts = expect("row_start", "I64", {shard.num_rows + 1});
  if (index.kind == "top_k") {
    expect("ids", "I32", {shard.num_positions, index.top_k});
    expect("logprobs", "F32", {shard.num_positions, index.top_k});
    expect("rest", "F32", {shard.num_positions});
  } else {
    expect("hidden", "BF16", {shard.num_positions, index.hidden_size});
  }
  std::vector<int64_t> row_start(static_cast<size_t>(shard.num_rows + 1));
  file.read(starts, std::as_writable_bytes(std::span(row_start)));
  if (row_start.front() != 0 || row_start.back() != shard.num_positions ||
      !std::is_sorted(row_start.begin(), row_start.end()))
    damaged_labels(path, "row_start does not cover the positions");
  return row_start;
}

// Reads entries [begin, begin + out.size() / width) of a tensor whose entries have `width` values.
template <class T>
void read_entries(const InputFile& file, const TensorEntry& tensor, int64_t begin, int64_t width, std::vector<T>& out) {
  file.read(tensor.offset + static_cast<uint64_t>(begin * width) * sizeof(T), std::as_writable_bytes(std::span(out)));
}

void check_top_k(const RowLabels& row, const LabelIndex& index, const fs::path& path) {
  for (const int32_t id : row.ids)
    if (id < 0 || id >= index.vocab_size)
      damaged_labels(
          path, "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(index.vocab_size));
  const auto sound = [](float x) { return std::isfinite(x) && x <= 1e-3f; };
  if (!std::all_of(row.logprobs.begin(), row.logprobs.end(), sound) ||
      !std::all_of(row.rest.begin(), row.rest.end(), sound))
    damaged_labels(path, "a log-probability is above 0 or not a number");
}

}  // namespace

void append_position(std::vector<TokenLogprob> tokens, const LabelIndex& index, const std::string& where,
                     RowLabels& row) {
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::kData, where + ": " + what); };
  const auto k = static_cast<size_t>(index.top_k);
  if (tokens.size() < k)
    refuse("found " + std::to_string(tokens.size()) + " tokens, expected at least " + std::to_string(k));
  std::set<int32_t> seen;
  for (const TokenLogprob& t : tokens) {
    if (t.id < 0 || t.id >= index.vocab_size)
      refuse("token id " + std::to_string(t.id) + " is outside the vocabulary of " + std::to_string(index.vocab_size));
    if (!seen.insert(t.id).second) refuse("token id " + std::to_string(t.id) + " is there twice");
    if (!std::isfinite(t.logprob) || t.logprob > 1e-3f)
      refuse("found a log-probability of " + number_text(t.logprob) + ", expected numbers up to 0");
  }
  std::sort(tokens.begin(), tokens.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
  });
  tokens.resize(k);
  double known = 0;
  for (const TokenLogprob& t : tokens) {
    row.ids.push_back(t.id);
    row.logprobs.push_back(t.logprob);
    known += std::exp(static_cast<double>(t.logprob));
  }
  if (known > 1.01) refuse("the probabilities add up to " + number_text(known));
  row.rest.push_back(std::max(kLeastLogRest, static_cast<float>(std::log(std::max(1 - known, 1e-31)))));
  ++row.positions;
}

LabelWriter::LabelWriter(fs::path directory, LabelIndex index, bool resume)
    : directory_(std::move(directory)), index_(std::move(index)) {
  const auto has_labels = [&] {
    const bool has = check_output_directory(
        directory_, {.flag = "--out", .command = "specdec data label", .results = {{"index.json", "labels"}}});
    if (has && !resume)
      throw Error(ErrorKind::kUsage, directory_.string() +
                                         ": has labels already: --resume completes them; for new ones "
                                         "give a new or an empty directory");
    return has;
  };
  has_labels();  // checked before the directory is made, so that a refused command makes no directory
  make_private_directory(directory_);
  lock_.emplace(directory_ / ".lock");
  most_positions_ = std::max<int64_t>(1, kShardBytes / bytes_per_position(index_));
  if (has_labels()) {  // checked again, because another process may have written labels before this one got the lock
    const LabelIndex then = read_index(directory_);
    if (const std::string keys = differing_settings(then, index_); !keys.empty())
      throw Error(ErrorKind::kUsage, directory_.string() +
                                         ": --resume needs the settings that the labels were begun "
                                         "with; these differ: " +
                                         keys);
    index_ = then;
  }
  write_index();
  next_row_ = index_.labelled_rows();
}

void LabelWriter::add(const RowLabels& row) {
  if (next_row_ == index_.num_rows) throw Error(ErrorKind::kInternal, "labels: more rows than the data has");
  pending_.ids.insert(pending_.ids.end(), row.ids.begin(), row.ids.end());
  pending_.logprobs.insert(pending_.logprobs.end(), row.logprobs.begin(), row.logprobs.end());
  pending_.rest.insert(pending_.rest.end(), row.rest.begin(), row.rest.end());
  pending_.hidden.insert(pending_.hidden.end(), row.hidden.begin(), row.hidden.end());
  row_start_.push_back(row_start_.back() + row.positions);
  ++next_row_;
  if (row_start_.back() >= most_positions_) write_shard();
}

void LabelWriter::flush() {
  if (row_start_.size() > 1) write_shard();
}

void LabelWriter::finish() {
  if (next_row_ != index_.num_rows) throw Error(ErrorKind::kInternal, "labels: rows are missing");
  flush();
  write_index();
}

void LabelWriter::write_index() {
  write_file_atomic(directory_ / "index.json", to_json(index_).dump(1) + "\n");
  fs::remove(directory_ / kAddedShards);
}

void LabelWriter::write_shard() {
  const auto rows = static_cast<int64_t>(row_start_.size()) - 1, positions = row_start_.back();
  const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
  std::vector<TensorToWrite> tensors = {{"row_start", "I64", {rows + 1}, bytes(row_start_)}};
  if (index_.kind == "top_k") {
    tensors.push_back({"ids", "I32", {positions, index_.top_k}, bytes(pending_.ids)});
    tensors.push_back({"logprobs", "F32", {positions, index_.top_k}, bytes(pending_.logprobs)});
    tensors.push_back({"rest", "F32", {positions}, bytes(pending_.rest)});
  } else {
    tensors.push_back({"hidden", "BF16", {positions, index_.hidden_size}, bytes(pending_.hidden)});
  }
  const std::string name = shard_name(index_.shards.size());
  const fs::path file = directory_ / name, partial = directory_ / (name + ".partial");
  write_safetensors(partial, tensors);
  rename_file(partial, file);
  index_.shards.push_back({name, sha256_file(file), rows, positions});
  append_line(directory_ / kAddedShards, json_of(index_.shards.back()).dump(), true);
  pending_ = {};
  row_start_ = {0};
}

std::optional<LabelIndex> complete_labels(const fs::path& directory) {
  if (!fs::exists(directory / "index.json")) return std::nullopt;
  LabelIndex index = read_index(directory);
  return index.complete() ? std::optional(std::move(index)) : std::nullopt;
}

LabelReader::LabelReader(const fs::path& directory, const LabelUse& use) : index_(read_index(directory)) {
  const std::string where = directory.string();
  const auto short_id = [](const std::string& id) { return id.substr(0, 12); };
  if (index_.tokenizer_digest != use.tokenizer_digest)
    throw Error(ErrorKind::kData, where + ": labels for another tokenizer (" + short_id(index_.tokenizer_digest) +
                                      ") than the one of " + use.target + " (" + short_id(use.tokenizer_digest) + ")");
  if (!use.target_id.empty() && index_.target && index_.target->id != use.target_id)
    throw Error(ErrorKind::kData, where + ": labels of another target (" + short_id(index_.target->id) + ") than " +
                                      use.target + " (" + short_id(use.target_id) + "): run specdec data label again");
  if (index_.data_digest != use.data_digest)
    throw Error(ErrorKind::kData, where + ": labels for other data (" + short_id(index_.data_digest) + ") than " +
                                      use.data + " (" + short_id(use.data_digest) + "): run specdec data label again");
  if (index_.kind == "top_k" && index_.temperature != use.temperature)
    throw Error(ErrorKind::kUsage, where + ": labels at a temperature of " + Json(index_.temperature).dump() +
                                       ", --temperature is " + Json(use.temperature).dump() +
                                       ": give the same, or write labels with --hidden");
  if (!index_.complete())
    throw Error(ErrorKind::kData, where + ": has labels for " + std::to_string(index_.labelled_rows()) + " of " +
                                      std::to_string(index_.num_rows) +
                                      " rows: complete them with specdec data label --resume");
  int64_t first = 0;
  for (const LabelShard& shard : index_.shards) {
    const fs::path path = directory / shard.file;
    if (sha256_file(path) != shard.sha256) damaged_labels(path, "the sha256 differs from the one in index.json");
    try {
      const SafetensorsFile file(path);
      shards_.push_back({path, file.tensors(), first, check_label_shard(file, index_, shard)});
    } catch (const Error& e) {
      throw Error(e.kind() == ErrorKind::kModel ? ErrorKind::kData : e.kind(), e.what());
    }
    first += shard.num_rows;
  }
}

const LabelReader::Shard& LabelReader::shard_of(int64_t row) const {
  if (row < 0 || row >= index_.num_rows) throw Error(ErrorKind::kInternal, "labels: no row " + std::to_string(row));
  const auto after = std::upper_bound(shards_.begin(), shards_.end(), row,
                                      [](int64_t r, const Shard& shard) { return r < shard.first_row; });
  return *(after - 1);
}

int64_t LabelReader::positions(int64_t row) const {
  const Shard& shard = shard_of(row);
  const auto r = static_cast<size_t>(row - shard.first_row);
  return shard.row_start[r + 1] - shard.row_start[r];
}

RowLabels LabelReader::read(int64_t row, int64_t positions) const {
  const Shard& shard = shard_of(row);
  const int64_t begin = shard.row_start[static_cast<size_t>(row - shard.first_row)];
  if (positions > this->positions(row))
    throw Error(ErrorKind::kInternal, "labels: row " + std::to_string(row) + " has fewer positions");
  const InputFile file(shard.path, ErrorKind::kData);
  RowLabels out;
  out.positions = positions;
  if (index_.kind == "hidden") {
    out.hidden.resize(static_cast<size_t>(positions * index_.hidden_size));
    read_entries(file, shard.tensors.at("hidden"), begin, index_.hidden_size, out.hidden);
    // NaN and infinity have all exponent bits set.
    if (std::any_of(out.hidden.begin(), out.hidden.end(), [](uint16_t h) { return (h & 0x7f80) == 0x7f80; }))
      damaged_labels(shard.path, "a hidden state is not finite");
    return out;
  }
  out.ids.resize(static_cast<size_t>(positions * index_.top_k));
  out.logprobs.resize(out.ids.size());
  out.rest.resize(static_cast<size_t>(positions));
  read_entries(file, shard.tensors.at("ids"), begin, index_.top_k, out.ids);
  read_entries(file, shard.tensors.at("logprobs"), begin, index_.top_k, out.logprobs);
  read_entries(file, shard.tensors.at("rest"), begin, 1, out.rest);
  check_top_k(out, index_, shard.path);
  return out;
}

}  // namespace specdec::distill
