// Constrains answers to JSON schemas and regular expressions: computes, token by token, which tokens may follow. Uses
// the Rust crate (llguidance).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/confined_child.h"
#include "text/tokenizer.h"

struct sd_grammar;
struct sd_vocabulary;

namespace specdec {
class ConfinedService;
}

namespace specdec::text {

enum class GrammarKind { kJsonSchema, kRegex };

// A grammar's parser, in its state after some tokens. Not thread-safe. No function throws.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(sd_grammar* handle) : handle_(handle) {}  // takes ownership
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  // For every id that may follow, sets bit id % 32 of word id / 32; clears all other bits. After the end of the text,
  // only end-of-text ids may follow. Returns false if a step has exceeded its bound on work, now or before.
  bool allowed(std::span<uint32_t> bits);
  void push(int32_t token);  // must be an allowed token
  void pop(int64_t count);
  size_t bytes() const;  // about how many bytes the matcher occupies; grows with the text

 private:
  sd_grammar* handle_;
};

// A compiled grammar, before the first token. Immutable; each answer makes its own matcher from it.
class Grammar {
 public:
  explicit Grammar(sd_grammar* handle) : handle_(handle) {}  // takes ownership
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  std::unique_ptr<GrammarMatcher> matcher() const;  // throws Error(kInternal)

 private:
  sd_grammar* handle_;
};

// The tokens of one model, as a trie. Const methods are thread-safe.
class Vocabulary {
 public:
  // `size` is the number of ids in the model's vocabulary; `eos_ids` are the tokens that end a text. Throws
  // Error(kModel) if eos_ids is empty or one of them is outside the vocabulary.
  Vocabulary(const Tokenizer& tokenizer, int64_t size, const std::vector<int32_t>& eos_ids);
  ~Vocabulary();
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // Compiles a grammar for whole texts. `source` is a JSON schema (draft 2020-12, local $ref) or a regular expression
  // in Rust's syntax, of at most 64 KiB. Between parts of the JSON, a text may have only a space, or a new line with
  // its indentation. Objects and arrays of a schema may nest at most 512 deep, with every $ref followed. Throws
  // Error(kData) if the source is malformed, not supported or too costly, or if no text satisfies it. Time and memory
  // are bounded except for intersections of schemas (allOf, siblings of $ref), so an untrusted source must pass a
  // GrammarChecker first.
  std::shared_ptr<const Grammar> compile(GrammarKind kind, const std::string& source) const;

 private:
  sd_vocabulary* handle_ = nullptr;
};

// Finds out whether an untrusted grammar can be compiled in this process, by compiling it first in a child process with
// limits on memory and time. This is necessary because a schema of a few hundred bytes can require intersections that
// take any amount of memory and time.
class GrammarChecker {
 public:
  // Forks, so construct it while no other thread holds a lock. Throws Error(kIo).
  explicit GrammarChecker(const ChildLimits& limits = {384u << 20, 1, 5});
  ~GrammarChecker();

  // Returns the number of bytes that the compiled grammar occupies. Throws Error(kData) if Vocabulary::compile() would
  // refuse the grammar or if it exceeds the limits, Error(kIo) if no child can be started. Thread-safe.
  size_t check(GrammarKind kind, const std::string& source) const;
  bool works() const;  // false once no child can be started any more

 private:
  std::unique_ptr<ConfinedService> service_;
};

}  // namespace specdec::text
