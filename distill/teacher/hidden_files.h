// Finds and checks the files of hidden states that an engine wrote while it served the target. vLLM's connector for
// `extract_hidden_states` writes one NAME.safetensors for each request, and speculators keeps the same files as
// hs_I.safetensors: token_ids I64 [L], and hidden_states [L, N, E] in F32, BF16 or F16, of which [:, N - 1] is the
// residual stream after the last layer, before the final norm (vLLM's aux layer id = number of layers). Files of other
// writers, whose last states have passed the final norm, are recognised. The names of the files mean nothing: a file
// belongs to every row whose tokens it begins with.
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
  uint64_t offset = 0;             // of hidden_states in the file
  int64_t tokens = 0, states = 0;  // L and N
  bool normed = false;             // the states have passed the final norm
};

struct HiddenFilesOptions {
  std::filesystem::path directory;
  int64_t hidden_size = 0;
  std::vector<float> norm;                 // what the final norm multiplies by, [hidden_size]
  std::function<void(double share)> step;  // called repeatedly; may throw
};

class HiddenFiles {
 public:
  // Reads every .safetensors file of the directory once and matches it with `rows`. Names that begin with a dot are
  // left out: copying programs write unfinished files under them. Throws Error(kData), naming the file, for a missing
  // tensor, another dtype or shape, more than 2^24 tokens or 1,024 states of a token, and for states that are not
  // finite; and if the directory has no such file or none that fits a row.
  HiddenFiles(const HiddenFilesOptions& options, const std::vector<const TokenRow*>& rows);

  // Returns the file with the states of one of the rows, or null.
  const HiddenFile* find(const TokenRow& row) const;
  const std::vector<HiddenFile>& files() const { return files_; }  // those that belong to a row
  // Files that belong to no row.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  std::vector<HiddenFile> files_;
  std::vector<std::string> unused_;
  std::unordered_map<std::string, size_t> of_tokens_;  // digest of a row's tokens but the last → index of the file
};

// Reads the last states of tokens [begin, end) as fp32 into `out`, [end - begin, hidden_size]. Throws Error(kData) if
// the file has become shorter.
void read_states(const HiddenFile& file, int64_t hidden_size, int64_t begin, int64_t end, float* out);

}  // namespace specdec::distill
