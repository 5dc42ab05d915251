// A small Hugging Face checkpoint that llama.cpp could run: configuration, weights and tokenizers.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/base/scratch.h"

namespace specdec::testing {

// Llama with two layers, four heads of 8 values for queries and two for keys.
inline Json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 16},
          {"hidden_size", 32},
          {"intermediate_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"bos_token_id", 7},
          {"eos_token_id", {8, 9}},
          {"torch_dtype", "float32"}};
}

inline Json added_token(int id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// Byte-level BPE with 12 tokens, divided as GPT-2's; BOS before every text.
inline Json byte_level_tokenizer() {
  const Json bos = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {{"version", "1.0"},
          {"added_tokens",
           {added_token(7, "<bos>", true), added_token(8, "<eos>", true), added_token(9, "<turn>", true),
            added_token(10, "<tool>", false)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {bos, text}},
            {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {7}}, {"tokens", {"<bos>"}}}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", {{"a", 0}, {"b", 1}, {"\u0120", 2}, {"ab", 3}, {"\u0120a", 4}, {"\u0120ab", 5}, {"\n", 6}}},
            {"merges",
             Json::array({Json::array({"a", "b"}), Json::array({"\u0120", "a"}), Json::array({"\u0120", "ab"})})}}}};
}

// BPE with byte fallback, as made from a SentencePiece model of 265 tokens: 3 special ones, 256 bytes, and 6 pieces.
inline Json sentencepiece_tokenizer() {
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char text[7];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
    vocabulary[text] = 3 + byte;
  }
  int id = 259;
  for (const char* piece : {"ab", "\u2581a", "\u2581ab", "\u2581", "a", "b"}) vocabulary[piece] = id++;
  return {{"version", "1.0"},
          {"added_tokens", {added_token(0, "<unk>", true), added_token(1, "<s>", true), added_token(2, "</s>", true)}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocabulary},
            {"merges", {"a b", "\u2581 a", "\u2581 ab", "\u2581a b"}}}}};
}

// Returns the value at `index` of a sample weight; every index has another value.
inline float sample_weight(size_t number, size_t index) {
  return static_cast<float>(static_cast<int>(index % 97) - 48) / 64 + static_cast<float>(number) / 1024;
}

// Names and shapes of the parameters of llama_config(), in the order of their numbers.
inline std::vector<std::pair<std::string, std::vector<int64_t>>> llama_parameters(int64_t vocab = 16) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> out = {
      {"model.embed_tokens.weight", {vocab, 32}}, {"model.norm.weight", {32}}, {"lm_head.weight", {vocab, 32}}};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string before = "model.layers." + std::to_string(layer) + ".";
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, std::vector<int64_t>>>{{"input_layernorm", {32}},
                                                                   {"post_attention_layernorm", {32}},
                                                                   {"self_attn.q_proj", {32, 32}},
                                                                   {"self_attn.k_proj", {16, 32}},
                                                                   {"self_attn.v_proj", {16, 32}},
                                                                   {"self_attn.o_proj", {32, 32}},
                                                                   {"mlp.gate_proj", {64, 32}},
                                                                   {"mlp.up_proj", {64, 32}},
                                                                   {"mlp.down_proj", {32, 64}}})
      out.emplace_back(before + name + ".weight", shape);
  }
  return out;
}

// Writes the checkpoint with the weights sample_weight(number, index) in fp32.
inline void write_checkpoint(const fs::path& directory, const Json& config = llama_config(),
                             const Json& tokenizer = byte_level_tokenizer()) {
  put(directory / "config.json", config.dump());
  put(directory / "tokenizer.json", tokenizer.dump());
  put(directory / "tokenizer_config.json",
      R"({"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": "{{ messages[0].content }}"})");
  std::vector<std::vector<float>> values;
  const auto parameters = llama_parameters(config["vocab_size"].get<int64_t>());
  for (size_t number = 0; number < parameters.size(); ++number) {
    size_t count = 1;
    for (const int64_t d : parameters[number].second) count *= static_cast<size_t>(d);
    auto& list = values.emplace_back(count);
    for (size_t i = 0; i < count; ++i) list[i] = sample_weight(number, i);
  }
  std::vector<TensorToWrite> tensors;
  for (size_t number = 0; number < parameters.size(); ++number)
    tensors.push_back({parameters[number].first, "F32", parameters[number].second,
                       std::as_bytes(std::span<const float>(values[number]))});
  write_safetensors(directory / "model.safetensors", tensors);
}

}  // namespace specdec::testing
