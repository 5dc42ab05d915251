// A tokenizer whose tokens are the 256 single bytes, for fuzz targets that need a vocabulary.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "text/tokenizer.h"

namespace specdec::fuzz {

inline constexpr int32_t kEos = 256, kVocab = 257;

inline const text::Tokenizer& byte_tokenizer() {
  static const text::Tokenizer tokenizer = [] {
    std::string folder = (std::filesystem::temp_directory_path() / "specdec-fuzz-XXXXXX").string();
    if (!::mkdtemp(folder.data())) std::abort();
    Json vocab = Json::object();
    for (int byte = 0, stand_in = 256; byte < 256; ++byte) {  // GPT-2's printable character for each byte
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int c = printable ? byte : stand_in++;
      vocab[c < 0x80 ? std::string(1, static_cast<char>(c))
                     : std::string{static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))}] = byte;
    }
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    const Json end = {{"id", kEos},      {"content", "</s>"},   {"single_word", false}, {"lstrip", false},
                      {"rstrip", false}, {"normalized", false}, {"special", true}};
    const Json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array({end})},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level},
                       {"post_processor", nullptr},
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
    std::ofstream(folder + "/tokenizer.json") << file.dump();
    std::ofstream(folder + "/tokenizer_config.json") << R"({"eos_token":"</s>"})";
    text::Tokenizer made{std::filesystem::path(folder)};
    std::filesystem::remove_all(folder);
    return made;
  }();
  return tokenizer;
}

}  // namespace specdec::fuzz
