// Writes the files that ShardReader reads: token shards, row metadata, index.json. base/schema/shard_index.h defines
// the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::data {

// Tokens per shard: 64 MiB of int32. A row is never split over two shards.
inline constexpr int64_t kMaxShardTokens = 16 << 20;

// Collects rows and writes "<split>-00000.safetensors" and "<split>-00000.jsonl" into a directory that must exist
// (usually the temporary one of replace_directory). Every file is fsynced. Memory: one shard per split.
class ShardWriter {
 public:
  explicit ShardWriter(std::filesystem::path directory, int64_t max_shard_tokens = kMaxShardTokens);

  // split: "train" | "holdout". Throws Error(kInternal) for a row that breaks the format (mask length, empty row,
  // prompt_tokens outside the row), Error(kIo) if a shard cannot be written.
  void add(const std::string& split, const TokenRow& row);
  // Writes the buffered rows. Returns the shards of "train", then those of "holdout", each in order of writing.
  std::vector<ShardFile> finish();

 private:
  struct Buffer {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> loss_mask;
    std::vector<int64_t> row_start{0};
    std::string rows;  // the rows' metadata as JSONL
    std::vector<ShardFile> written;
  };
  void flush(const std::string& split, Buffer& buffer);

  std::filesystem::path directory_;
  int64_t max_shard_tokens_;
  std::map<std::string, Buffer> buffers_;
};

// The file in an output of `data regenerate` that keeps its settings (data/regenerate/regenerate.h).
inline constexpr const char* kRegeneratedFile = "regenerated.json";

// Throws what check_output_directory (base/output_directory.h) throws. Publishing deletes the old content of the
// destination, so it must be new, empty, or exactly the output of an earlier `specdec data`.
void require_replaceable(const std::filesystem::path& destination);

// Builds a data directory beside `destination` and publishes it by one rename. A killed run leaves the old directory or
// none, never a partial one. Throws Error(kNetwork), and leaves the old directory, if another process reads
// the old directory (ShardReader::hold()) before or after `fill`.
void publish_data(const std::filesystem::path& destination,
                  const std::function<void(const std::filesystem::path& directory)>& fill);
// Publishes a directory of shards: fill(directory) writes shards and other files and returns the index, which is
// validated and written last.
void publish_shards(const std::filesystem::path& destination,
                    const std::function<ShardIndex(const std::filesystem::path& directory)>& fill);

}  // namespace specdec::data
