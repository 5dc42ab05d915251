#include "text/grammar.h"

#include <algorithm>
#include <optional>

#include "base/confined_service.h"
#include "text/rust_error.h"

namespace specdec::text {

namespace {

constexpr size_t kCheckers = 4;  // concurrent checks; servers compile on fewer threads

int32_t kind_number(GrammarKind kind) { return kind == GrammarKind::kRegex ? SD_REGEX : SD_JSON_SCHEMA; }
const char* kind_name(GrammarKind kind) { return kind == GrammarKind::kRegex ? "regular expression" : "JSON schema"; }
const uint8_t* data_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

}  // namespace

GrammarMatcher::~GrammarMatcher() { sd_grammar_free(handle_); }

bool GrammarMatcher::allowed(std::span<uint32_t> bits) {
  if (sd_grammar_mask(handle_, bits.data(), bits.size()) == SD_OK) return true;
  std::fill(bits.begin(), bits.end(), 0u);
  return false;
}

void GrammarMatcher::push(int32_t token) { sd_grammar_push(handle_, static_cast<uint32_t>(token)); }

void GrammarMatcher::pop(int64_t count) { sd_grammar_pop(handle_, static_cast<size_t>(count)); }

size_t GrammarMatcher::bytes() const {
  size_t bytes = 0;
  sd_grammar_bytes(handle_, &bytes);
  return bytes;
}

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
  check(sd_vocabulary_new(tokenizer.handle(), static_cast<size_t>(size), ends.data(), ends.size(), &handle_, &message),
        message, "tokenizer.json", ErrorKind::kModel);
}

Vocabulary::~Vocabulary() { sd_vocabulary_free(handle_); }

std::shared_ptr<const Grammar> Vocabulary::compile(GrammarKind kind, const std::string& source) const {
  sd_grammar* handle = nullptr;
  sd_bytes message{};
  check(sd_grammar_new(handle_, kind_number(kind), data_of(source), source.size(), &handle, &message), message,
        kind_name(kind), ErrorKind::kData);
  return std::make_shared<const Grammar>(handle);
}

// A job of the service is a letter for the kind of grammar, followed by its source. The answer is "=" and the size of
// the compiled grammar in bytes, or the error message.
GrammarChecker::GrammarChecker(const ChildLimits& limits)
    : service_(std::make_unique<ConfinedService>(limits, kCheckers, [](std::string_view job) -> std::string {
        const GrammarKind kind = job.substr(0, 1) == "r" ? GrammarKind::kRegex : GrammarKind::kJsonSchema;
        const std::string_view source = job.substr(1);
        sd_bytes message{};
        try {
          size_t bytes = 0;
          text::check(sd_grammar_check(kind_number(kind), data_of(source), source.size(), &bytes, &message), message,
                      kind_name(kind), ErrorKind::kData);
          return "=" + std::to_string(bytes);
        } catch (const Error& e) {
          return e.what();
        }
      })) {}

GrammarChecker::~GrammarChecker() = default;

bool GrammarChecker::works() const { return service_->works(); }

size_t GrammarChecker::check(GrammarKind kind, const std::string& source) const {
  const std::optional<std::string> answer = service_->ask((kind == GrammarKind::kRegex ? "r" : "s") + source);
  if (!answer)
    throw Error(ErrorKind::kData, std::string(kind_name(kind)) + ": compiling it was ended: it takes more than " +
                                      std::to_string(service_->limits().memory_bytes >> 20) + " MiB or " +
                                      std::to_string(service_->limits().cpu_seconds) + " s, or crashed");
  if (answer->substr(0, 1) != "=") throw Error(ErrorKind::kData, *answer);
  return static_cast<size_t>(std::stoull(answer->substr(1)));
}

}  // namespace specdec::text
