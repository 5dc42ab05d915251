// Strings ⇄ token ids through the Rust crate (Hugging Face tokenizers). Const methods are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

struct sd_tokenizer;

namespace specdec::text {

// What tokenizer_config.json (special_tokens_map.json where it lacks a name) says about special tokens.
struct SpecialTokens {
  std::map<std::string, std::string> names;  // "bos_token" → "<s>", also eos_token, unk_token, pad_token, …
  Json added = Json::array();                // how these change tokenizer.json's added tokens: of sd_tokenizer_new

  std::string name(const std::string& key) const;  // "" if absent
};
// Missing files give an empty result. Throws Error(kModel) if a file is malformed.
SpecialTokens read_special_tokens(const std::filesystem::path& model_directory);

// What the tokens of a vocabulary stand for.
struct TokenBytes {
  std::vector<std::string> tokens;  // by id: bytes, not always whole characters; "" where the id names no token
  std::vector<int32_t> special;     // ids, rising
};

class Tokenizer {
 public:
  // Reads tokenizer.json (at most 128 MiB), as it is, and the special tokens of a model directory. Throws
  // Error(kModel), one line.
  explicit Tokenizer(const std::filesystem::path& model_directory);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // add_special_tokens: with what the post-processor of tokenizer.json adds. Like transformers 5 it alone decides:
  // add_bos_token and add_eos_token of tokenizer_config.json are not read. Throws Error(kData) on invalid UTF-8 or more
  // than 64 MiB.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // Ids that name no token are skipped. Throws Error(kData) on a negative id.
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const;

  int64_t vocab_size() const;                           // with added tokens
  int32_t token_to_id(const std::string& token) const;  // -1 if absent
  std::string id_to_token(int32_t id) const;            // "" if absent
  TokenBytes token_bytes(int64_t size) const;  // of the ids below size. Throws Error(kModel) for more than 2^22
  int32_t bos_id() const;                      // -1 if the tokenizer has none
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  int32_t eos_id() const;  // -1 if none

  const sd_tokenizer* handle() const;  // for what else the Rust crate makes of it

 private:
  friend class IncrementalDecoder;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Streams text from ids: push() returns only whole UTF-8 characters that no later token can change; the concatenation
// of all pushes and finish() equals decode(all ids, skip_special_tokens = true). A run of byte tokens (<0xNN>) is given
// out when it has ended, because one bad byte turns the whole run into replacement characters; decoders of which no
// prefix is settled (CTC, trailing strip) give everything in finish(). One per request, one thread at a time; the
// tokenizer must outlive it.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer);
  std::string push(int32_t id);
  std::string finish();

 private:
  std::string advance(bool last);

  const Tokenizer* tokenizer_;
  std::vector<uint32_t> pending_;  // tokens whose text is not settled, after one settled token as context
  std::string emitted_prefix_;     // what of decode(pending_) has been given out
};

}  // namespace specdec::text
