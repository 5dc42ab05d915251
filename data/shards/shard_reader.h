// Reads the shards that `data ingest` wrote. It is the only part of data/ that distill and deploy may include.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "base/schema/shard_index.h"

namespace specdec::data {

class ShardReader {
 public:
  // Reads DIR/index.json and checks the digests of the files that it names. Throws Error(kData) if the directory is
  // damaged, and Error(kNetwork), the kind that means "try again", if another process keeps replacing the directory.
  explicit ShardReader(const std::filesystem::path& directory);

  // While the reader or a copy of the returned lock exists, publish_data (data/shards/shard_writer.h) does not replace
  // the directory.
  std::shared_ptr<const DirectoryLock> hold() const { return hold_; }

  const ShardIndex& index() const { return index_; }
  std::string digest() const;  // sha256 of index.json

  // Returns all rows of a split ("train", "holdout" or "all") in file order, loaded into memory at once. A shard is at
  // most 64 MiB of tokens. Throws Error(kData) for damaged rows, Error(kUsage) for another split.
  std::vector<TokenRow> rows(const std::string& split) const;

 private:
  std::shared_ptr<const DirectoryLock> hold_;
  ShardIndex index_;
  std::filesystem::path directory_;
};

}  // namespace specdec::data
