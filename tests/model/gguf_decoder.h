// A GGUF file of a small decoder with random weights, for tests.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/gguf/blocks.h"
#include "base/gguf/gguf_file.h"
#include "base/gguf/model_files.h"
#include "base/philox.h"
#include "tests/base/gguf/sample_model.h"
#include "tests/base/scratch.h"

namespace specdec::testing {

inline constexpr int64_t kWidth = 256, kInner = 512, kVocab = 96, kHeads = 4, kKvHeads = 2, kHeadDim = 64;

// Writes a GGUF file of a decoder of two layers and keeps what each parameter must become.
class WrittenModel {
 public:
  // `types` are given to the matrices in turn. `head` is the type of a head that is not tied to the embedding.
  WrittenModel(const std::string& architecture, std::vector<std::string> types, const std::string& embedding,
               const std::string& head = "", const std::string& norms = "F32")
      : gemma_(architecture == "gemma3"), permuted_(architecture == "llama"), types_(std::move(types)) {
    file_.add_text("general.architecture", architecture);
    const auto number = [&](const std::string& key, int64_t value) {
      file_.add_u32(architecture + "." + key, static_cast<uint32_t>(value));
    };
    number("embedding_length", kWidth), number("block_count", 2), number("feed_forward_length", kInner);
    number("context_length", 4096), number("attention.head_count", kHeads);
    number("attention.head_count_kv", kKvHeads), number("attention.key_length", kHeadDim);
    number("attention.value_length", kHeadDim), number("attention.sliding_window", 512);
    file_.metadata.emplace_back(architecture + ".attention.layer_norm_rms_epsilon", le<uint32_t>(6) + le(1e-5F));
    file_.add_text("tokenizer.ggml.model", "gpt2");
    std::vector<std::string> tokens;
    for (int64_t i = 0; i < kVocab; ++i) tokens.push_back("t" + std::to_string(i));
    file_.add_texts("tokenizer.ggml.tokens", tokens);
    matrix("token_embd.weight", "model.embed_tokens.weight", kVocab, kWidth, embedding);
    for (int l = 0; l < 2; ++l) add_layer("blk." + std::to_string(l) + ".", "model.layers." + std::to_string(l) + ".");
    norm("output_norm.weight", "model.norm.weight", kWidth);
    if (!head.empty()) matrix("output.weight", "lm_head.weight", kVocab, kWidth, head);
    if (norms != "F32") {  // a norm in blocks, which no converter writes
      SampleGguf::Entry& last = file_.tensors[file_.tensors.size() - (head.empty() ? 1 : 2)];
      last.type = gguf::find_type(norms)->id;
      last.data.resize(static_cast<size_t>(kWidth / 32 * 34));
    }
    put(directory_ / "model.gguf", file_.bytes());
    const gguf::GgufFile opened(directory_ / "model.gguf");
    put(directory_ / "config.json", gguf::make_config(opened).dump());
  }

  const std::filesystem::path& directory() const { return directory_.root(); }
  const at::Tensor& expected(const std::string& name) const { return expected_.at(name); }

 private:
  void add_layer(const std::string& from, const std::string& to) {
    const auto next = [&]() { return types_[count_++ % types_.size()]; };
    norm(from + "attn_norm.weight", to + "input_layernorm.weight", kWidth);
    matrix(from + "attn_q.weight", to + "self_attn.q_proj.weight", kHeads * kHeadDim, kWidth, next(), kHeads);
    matrix(from + "attn_k.weight", to + "self_attn.k_proj.weight", kKvHeads * kHeadDim, kWidth, next(), kKvHeads);
    matrix(from + "attn_v.weight", to + "self_attn.v_proj.weight", kKvHeads * kHeadDim, kWidth, next());
    matrix(from + "attn_output.weight", to + "self_attn.o_proj.weight", kWidth, kHeads * kHeadDim, next());
    matrix(from + "ffn_gate.weight", to + "mlp.gate_proj.weight", kInner, kWidth, next());
    matrix(from + "ffn_up.weight", to + "mlp.up_proj.weight", kInner, kWidth, next());
    matrix(from + "ffn_down.weight", to + "mlp.down_proj.weight", kWidth, kInner, next());
    norm(from + "ffn_norm.weight",
         to + (gemma_ ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"), kWidth);
    if (!gemma_) return;
    norm(from + "post_attention_norm.weight", to + "post_attention_layernorm.weight", kWidth);
    norm(from + "post_ffw_norm.weight", to + "post_feedforward_layernorm.weight", kWidth);
    norm(from + "attn_q_norm.weight", to + "self_attn.q_norm.weight", kHeadDim);
    norm(from + "attn_k_norm.weight", to + "self_attn.k_norm.weight", kHeadDim);
  }

  void norm(const std::string& name, const std::string& parameter, int64_t n) {
    std::string bytes;
    const at::Tensor values = at::empty({n}, at::kFloat);
    for (int64_t i = 0; i < n; ++i) {  // multiples of 1/64, which Gemma's 1 + w keeps exactly
      const auto value = static_cast<float>(random_.below(64)) / 64.0F;
      values[i] = value;
      bytes += le(gemma_ ? 1.0F + value : value);
    }
    file_.tensors.push_back({name, {static_cast<uint64_t>(n)}, 0, bytes, {}});
    expected_.emplace(parameter, values);
  }

  // Adds a matrix of random blocks. With `heads`, its rows lie in the order that llama.cpp's converter gives them.
  void matrix(const std::string& name, const std::string& parameter, int64_t n, int64_t k, const std::string& type,
              int64_t heads = 0) {
    const gguf::TensorType& stored = *gguf::find_type(type);
    const at::Tensor wide = at::empty({n, k}, at::kFloat);
    std::string bytes(static_cast<size_t>(n * k / stored.block_values * stored.block_bytes), '\0');
    const auto row_bytes = static_cast<size_t>(k / stored.block_values * stored.block_bytes);
    for (int64_t i = 0; i < n; ++i) {
      int64_t row = i;
      if (heads > 0 && permuted_) {
        const int64_t d = n / heads, in = i % d;
        row = i - in + in % (d / 2) * 2 + in / (d / 2);
      }
      char* at = bytes.data() + static_cast<size_t>(row) * row_bytes;
      fill(type, stored, k, at);
      gguf::dequantise(stored, {reinterpret_cast<const std::byte*>(at), row_bytes},
                       {wide.data_ptr<float>() + i * k, static_cast<size_t>(k)});
    }
    file_.tensors.push_back({name, {static_cast<uint64_t>(k), static_cast<uint64_t>(n)}, stored.id, bytes, {}});
    expected_.emplace(parameter, wide);
  }

  // Fills a row with random blocks whose weights are at most about 0.2.
  void fill(const std::string& type, const gguf::TensorType& stored, int64_t k, char* row) {
    if (stored.block_values == 1) {
      std::vector<float> values(static_cast<size_t>(k));
      for (float& value : values) value = static_cast<float>(random_.uniform() * 0.2 - 0.1);
      return gguf::quantise(stored, values,
                            {reinterpret_cast<std::byte*>(row), static_cast<size_t>(k * stored.block_bytes)});
    }
    const bool k_type = stored.block_values == 256, ends = type == "Q6_K";
    for (int64_t b = 0; b < k / stored.block_values; ++b, row += stored.block_bytes) {
      for (int64_t i = 0; i < stored.block_bytes; ++i) row[i] = static_cast<char>(random_.below(256));
      // Scales of about 2^-14 for codes that are multiplied by scales of up to 127, else of 2^-9.
      const auto half = static_cast<uint16_t>((k_type ? 1U : 6U) << 10 | random_.below(1024));
      std::memcpy(row + (ends ? 208 : 0), &half, sizeof half);
      if (type.ends_with("_1") || (k_type && !ends)) std::memcpy(row + 2, &half, sizeof half);
    }
  }

  bool gemma_, permuted_;
  std::vector<std::string> types_;
  size_t count_ = 0;
  PhiloxStream random_{5, 6};
  SampleGguf file_;
  Scratch directory_;
  std::map<std::string, at::Tensor> expected_;
};

}  // namespace specdec::testing
