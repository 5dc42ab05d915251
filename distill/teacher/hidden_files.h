// Finds and checks files of hidden states that a serving engine (vLLM) wrote for requests to the target. vLLM's
// connector for `extract_hidden_states` writes one NAME.safetensors for each request; speculators keeps the same files
// as hs_I.safetensors. A file has token_ids I64 [L], and hidden_states [L, N, E] in F32, BF16 or F16. hidden_states[:,
// N - 1] is the residual stream after the last layer, before the final norm (vLLM's aux layer id = number of layers).
// Files of other writers, which store this state after the final norm, are recognised. File names do not matter: a file
// belongs to every row whose tokens are a prefix of the file's tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::distill {

struct HiddenFile {
  std::filesystem::path path;
  std::string dtype;               // "F32", "BF16" or "F16"
  uint64_t offset = 0;             // offset of the tensor hidden_states in the file, in bytes
  int64_t tokens = 0, states = 0;  // L and N of the tensor's shape [L, N, E]
  bool normed = false;             // the states are after the final norm, not before it
};

struct HiddenFilesOptions {
  std::filesystem::path directory;
  int64_t hidden_size = 0;
  std::vector<float> norm;                 // weights of the final norm, [hidden_size]
  std::function<void(double share)> step;  // called repeatedly with the fraction of the work done; may throw
};

class HiddenFiles {
 public:
  // Reads every .safetensors file of the directory once and matches it with `rows`. Files whose names begin with a dot
  // are ignored, because copying programs use such names for unfinished files. Throws Error(kData), naming the file,
  // for a missing tensor, another dtype or shape, more than 2^24 tokens, more than 1,024 states per token, or states
  // that are not finite. Throws Error(kData) also if no file of the directory belongs to a row.
  HiddenFiles(const HiddenFilesOptions& options, const std::vector<const TokenRow*>& rows);

  // Returns the file that has the states of `row`, or null.
  const HiddenFile* find(const TokenRow& row) const;
  const std::vector<HiddenFile>& files() const { return files_; }  // the files that belong to a row
  // Names of the files that belong to no row.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  std::vector<HiddenFile> files_;
  std::vector<std::string> unused_;
  std::unordered_map<std::string, size_t> of_tokens_;  // digest of a row's tokens except the last → index of the file
};

// Reads the last states of tokens [begin, end) as fp32 into `out`, [end - begin, hidden_size]. Throws Error(kData) if
// the file has become shorter.
void read_states(const HiddenFile& file, int64_t hidden_size, int64_t begin, int64_t end, float* out);

}  // namespace specdec::distill
