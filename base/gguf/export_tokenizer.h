// Makes the metadata of a GGUF file's tokenizer from the files of a Hugging Face model, such that llama.cpp makes the
// same tokens of a text. Sources: llama.cpp's src/llama-vocab.cpp, and the tokenizers library for what tokenizer.json
// means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/gguf/gguf_writer.h"
#include "base/json.h"

namespace specdec::gguf {

struct TokenizerFiles {
  std::string where;  // path of tokenizer.json, for messages
  Json tokenizer;     // tokenizer.json
  // tokenizer_config.json, config.json and generation_config.json; an empty object for a file that is missing.
  Json tokenizer_config, config, generation_config;
  std::string chat_template;  // chat_template.jinja; "" = the template of tokenizer_config, if it has one
};

struct ExportedTokenizer {
  Metadata metadata;                  // tokenizer.ggml.* and tokenizer.chat_template
  std::vector<std::string> warnings;  // texts of which llama.cpp makes other tokens
  // Whether a special token takes the spaces after it. llama.cpp does that only in models whose general.name contains
  // "phi-3" or "phi3", and such a model must have the tokens of Phi-3 (has_phi3_tokens).
  bool strips_spaces = false, has_phi3_tokens = false;
};

// Two kinds of BPE are written:
// - byte-level: tokenizer.ggml.model "gpt2" with the merges, and tokenizer.ggml.pre for the way in which text is
// divided
//   before. The ways that llama.cpp has are recognised by their regular expressions.
// - with byte fallback, as made from SentencePiece models: model "llama" with a score for each token, which llama.cpp
//   merges by. Scores are ranks of the merges: −0 for the token that is made first.
// Throws Error(kModel) naming the file for a tokenizer of which llama.cpp would make other tokens: another kind,
// another division, or merges that scores cannot express. `vocab_size` is that of the model; ids without a token get
// one of type "unused".
ExportedTokenizer export_tokenizer(const TokenizerFiles& files, int64_t vocab_size);

}  // namespace specdec::gguf
