// Makes config.json and generation_config.json from a GGUF file's metadata. Sources: gguf-py's constants.py (keys),
// llama.cpp's src/models/ (defaults that files leave out).
#include <cmath>

#include "base/gguf/architectures.h"
#include "base/gguf/model_files.h"
#include "base/gguf/rope_settings.h"
#include "base/gguf/vocabulary.h"

namespace specdec::gguf {

namespace {

// Returns the bytes of a tensor in memory when its blocks are packed for products on a CPU: codes of 5 bits take 6
// (engine/kernels/cpu/block_matrix.h).
uint64_t loaded_bytes(const Tensor& tensor) {
  constexpr std::pair<std::string_view, uint64_t> kPacked[] = {
      {"Q5_0", 26}, {"Q5_1", 28}, {"Q4_K", 148}, {"Q5_K", 212}};
  for (const auto& [name, bytes] : kPacked)
    if (name == tensor.type->name) return tensor.bytes / static_cast<uint64_t>(tensor.type->block_bytes) * bytes;
  return tensor.bytes;
}

// Returns the dtype in which activations are computed: that of most matrices if they are stored plainly.
const char* dtype_of(const GgufFile& file) {
  size_t matrices = 0, half = 0, single = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.shape.size() != 2) continue;
    ++matrices;
    half += std::string_view(tensor.type->name) == "F16";
    single += std::string_view(tensor.type->name) == "F32";
  }
  if (single == matrices) return "float32";
  return 2 * half > matrices ? "float16" : "bfloat16";
}

struct Shape {
  int64_t hidden, layers, heads, kv_heads, head_dim;
};

// Parses the sizes that every architecture has into config.json.
Shape write_shape(const GgufFile& file, const std::string& prefix, Json& out) {
  const auto integer = [&](const char* key, int64_t high, std::optional<int64_t> absent = {}) {
    return file.integer(prefix + key, 1, high, absent);
  };
  Shape shape{};
  shape.hidden = integer("embedding_length", 1 << 16);
  shape.layers = integer("block_count", 1024);
  shape.heads = integer("attention.head_count", 1024);
  shape.kv_heads = integer("attention.head_count_kv", 1024, shape.heads);
  if (!file.has(prefix + "attention.key_length") && shape.hidden % shape.heads != 0)
    refuse_model(file, prefix + "attention.key_length is missing, and the embedding length " +
                           std::to_string(shape.hidden) + " is no multiple of " + std::to_string(shape.heads) +
                           " heads");
  shape.head_dim = integer("attention.key_length", 1024, std::max<int64_t>(1, shape.hidden / shape.heads));
  const int64_t value_dim = integer("attention.value_length", 1024, shape.head_dim);
  if (value_dim != shape.head_dim)
    refuse_model(file, prefix + "attention.value_length: expected the length of keys, " +
                           std::to_string(shape.head_dim) + ", found " + std::to_string(value_dim));
  const Tensor& embedding = file.tensor("token_embd.weight");
  if (embedding.shape.size() != 2)
    refuse_model(
        file, "token_embd.weight: expected a matrix, found " + std::to_string(embedding.shape.size()) + " dimensions");
  out["vocab_size"] = embedding.shape.front();
  out["hidden_size"] = shape.hidden;
  out["intermediate_size"] = integer("feed_forward_length", 1 << 20);
  out["num_hidden_layers"] = shape.layers;
  out["num_attention_heads"] = shape.heads;
  out["num_key_value_heads"] = shape.kv_heads;
  out["head_dim"] = shape.head_dim;
  out["max_position_embeddings"] = integer("context_length", 1 << 30);
  out["rms_norm_eps"] = decimal(file.number(prefix + "attention.layer_norm_rms_epsilon", 0, 1));
  return shape;
}

// Returns for each layer whether it has a sliding window. In the file, a pattern is a flag for each layer, or a number
// n: every n-th layer has none.
std::vector<bool> read_windows(const GgufFile& file, const std::string& prefix, int64_t layers, int64_t usual) {
  const std::string key = prefix + "attention.sliding_window_pattern";
  const auto found = file.metadata().find(key);
  if (found != file.metadata().end())
    if (const auto* flags = std::get_if<std::vector<bool>>(&found->second)) {
      if (flags->size() != static_cast<size_t>(layers))
        refuse_model(file, key + ": expected a flag for each of the " + std::to_string(layers) + " layers, found " +
                               std::to_string(flags->size()));
      return *flags;
    }
  const int64_t step = file.integer(key, 1, 1024, usual);
  std::vector<bool> windows;
  for (int64_t layer = 0; layer < layers; ++layer) windows.push_back((layer + 1) % step != 0);
  return windows;
}

void write_gemma(const GgufFile& file, const std::string& prefix, const Shape& shape, Json& out) {
  const bool second = prefix == "gemma2.";
  const std::string window = prefix + "attention.sliding_window";
  if (!second && !file.has(window))
    refuse_model(file, window + " is missing; Gemma 3 without windows is not supported");
  out["sliding_window"] = file.integer(window, 1, 1 << 30, 4096);
  Json types = Json::array();
  for (const bool sliding : read_windows(file, prefix, shape.layers, second ? 2 : 6))
    types.push_back(sliding ? "sliding_attention" : "full_attention");
  out["layer_types"] = types;
  // The 27B models divide by the square root of the width of a head of the residual stream; files do not say so, and
  // llama.cpp knows these models by their number of layers.
  const bool largest = shape.layers == (second ? 46 : 62);
  out["query_pre_attn_scalar"] = largest ? shape.hidden / shape.heads : shape.head_dim;
  const auto soft_cap = [&](const char* key, double usual) {
    const double cap = decimal(file.number(prefix + key, 0, 1e6, usual));
    return cap == 0 ? Json() : Json(cap);
  };
  out["attn_logit_softcapping"] = second ? soft_cap("attn_logit_softcapping", 50) : Json();
  out["final_logit_softcapping"] = soft_cap("final_logit_softcapping", second ? 30 : 0);
  out["hidden_activation"] = "gelu_pytorch_tanh";
  if (!second) out["rope_local_base_freq"] = decimal(file.number(prefix + "rope.freq_base_swa", 1, 1e12, 10000));
}

void write_family(const GgufFile& file, const Architecture& row, const Shape& shape, Json& out) {
  const std::string prefix = std::string(row.name) + ".";
  if (row.attention_bias) out["attention_bias"] = file.tensors().contains("blk.0.attn_q.bias");
  if (row.mlp_bias) out["mlp_bias"] = file.tensors().contains("blk.0.ffn_down.bias");
  if (row.gemma) return write_gemma(file, prefix, shape, out);
  out["hidden_act"] = "silu";
  const std::string window = prefix + "attention.sliding_window";
  if (row.fused) {  // Phi-3: 0 means no window
    const int64_t size = file.integer(window, 0, 1 << 30, 0);
    out["sliding_window"] = size == 0 ? Json() : Json(size);
    return;
  }
  if (row.norms == Architecture::Norms::kAfter && file.integer(window, 0, 1 << 30, 0) != 0)
    refuse_model(file, window + ": OLMo 3, which has windows, is not supported");
  if (std::string_view(row.model_type) != "llama") out["use_sliding_window"] = false;
  if (std::string_view(row.model_type) != "smollm3") return;
  Json rotated = Json::array();
  for (int64_t layer = 0; layer < shape.layers; ++layer) rotated.push_back((layer + 1) % 4 != 0 ? 1 : 0);
  out["no_rope_layers"] = rotated;
}

}  // namespace

Json make_config(const GgufFile& file) {
  const Architecture& row = architecture_of(file);
  Json out = {{"architectures", Json::array({row.class_name})}, {"model_type", row.model_type}};
  const Shape shape = write_shape(file, std::string(row.name) + ".", out);
  out["tie_word_embeddings"] = !file.tensors().contains("output.weight");
  write_family(file, row, shape, out);
  write_rope(file, row, shape.head_dim, out);
  const Vocabulary vocabulary = read_vocabulary(file);
  if (static_cast<int64_t>(vocabulary.tokens.size()) != out["vocab_size"])
    refuse_model(file, "tokenizer.ggml.tokens: expected a token for each of the " + out["vocab_size"].dump() +
                           " rows of token_embd.weight, found " + std::to_string(vocabulary.tokens.size()));
  out["bos_token_id"] = vocabulary.bos ? Json(*vocabulary.bos) : Json();
  out["eos_token_id"] = vocabulary.eos ? Json(*vocabulary.eos) : Json();
  out["pad_token_id"] = vocabulary.pad ? Json(*vocabulary.pad) : Json();
  out["torch_dtype"] = dtype_of(file);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) bytes += loaded_bytes(tensor);
  out["quantization_config"] = {{"quant_method", "gguf"}, {"header", file.header_digest()}, {"bytes", bytes}};
  return out;
}

Json make_generation_config(const GgufFile& file) {
  const Vocabulary vocabulary = read_vocabulary(file);
  Json out = {{"eos_token_id", vocabulary.ends}};
  if (vocabulary.bos) out["bos_token_id"] = *vocabulary.bos;
  if (vocabulary.pad) out["pad_token_id"] = *vocabulary.pad;
  return out;
}

}  // namespace specdec::gguf
