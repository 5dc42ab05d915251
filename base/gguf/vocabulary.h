// The tokens of a GGUF file and their kinds. Source of the keys, defaults and rules: llama.cpp's llama-vocab.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/gguf/gguf_file.h"

namespace specdec::gguf {

enum class TokenKind : uint8_t { kUndefined, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Vocabulary {
  enum class Model { kBytePairs, kSentencePiece };  // tokenizer.ggml.model "gpt2" and "llama"
  Model model = Model::kBytePairs;
  std::vector<std::string> tokens;  // by id; valid UTF-8, all different
  std::vector<TokenKind> kinds;
  std::unordered_map<std::string, int64_t> ids;  // by token
  std::optional<int64_t> bos, eos, unknown, pad;
  std::vector<int64_t> ends;  // ids that end an answer, ascending: EOS, EOT, EOM, and tokens known by their text

  const std::string& text(int64_t id) const { return tokens[static_cast<size_t>(id)]; }
};

// Reads the vocabulary. Throws Error(kModel) for another tokenizer.ggml.model, for missing, repeated or invalid tokens
// and for special ids outside of the vocabulary.
Vocabulary read_vocabulary(const GgufFile& file);

}  // namespace specdec::gguf
