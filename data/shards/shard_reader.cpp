#include "data/shards/shard_reader.h"

#include <chrono>
#include <thread>

#include "base/file.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "base/shell.h"

namespace specdec::data {

namespace {

constexpr size_t kMaxRowsFileBytes = size_t{4} << 30;

[[noreturn]] void damaged(const fs::path& file, const std::string& what) {
  throw Error(ErrorKind::kData,
              file.string() + ": " + what + ": the data directory is damaged, run specdec data ingest again");
}

// Calls f and turns Error(kModel) into Error(kData): the safetensors reader reports a damaged model, but here data are
// damaged.
template <class F>
auto as_data_error(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.kind() == ErrorKind::kModel ? ErrorKind::kData : e.kind(), e.what());
  }
}

template <class T>
std::vector<T> read_tensor(const SafetensorsFile& file, const fs::path& path, const char* name, const char* dtype,
                           int64_t length) {
  const auto it = file.tensors().find(name);
  if (it == file.tensors().end()) damaged(path, std::string("tensor ") + name + " is missing");
  const TensorEntry& entry = it->second;
  if (entry.dtype != dtype || entry.shape != std::vector<int64_t>{length})
    damaged(path, std::string("tensor ") + name + ": expected " + dtype + " [" + std::to_string(length) + "], found " +
                      entry.dtype + " with " + std::to_string(entry.bytes) + " bytes");
  std::vector<T> values(static_cast<size_t>(length));
  file.read(entry, std::as_writable_bytes(std::span(values)));
  return values;
}

void read_metadata(std::string_view line, const std::string& where, TokenRow& row) {
  const Json meta = parse_json(line, where);
  if (!meta.is_object()) throw Error(ErrorKind::kData, where + ": expected an object");
  const ErrorKind kind = ErrorKind::kData;
  row.id = json_string(meta, "id", where, kind);
  row.conversation = json_string(meta, "conversation", where, kind);
  row.domain = one_line(json_string(meta, "domain", "", where, kind));
  row.prompt_tokens = json_int(meta, "prompt_tokens", {0, static_cast<int64_t>(row.tokens.size())}, where, kind);
  if (meta.contains("calls")) row.calls = turn_calls_from_json(meta, static_cast<int64_t>(row.tokens.size()), where);
  const auto sampling = meta.find("sampling");
  if (sampling == meta.end() || sampling->is_null()) return;
  const std::string inside = where + ": sampling";
  row.has_sampling = true;
  row.sampling.temperature = json_double(*sampling, "temperature", {.low = 0, .high = 10, .fallback = 1}, inside, kind);
  row.sampling.top_k = json_int(*sampling, "top_k", {.low = 0, .high = INT32_MAX, .fallback = 0}, inside, kind);
  row.sampling.top_p = json_double(*sampling, "top_p", {.low = 0, .high = 1, .fallback = 1}, inside, kind);
  row.sampling.min_p = json_double(*sampling, "min_p", {.low = 0, .high = 1, .fallback = 0}, inside, kind);
}

void append_rows(const fs::path& directory, const ShardFile& shard, int64_t vocab_size, std::vector<TokenRow>& rows) {
  const fs::path path = directory / shard.tokens, rows_path = directory / shard.rows;
  const SafetensorsFile file(path);
  const auto start = read_tensor<int64_t>(file, path, "row_start", "I64", shard.num_rows + 1);
  const auto tokens = read_tensor<int32_t>(file, path, "tokens", "I32", shard.num_tokens);
  const auto mask = read_tensor<uint8_t>(file, path, "loss_mask", "U8", shard.num_tokens);
  if (start.front() != 0 || start.back() != shard.num_tokens) damaged(path, "row_start does not cover the tokens");
  for (const int32_t t : tokens)
    if (t < 0 || (vocab_size > 0 && t >= vocab_size))
      damaged(path, "token id " + std::to_string(t) + " outside the vocabulary of " + std::to_string(vocab_size));
  for (const uint8_t m : mask)
    if (m > 1) damaged(path, "loss_mask holds " + std::to_string(m));

  const std::string text = read_file(rows_path, kMaxRowsFileBytes);
  size_t position = 0;
  for (int64_t r = 0; r < shard.num_rows; ++r) {
    const size_t end = text.find('\n', position);
    if (end == std::string::npos)
      damaged(rows_path, "expected " + std::to_string(shard.num_rows) + " lines, found " + std::to_string(r));
    if (start[r] >= start[r + 1]) damaged(path, "row_start does not increase at row " + std::to_string(r));
    TokenRow row;
    row.tokens.assign(tokens.begin() + start[r], tokens.begin() + start[r + 1]);
    row.loss_mask.assign(mask.begin() + start[r], mask.begin() + start[r + 1]);
    read_metadata(std::string_view(text).substr(position, end - position),
                  rows_path.string() + ":" + std::to_string(r + 1), row);
    rows.push_back(std::move(row));
    position = end + 1;
  }
  if (position != text.size())
    damaged(rows_path, "more lines than the " + std::to_string(shard.num_rows) + " rows of index.json");
}

void check_digest(const fs::path& file, const std::string& expected) {
  const std::string found = sha256_file(file);
  if (found != expected) damaged(file, "sha256 " + found + " differs from the one in index.json, " + expected);
}

// Takes a shared lock on the directory. A writer holds its lock only while it replaces the directory, so retrying
// suffices.
std::shared_ptr<const DirectoryLock> held(const fs::path& directory) {
  constexpr int kMaxTries = 500;
  using State = DirectoryLock::State;
  for (int tries = 0;; ++tries) {
    auto hold = std::make_shared<const DirectoryLock>(directory, DirectoryLock::Kind::kShared);
    std::error_code ec;
    if (hold->state() == State::kHeld || hold->state() == State::kUnsupported || !fs::is_directory(directory, ec))
      return hold;
    if (tries == kMaxTries)
      throw Error(ErrorKind::kNetwork, directory.string() + ": another process is replacing it: try again");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

ShardReader::ShardReader(const fs::path& directory) : hold_(held(directory)), directory_(directory) {
  const fs::path file = directory / "index.json";
  std::error_code ec;
  if (const fs::file_type type = fs::status(directory, ec).type(); !fs::exists(file, ec) && type != fs::file_type::none)
    throw Error(ErrorKind::kData, directory.string() + ": expected a directory that specdec data ingest wrote, found " +
                                      (type == fs::file_type::not_found   ? "nothing of this name"
                                       : type == fs::file_type::directory ? "one without index.json"
                                                                          : "a file"));
  index_ = shard_index_from_json(read_json(file), file.string());
  index_.validate(file.string());
  for (const ShardFile& shard : index_.shards) {
    for (const std::string& name : {shard.tokens, shard.rows})
      if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
        throw Error(ErrorKind::kData,
                    file.string() + ": shards: '" + name + "' is not a file name inside the directory");
    check_digest(directory / shard.tokens, shard.tokens_sha256);
    check_digest(directory / shard.rows, shard.rows_sha256);
  }
}

std::string ShardReader::digest() const { return sha256_file(directory_ / "index.json"); }

std::vector<TokenRow> ShardReader::rows(const std::string& split) const {
  if (split != "train" && split != "holdout" && split != "all")
    throw Error(ErrorKind::kUsage, "--split: expected train, holdout or all, found '" + split + "'");
  std::vector<TokenRow> rows;
  int64_t before = 0;  // number of rows in earlier shards
  for (const ShardFile& shard : index_.shards) {
    if (split == "all" || shard.split == split) {
      const size_t begin = rows.size();
      as_data_error([&] { append_rows(directory_, shard, index_.vocab_size, rows); });
      for (size_t r = begin; r < rows.size(); ++r) rows[r].index = before + static_cast<int64_t>(r - begin);
    }
    before += shard.num_rows;
  }
  return rows;
}

}  // namespace specdec::data
