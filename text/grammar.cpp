#include "text/grammar.h"

#include <algorithm>

#include "text/rust_error.h"

namespace specdec::text {

GrammarMatcher::~GrammarMatcher() { sd_grammar_free(handle_); }

void GrammarMatcher::allowed(std::span<uint32_t> bits) {
  if (sd_grammar_mask(handle_, bits.data(), bits.size()) != SD_OK) std::fill(bits.begin(), bits.end(), 0u);
}

void GrammarMatcher::push(int32_t token) { sd_grammar_push(handle_, static_cast<uint32_t>(token)); }

void GrammarMatcher::pop(int64_t count) { sd_grammar_pop(handle_, static_cast<size_t>(count)); }

Grammar::~Grammar() { sd_grammar_free(handle_); }

std::unique_ptr<GrammarMatcher> Grammar::matcher() const {
  sd_grammar* copy = nullptr;
  sd_bytes message{};
  check(sd_grammar_clone(handle_, &copy), message, "grammar", ErrorKind::kInternal);
  return std::make_unique<GrammarMatcher>(copy);
}

Vocabulary::Vocabulary(const Tokenizer& tokenizer, int64_t size, const std::vector<int32_t>& eos_ids) {
  const std::vector<uint32_t> ends(eos_ids.begin(), eos_ids.end());
  sd_bytes message{};
  check(sd_vocabulary_new(tokenizer.handle(), static_cast<size_t>(size), ends.data(), ends.size(), &handle_, &message), message, "tokenizer.json",
        ErrorKind::kModel);
}

Vocabulary::~Vocabulary() { sd_vocabulary_free(handle_); }

std::shared_ptr<const Grammar> Vocabulary::compile(GrammarKind kind, const std::string& source) const {
  sd_grammar* handle = nullptr;
  sd_bytes message{};
  check(sd_grammar_new(handle_, kind == GrammarKind::kRegex ? SD_REGEX : SD_JSON_SCHEMA, reinterpret_cast<const uint8_t*>(source.data()), source.size(),
                       &handle, &message),
        message, kind == GrammarKind::kRegex ? "regular expression" : "JSON schema", ErrorKind::kData);
  return std::make_shared<const Grammar>(handle);
}

}  // namespace specdec::text
