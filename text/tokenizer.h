// Strings ⇄ token ids through the Rust crate (Hugging Face tokenizers). Const methods are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

struct sd_tokenizer;

namespace specdec::text {

// The special tokens of tokenizer_config.json, and of special_tokens_map.json for names that it lacks.
struct SpecialTokens {
  std::map<std::string, std::string> names;  // "bos_token" → "<s>"; also eos_token, unk_token, pad_token, …
  Json added = Json::array();                // changes to tokenizer.json's added tokens, as sd_tokenizer_new takes them

  std::string name(const std::string& key) const;  // "" if absent
};
// Reads the special tokens of a model directory. Missing files give an empty result. Throws Error(kModel) if a file is
// malformed.
SpecialTokens read_special_tokens(const std::filesystem::path& model_directory);

// The bytes that each token of a vocabulary stands for.
struct TokenBytes {
  std::vector<std::string> tokens;  // by id; not always whole characters; "" if the id names no token
  std::vector<int32_t> special;     // ids, ascending
  // True if decode() leaves out the space with which the first token of a text begins.
  bool strips_first_space = false;
};

class Tokenizer {
 public:
  // Loads tokenizer.json (at most 128 MiB) and the special tokens of a model directory. Throws Error(kModel) with a
  // message of one line.
  explicit Tokenizer(const std::filesystem::path& model_directory);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Returns the ids of `text`. add_special_tokens adds the tokens that the post-processor of tokenizer.json adds. As in
  // transformers 5, add_bos_token and add_eos_token of tokenizer_config.json are ignored. Throws Error(kData) for
  // invalid UTF-8 or more than 64 MiB.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // Skips ids that name no token. Throws Error(kData) for a negative id.
  std::string decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const;

  int64_t vocab_size() const;                           // includes added tokens
  int32_t token_to_id(const std::string& token) const;  // -1 if absent
  std::string id_to_token(int32_t id) const;            // "" if absent
  // Returns the bytes of the ids below `size`. Throws Error(kModel) if `size` is above 2^22.
  TokenBytes token_bytes(int64_t size) const;
  int32_t bos_id() const;  // -1 if the tokenizer has none
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  int32_t eos_id() const;  // -1 if none

  // Returns false if a later token may change the text of all tokens before it. An answer's text is then known only
  // when its last token is known.
  bool streams() const;

  const sd_tokenizer* handle() const;  // for other functions of the Rust crate

 private:
  friend class IncrementalDecoder;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Turns a stream of ids into text that continues the tokens before it (the context, such as the prompt of an answer).
// Use one object per request; not thread-safe; the tokenizer must outlive it.
//
// The results of all pushes and finish() together equal decode(context and stream) without decode(context), both with
// skip_special_tokens = true. But a context may end within a character or a run of byte tokens, and decode(context and
// stream) then does not begin with decode(context). In this case the longest common prefix of both, in whole
// characters, is left out instead, so a character that the stream completes belongs to the stream.
//
// push() returns only whole UTF-8 characters that no later token can change. A run of byte tokens (<0xNN>) is returned
// when it has ended, because one bad byte turns the whole run into replacement characters. Decoders whose output is
// never final before the end (CTC, trailing strip) return everything in finish().
class IncrementalDecoder {
 public:
  // The text of the special tokens `shown` is returned like that of other tokens. Throws what Tokenizer::decode() does.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, const std::vector<int32_t>& context = {},
                              std::vector<int32_t> shown = {});
  std::string push(int32_t id);
  std::string finish();

 private:
  std::optional<std::string> token_with_text(int32_t id) const;
  std::string decoded(std::span<const uint32_t> ids) const;
  void read_context(const std::vector<int32_t>& context);
  std::string advance(bool last);

  const Tokenizer* tokenizer_;
  std::vector<int32_t> shown_;
  std::vector<uint32_t> pending_;  // tokens whose text is not final, preceded by final tokens as context
  std::string emitted_prefix_;     // the part of decode(pending_) that was returned before or belongs to the context
};

}  // namespace specdec::text
