// Makes small GGUF files of whole models for tests: metadata, a vocabulary and tensors without meaning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/gguf/gguf_file.h"
#include "tests/base/gguf/sample_gguf.h"
#include "tests/base/scratch.h"

namespace specdec::testing {

// A model that is written to a file when it is opened. Heads have 8 values, the embedding 32.
class SampleModel {
 public:
  static constexpr uint64_t kWidth = 32;

  explicit SampleModel(const std::string& architecture, uint32_t layers = 2) : prefix(architecture + ".") {
    text("general.architecture", architecture);
    number("embedding_length", kWidth);
    number("block_count", layers);
    number("feed_forward_length", 48);
    number("context_length", 4096);
    number("attention.head_count", 4);
    number("attention.head_count_kv", 2);
    real("attention.layer_norm_rms_epsilon", 1e-5F);
    file.add_f32("output_norm.weight", {kWidth});
  }

  // These add values; keys that end in a name without a dot in front, such as "block_count", get the architecture.
  void text(const std::string& key, const std::string& value) { file.add_text(key, value); }
  void number(const std::string& key, uint32_t value) { file.add_u32(prefix + key, value); }
  void real(const std::string& key, float value) { add(prefix + key, le<uint32_t>(6) + le(value)); }
  void id(const std::string& key, uint32_t value) { file.add_u32("tokenizer.ggml." + key + "_token_id", value); }
  void flag(const std::string& key, bool value) { add(key, le<uint32_t>(7) + std::string(1, value ? '\1' : '\0')); }
  void add(const std::string& key, const std::string& bytes) { file.metadata.emplace_back(key, bytes); }
  void remove(const std::string& key) {
    std::erase_if(file.metadata, [&](const auto& entry) { return entry.first == key; });
  }
  // Adds an F32 tensor of one dimension.
  void row(const std::string& name, const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += le(value);
    file.tensors.push_back({name, {values.size()}, 0, bytes, {}});
  }

  // Adds the vocabulary, with the embedding that belongs to it. Types: 1 normal, 2 unknown, 3 control, 4 user-defined,
  // 6 byte.
  void vocabulary(const std::string& model, const std::vector<std::string>& tokens, const std::vector<int32_t>& types) {
    text("tokenizer.ggml.model", model);
    file.add_texts("tokenizer.ggml.tokens", tokens);
    file.add_array<int32_t>("tokenizer.ggml.token_type", 5, types);
    file.add_f32("token_embd.weight", {kWidth, tokens.size()});
  }
  // Adds a vocabulary of single letters for byte-level BPE, and two control tokens.
  void few_tokens() {
    vocabulary("gpt2", {"a", "b", "ab", "<bos>", "<|im_end|>"}, {1, 1, 1, 3, 3});
    text("tokenizer.ggml.pre", "gpt-2");
    file.add_texts("tokenizer.ggml.merges", {"a b"});
  }

  gguf::GgufFile open(const fs::path& path) const {
    put(path, file.bytes());
    return gguf::GgufFile(path);
  }

  const std::string prefix;
  SampleGguf file;
};

}  // namespace specdec::testing
