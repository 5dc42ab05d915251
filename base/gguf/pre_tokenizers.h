// How byte-level BPE splits a text into pieces before it merges bytes: tokenizer.ggml.pre. Source: llama.cpp's
// llama-vocab.cpp, whose patterns are written here as one pattern (or several, applied one after the other) for Hugging
// Face's Split.
#pragma once

#include <string>
#include <vector>

#include "base/gguf/gguf_file.h"

namespace specdec::gguf {

struct PreTokenizer {
  std::vector<std::string> patterns;  // every match and every rest between matches becomes a piece of its own
  bool ignores_merges = false;        // a piece that is a token becomes this token, whatever the merges say
  bool adds_bos = false;              // if tokenizer.ggml.add_bos_token is missing
};

// Returns the pre-tokenizer of the file. Throws Error(kModel) that names an unknown one; it is never guessed. A missing
// key means "default", as in llama.cpp.
PreTokenizer pre_tokenizer_of(const GgufFile& file);

// Returns the value of tokenizer.ggml.pre for text that is split by these patterns, one after the other, or "" if
// llama.cpp has none.
std::string pre_tokenizer_name(const std::vector<std::string>& patterns, bool ignores_merges);

}  // namespace specdec::gguf
