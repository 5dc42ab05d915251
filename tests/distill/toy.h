// Fixtures for the tests of distill/: a target of a few thousand parameters with sharp predictions, rows of random
// tokens, and shards of such rows.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fingerprint.h"
#include "base/philox.h"
#include "base/schema/shard_index.h"
#include "base/sha256.h"
#include "engine/weights/weights.h"
#include "tests/base/scratch.h"

namespace specdec::testing {

inline model::DecoderConfig toy_config(int64_t layers = 3) {
  model::DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 24;
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_layers = layers;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 8;
  c.max_position = 48;
  c.tie_embeddings = true;
  c.layers.resize(static_cast<size_t>(layers));
  c.eos_ids = {2};
  c.bos_id = 1;
  return c;
}

// Returns a random model whose matrices are multiplied by `scale`. With scale 10 its predictions are sharp, with 1
// nearly uniform.
inline model::Decoder toy_decoder(int64_t layers = 3, uint64_t seed = 1, double scale = 10) {
  at::set_num_threads(1);
  model::Decoder d = model::random_decoder(toy_config(layers), seed, at::kCPU, at::kFloat);
  at::NoGradGuard guard;
  d.weights.visit(d.config, [&](const std::string&, at::Tensor& t) {
    if (t.dim() == 2) t.mul_(scale);
  });
  return d;
}

// Returns one row per conversation, with lengths in [low, high]; the first two tokens are the prompt.
inline std::vector<TokenRow> toy_rows(size_t count, uint64_t seed, uint64_t low = 6, uint64_t high = 20) {
  PhiloxStream random(seed, 77);
  std::vector<TokenRow> rows(count);
  for (size_t i = 0; i < count; ++i) {
    TokenRow& row = rows[i];
    row.id = row.conversation = "c" + std::to_string(seed) + "-" + std::to_string(i);
    row.prompt_tokens = 2;
    row.tokens.resize(low + random.below(high - low + 1));
    for (int32_t& t : row.tokens) t = static_cast<int32_t>(random.below(24));
    row.loss_mask.assign(row.tokens.size(), 1);
    row.loss_mask[0] = row.loss_mask[1] = 0;
  }
  return rows;
}

inline void toy_tokenizer(const fs::path& directory) {
  put(directory / "tokenizer.json", R"({"version": "1.0", "model": {"vocab": {"a": 0}}})");
  put(directory / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

inline ShardFile write_shard(const fs::path& directory, const std::string& split, const std::vector<TokenRow>& rows) {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  std::vector<int64_t> start = {0};
  std::string lines;
  ShardFile shard;
  for (const TokenRow& row : rows) {
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    mask.insert(mask.end(), row.loss_mask.begin(), row.loss_mask.end());
    start.push_back(static_cast<int64_t>(tokens.size()));
    for (const uint8_t m : row.loss_mask) shard.num_loss_tokens += m;
    lines +=
        Json{{"id", row.id}, {"conversation", row.conversation}, {"domain", ""}, {"prompt_tokens", row.prompt_tokens}}
            .dump() +
        "\n";
  }
  const auto n = static_cast<int64_t>(tokens.size()), r = static_cast<int64_t>(rows.size());
  shard.tokens = split + "-00000.safetensors";
  shard.rows = split + "-00000.jsonl";
  shard.split = split;
  shard.num_rows = r;
  shard.num_tokens = n;
  write_safetensors(directory / shard.tokens, {{"tokens", "I32", {n}, std::as_bytes(std::span(tokens))},
                                               {"loss_mask", "U8", {n}, std::as_bytes(std::span(mask))},
                                               {"row_start", "I64", {r + 1}, std::as_bytes(std::span(start))}});
  put(directory / shard.rows, lines);
  shard.tokens_sha256 = sha256_file(directory / shard.tokens);
  shard.rows_sha256 = sha256_file(directory / shard.rows);
  return shard;
}

inline void write_data(const fs::path& directory, const fs::path& target, const std::vector<TokenRow>& train,
                       const std::vector<TokenRow>& holdout) {
  fs::create_directories(directory);
  ShardIndex index;
  index.tokenizer_digest = tokenizer_digest(target);
  index.target_id = std::string(64, 'a');
  index.vocab_size = 24;
  index.written_by = "unknown";
  index.tool_version = "test";
  index.started = "2026-11-21T12:00:00Z";
  if (!train.empty()) index.shards.push_back(write_shard(directory, "train", train));
  if (!holdout.empty()) index.shards.push_back(write_shard(directory, "holdout", holdout));
  put(directory / "index.json", to_json(index).dump(1));
}

// Reads all tensors of a safetensors file, which must be F32 or I64.
inline std::map<std::string, at::Tensor> read_tensors(const fs::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, entry] : file.tensors()) {
    out[name] = at::empty(entry.shape, entry.dtype == "F32" ? at::kFloat : at::kLong);
    file.read(entry, {static_cast<std::byte*>(out[name].mutable_data_ptr()), out[name].nbytes()});
  }
  return out;
}

inline bool same_weights(model::Decoder& a, model::Decoder& b) {
  std::vector<at::Tensor> x, y;
  a.weights.visit(a.config, [&](const std::string&, at::Tensor& t) { x.push_back(t.detach()); });
  b.weights.visit(b.config, [&](const std::string&, at::Tensor& t) { y.push_back(t.detach()); });
  bool same = x.size() == y.size();
  for (size_t i = 0; same && i < x.size(); ++i) same = at::equal(x[i], y[i]);
  return same;
}

}  // namespace specdec::testing
