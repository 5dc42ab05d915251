#include "cli/demo/reference_drafts.h"

#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "base/file.h"
#include "base/philox.h"
#include "base/safetensors.h"
#include "data/shards/shard_reader.h"

namespace specdec::cli {

namespace {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

void copy_tokenizer(const fs::path& target, const fs::path& out) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                           "generation_config.json"})
    if (fs::exists(target / name)) write_file_atomic(out / name, read_file(target / name));
}

void write_model(const fs::path& out, const Json& config, const fs::path& target,
                 const std::vector<NamedTensor>& tensors) {
  replace_directory(out, [&](const fs::path& tmp) {
    std::vector<TensorToWrite> writes;
    for (const NamedTensor& t : tensors) writes.push_back({t.name, "F32", t.shape, std::as_bytes(std::span(t.values))});
    write_safetensors(tmp / "model.safetensors", writes);
    write_file_atomic(tmp / "config.json", config.dump(1) + "\n");
    copy_tokenizer(target, tmp);
  });
}

// Returns the tensors of a one-layer Llama with the dimensions in config `c`, each filled by `fill(name, count)`.
std::vector<NamedTensor> one_layer(const Json& c,
                                   const std::function<std::vector<float>(const std::string&, size_t)>& fill) {
  const int64_t v = c["vocab_size"], e = c["hidden_size"], i = c["intermediate_size"], d = c["head_dim"];
  const int64_t q = d * c["num_attention_heads"].get<int64_t>(), kv = d * c["num_key_value_heads"].get<int64_t>();
  const std::string layer = "model.layers.0.";
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", {v, e}, {}},
                                      {layer + "input_layernorm.weight", {e}, {}},
                                      {layer + "self_attn.q_proj.weight", {q, e}, {}},
                                      {layer + "self_attn.k_proj.weight", {kv, e}, {}},
                                      {layer + "self_attn.v_proj.weight", {kv, e}, {}},
                                      {layer + "self_attn.o_proj.weight", {e, q}, {}},
                                      {layer + "post_attention_layernorm.weight", {e}, {}},
                                      {layer + "mlp.gate_proj.weight", {i, e}, {}},
                                      {layer + "mlp.up_proj.weight", {i, e}, {}},
                                      {layer + "mlp.down_proj.weight", {e, i}, {}},
                                      {"model.norm.weight", {e}, {}}};
  if (!c["tie_word_embeddings"].get<bool>()) tensors.push_back({"lm_head.weight", {v, e}, {}});
  for (NamedTensor& t : tensors) {
    size_t count = 1;
    for (int64_t n : t.shape) count *= static_cast<size_t>(n);
    t.values = fill(t.name, count);
  }
  return tensors;
}

std::vector<double> bigram_counts(const fs::path& data, size_t v) {
  std::vector<double> counts(v * v, 0.0);
  for (const TokenRow& row : data::ShardReader(data).rows("train"))
    for (size_t t = 1; t < row.tokens.size(); ++t)
      if (row.loss_mask[t])
        counts[static_cast<size_t>(row.tokens[t - 1]) * v + static_cast<size_t>(row.tokens[t])] += 1;
  return counts;
}

}  // namespace

void write_bigram_draft(const fs::path& data, const fs::path& target, const fs::path& out) {
  const Json base = read_json(target / "config.json", ErrorKind::kModel);
  const auto vocab = static_cast<size_t>(json_int(base, "vocab_size", {2, 8192}, "config.json", ErrorKind::kModel));
  const std::vector<double> counts = bigram_counts(data, vocab);
  std::vector<double> unigram(vocab, 1e-2);
  double total = 1e-2 * static_cast<double>(vocab);
  for (size_t x = 0; x < vocab; ++x)
    for (size_t y = 0; y < vocab; ++y) {
      unigram[y] += counts[x * vocab + y];
      total += counts[x * vocab + y];
    }
  Json c = base;
  c["hidden_size"] = vocab;
  c["num_hidden_layers"] = c["num_attention_heads"] = c["num_key_value_heads"] = 1;
  c["head_dim"] = c["intermediate_size"] = 2;
  c["tie_word_embeddings"] = false;
  c["dtype"] = c["torch_dtype"] = "float32";
  // RMSNorm turns a one-hot row into a row with sqrt(V) / sqrt(1 + V·eps) in one element and 0 elsewhere, so the output
  // matrix is divided by this factor.
  const double eps = json_double(base, "rms_norm_eps", {0, 1}, "config.json", ErrorKind::kModel);
  const double scale = std::sqrt(static_cast<double>(vocab) / (1.0 + static_cast<double>(vocab) * eps));
  const auto fill = [&](const std::string& name, size_t n) {
    const bool norm = name.find("norm") != std::string::npos;
    std::vector<float> values(n, norm ? 1.0f : 0.0f);
    if (name == "model.embed_tokens.weight")
      for (size_t x = 0; x < vocab; ++x) values[x * vocab + x] = 1.0f;
    if (name == "lm_head.weight")
      for (size_t x = 0; x < vocab; ++x) {
        double row = 1.0;
        for (size_t y = 0; y < vocab; ++y) row += counts[x * vocab + y];
        for (size_t y = 0; y < vocab; ++y)
          values[y * vocab + x] =
              static_cast<float>(std::log((counts[x * vocab + y] + unigram[y] / total) / row) / scale);
      }
    return values;
  };
  write_model(out, c, target, one_layer(c, fill));
}

void write_untrained_draft(const fs::path& target, uint64_t seed, const fs::path& out) {
  Json c = read_json(target / "config.json", ErrorKind::kModel);
  c["num_hidden_layers"] = 1;
  c["dtype"] = c["torch_dtype"] = "float32";
  uint64_t stream = 0;
  const auto fill = [&](const std::string& name, size_t n) {
    std::vector<float> values(n, 1.0f);
    if (name.find("norm") != std::string::npos) return values;
    PhiloxStream random(seed, ++stream);
    for (float& x : values)  // normally distributed, by Box–Muller
      x = static_cast<float>(0.02 * std::sqrt(-2.0 * std::log(random.uniform())) *
                             std::cos(2.0 * std::numbers::pi * random.uniform()));
    return values;
  };
  write_model(out, c, target, one_layer(c, fill));
}

}  // namespace specdec::cli
