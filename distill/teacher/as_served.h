// A target as a teacher that answers as it serves. A draft is verified by the target as it serves, so a target of a
// GGUF file, which serves on a CPU with the file's own blocks, teaches with these blocks, and by the passes that serve.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "distill/rows/batcher.h"
#include "engine/cache/block_pool.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

// Returns whether a teacher on `device` keeps its blocks. `flag` is the value of --dtype; any value but "auto"
// dequantises them.
bool runs_as_served(const std::string& flag, const model::DecoderConfig& config, at::Device device);
// Loads the whole target in the dtype of `flag`, or as it serves. In the latter case everything but the blocks is fp32,
// and so are the teacher's hidden states and logits. Throws what model::load_decoder() throws.
model::Decoder load_teacher(const std::filesystem::path& directory, at::Device device, const std::string& flag);

// Runs the texts of batches with the passes of a server (model::forward() of SequencePart). Texts that begin alike
// share keys and values: a long system prompt is read once, and not for every conversation.
class ServedTarget {
 public:
  // Bytes for the keys and values of all texts, unless a single text needs more.
  static constexpr int64_t kCacheBytes = int64_t{256} << 20;
  // Returns an object for a target that keeps its blocks, null for others, whose texts run faster side by side.
  static std::shared_ptr<ServedTarget> of(std::shared_ptr<const model::Decoder> target);
  // Returns the hidden states after the last layer at batch.rows: [R, E] fp32. The batch must have no branches.
  at::Tensor hidden_rows(const Batch& batch);

 private:
  explicit ServedTarget(std::shared_ptr<const model::Decoder> target) : target_(std::move(target)) {}
  // Returns a pool with room for a text of `tokens` tokens.
  const std::shared_ptr<model::BlockPool>& pool_for(size_t tokens);
  std::shared_ptr<const model::Decoder> target_;
  std::shared_ptr<model::BlockPool> pool_;
};

}  // namespace specdec::distill
