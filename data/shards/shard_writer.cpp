#include "data/shards/shard_writer.h"

#include <memory>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/format.h"
#include "base/output_directory.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "data/shards/ingest_report.h"

namespace specdec::data {

namespace {

constexpr int64_t kPartialAgeSeconds = 24 * 3600;

Json row_metadata(const TokenRow& row) {
  Json meta = {{"id", row.id}, {"conversation", row.conversation}, {"prompt_tokens", row.prompt_tokens}};
  if (!row.domain.empty()) meta["domain"] = row.domain;
  if (row.has_sampling) {
    meta["sampling"] = {{"temperature", row.sampling.temperature},
                        {"top_k", row.sampling.top_k},
                        {"top_p", row.sampling.top_p},
                        {"min_p", row.sampling.min_p}};
  }
  if (!row.calls.empty()) meta["calls"] = to_json(row.calls);
  return meta;
}

template <class T>
TensorToWrite as_tensor(const char* name, const char* dtype, const std::vector<T>& values) {
  return {name, dtype, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values))};
}

// Takes an exclusive lock on a directory, if it exists, so that it has no readers while it is replaced. Readers keep
// the files that they have opened, but would find other files under the same names afterwards.
std::unique_ptr<const DirectoryLock> locked(const fs::path& directory) {
  auto lock = std::make_unique<const DirectoryLock>(directory, DirectoryLock::Kind::kExclusive);
  if (lock->state() == DirectoryLock::State::kTaken)
    throw Error(ErrorKind::kNetwork, "--out " + directory.string() +
                                         ": another process reads these data (validate, distill): wait until it is "
                                         "done, or give a new directory");
  return lock;
}

}  // namespace

ShardWriter::ShardWriter(fs::path directory, int64_t max_shard_tokens)
    : directory_(std::move(directory)), max_shard_tokens_(max_shard_tokens) {}

void ShardWriter::add(const std::string& split, const TokenRow& row) {
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (split != "train" && split != "holdout")
    throw Error(ErrorKind::kInternal, "shard writer: unknown split '" + split + "'");
  if (length == 0 || row.loss_mask.size() != row.tokens.size() || row.prompt_tokens < 0 || row.prompt_tokens > length)
    throw Error(ErrorKind::kInternal, "shard writer: row '" + row.id + "' has " + std::to_string(length) + " tokens, " +
                                          std::to_string(row.loss_mask.size()) + " mask values, prompt_tokens " +
                                          std::to_string(row.prompt_tokens));
  Buffer& b = buffers_[split];
  if (!b.tokens.empty() && static_cast<int64_t>(b.tokens.size()) + length > max_shard_tokens_) flush(split, b);
  b.tokens.insert(b.tokens.end(), row.tokens.begin(), row.tokens.end());
  b.loss_mask.insert(b.loss_mask.end(), row.loss_mask.begin(), row.loss_mask.end());
  b.row_start.push_back(static_cast<int64_t>(b.tokens.size()));
  b.rows += canonical_json(row_metadata(row)) + "\n";
}

void ShardWriter::flush(const std::string& split, Buffer& b) {
  const std::string name = format("%s-%05zu", split.c_str(), b.written.size());
  ShardFile shard;
  shard.split = split;
  shard.tokens = name + ".safetensors";
  shard.rows = name + ".jsonl";
  shard.num_rows = static_cast<int64_t>(b.row_start.size()) - 1;
  shard.num_tokens = static_cast<int64_t>(b.tokens.size());
  for (uint8_t m : b.loss_mask) shard.num_loss_tokens += m;
  // The widest dtype comes first, so that every tensor is aligned in the file.
  write_safetensors(directory_ / shard.tokens,
                    {as_tensor("row_start", "I64", b.row_start), as_tensor("tokens", "I32", b.tokens),
                     as_tensor("loss_mask", "U8", b.loss_mask)});
  OutputFile rows(directory_ / shard.rows);
  rows.write(b.rows);
  rows.finish();
  shard.tokens_sha256 = sha256_file(directory_ / shard.tokens);
  shard.rows_sha256 = sha256_hex(b.rows);
  std::vector<ShardFile> written = std::move(b.written);
  written.push_back(std::move(shard));
  b = Buffer{};
  b.written = std::move(written);
}

std::vector<ShardFile> ShardWriter::finish() {
  std::vector<ShardFile> all;
  for (const char* split : {"train", "holdout"}) {
    const auto it = buffers_.find(split);
    if (it == buffers_.end()) continue;
    if (!it->second.tokens.empty()) flush(split, it->second);
    all.insert(all.end(), it->second.written.begin(), it->second.written.end());
  }
  buffers_.clear();
  return all;
}

void require_replaceable(const fs::path& destination) {
  const auto writes = [](const std::string& name) {
    return name.starts_with("train-") || name.starts_with("holdout-") || name == "index.json" ||
           name == kIngestReportFile || name == kRegeneratedFile || name == "rejects.jsonl" || name == "records.jsonl";
  };
  check_output_directory(destination, {.flag = "--out",
                                       .command = "specdec data",
                                       .results = {{"index.json", "data"}, {kIngestReportFile, "ingest"}},
                                       .writes = writes});
}

void publish_data(const fs::path& destination, const std::function<void(const fs::path&)>& fill) {
  // "out/" has no file name of its own. The temporary directory must be beside it, not inside it.
  fs::path target = fs::absolute(destination).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  require_replaceable(target);
  make_directories(target.parent_path());
  remove_partials(target.parent_path(), kPartialAgeSeconds);
  locked(target);  // fails before hours of work if another process reads the directory
  std::unique_ptr<const DirectoryLock> alone;
  replace_directory(target, [&](const fs::path& directory) {
    fill(directory);
    alone = locked(target);
  });
}

void publish_shards(const fs::path& destination, const std::function<ShardIndex(const fs::path&)>& fill) {
  publish_data(destination, [&](const fs::path& directory) {
    const ShardIndex index = fill(directory);
    index.validate("index.json");
    write_file_atomic(directory / "index.json", to_json(index).dump(1) + "\n");
  });
}

}  // namespace specdec::data
