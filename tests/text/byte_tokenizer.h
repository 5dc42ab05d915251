// Tokenizers of single bytes, written to disk as Hugging Face files, for tests that need text but no trained
// vocabulary.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include "base/json.h"
#include "tests/base/scratch.h"
#include "text/tokenizer.h"

namespace specdec::testing {

constexpr int32_t kBos = 256, kEos = 257, kVocab = 258;  // two token ids and the vocabulary size of byte_tokenizer()

// Writes a byte-level BPE tokenizer without merges and with two special tokens. The keys of `vocab` are the printable
// characters by which GPT-2's tokenizer represents bytes.
inline void write_tokenizer(const std::filesystem::path& directory, const Json& vocab, int32_t bos, int32_t eos) {
  Json added = Json::array();
  for (const auto& [id, text] : {std::pair{bos, "<s>"}, std::pair{eos, "</s>"}})
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             start = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json bos_first = {{"type", "TemplateProcessing"},
                          {"single", {start, text}},
                          {"pair", {start, text, text}},
                          {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {bos}}, {"tokens", {"<s>"}}}}}}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", bos_first},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"vocab", vocab},
                            {"merges", Json::array()}}}};
  put(directory / "tokenizer.json", tokenizer.dump());
  put(directory / "tokenizer_config.json", R"({"bos_token":"<s>","eos_token":"</s>"})");
}

// Writes a tokenizer whose token ids are byte values.
inline void write_byte_tokenizer(const std::filesystem::path& directory) {
  const auto utf8 = [](int c) {
    std::string s;
    if (c < 0x80) return std::string(1, static_cast<char>(c));
    s.push_back(static_cast<char>(0xC0 | (c >> 6)));
    s.push_back(static_cast<char>(0x80 | (c & 63)));
    return s;
  };
  Json vocab = Json::object();
  int stand_in = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[utf8(printable ? byte : stand_in++)] = byte;
  }
  write_tokenizer(directory, vocab, kBos, kEos);
}

// Writes a tokenizer like Llama 2's, whose decoder strips the first space of a text. Its token ids are byte values,
// too: ASCII letters and signs are ordinary tokens, other bytes are byte tokens.
inline void write_space_stripping_tokenizer(const std::filesystem::path& directory) {
  write_byte_tokenizer(directory);
  Json file = Json::parse(get(directory / "tokenizer.json"));
  Json& vocab = file["model"]["vocab"] = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocab[byte == ' ' ? "▁" : byte > ' ' && byte < 127 ? std::string(1, static_cast<char>(byte)) : name] = byte;
  }
  file["model"]["byte_fallback"] = true;
  file["pre_tokenizer"] = nullptr;
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  put(directory / "tokenizer.json", file.dump());
}

inline const text::Tokenizer& space_stripping_tokenizer() {
  static const Scratch directory;
  static const text::Tokenizer tokenizer = [] {
    write_space_stripping_tokenizer(directory.root());
    return text::Tokenizer(directory.root());
  }();
  return tokenizer;
}

inline const text::Tokenizer& byte_tokenizer() {
  static const Scratch directory;
  static const text::Tokenizer tokenizer = [] {
    write_byte_tokenizer(directory.root());
    return text::Tokenizer(directory.root());
  }();
  return tokenizer;
}

}  // namespace specdec::testing
