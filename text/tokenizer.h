// Strings ⇄ token ids through the Rust crate (Hugging Face tokenizers). Const methods are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace specdec::text {

class Tokenizer {
 public:
  // Reads tokenizer.json (and tokenizer_config.json for bos/eos/add_bos_token) of a model directory. Throws Error(kModel).
  explicit Tokenizer(const std::filesystem::path& model_directory);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // add_special_tokens: what the tokenizer's post-processor adds (BOS for Llama). Throws Error(kData) on invalid UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const;

  int64_t vocab_size() const;                 // with added tokens
  int32_t token_to_id(const std::string& token) const;  // -1 if absent
  std::string id_to_token(int32_t id) const;  // "" if absent
  int32_t bos_id() const;                     // -1 if the tokenizer has none
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  int32_t eos_id() const;                     // -1 if none

 private:
  friend class IncrementalDecoder;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Streams text from ids: push() returns only whole UTF-8 characters that no later token can change; the concatenation of all
// pushes and finish() equals decode(all ids, skip_special_tokens = true). One per request, one thread at a time.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer);
  std::string push(int32_t id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::vector<int32_t> pending_;  // ids since the last safe boundary
  std::string emitted_prefix_;
};

}  // namespace specdec::text
