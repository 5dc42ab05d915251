// Constrains answers to JSON schemas and regular expressions: reports token by token what may follow, through the Rust
// crate (llguidance).
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

// The state of a grammar after some tokens. Not thread-safe. Nothing throws: after an internal failure (a bound on the
// work of one step) allowed() sets no bit any more.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(sd_grammar* handle) : handle_(handle) {}  // takes ownership
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  // Sets bit id % 32 of word id / 32 for every id that may follow; after the end of the text, only for the end-of-text
  // ids.
  void allowed(std::span<uint32_t> bits);
  void push(int32_t token);  // must be an allowed token
  void pop(int64_t count);

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
  // size: number of ids in the model's vocabulary; eos_ids: the tokens that end a text. Throws Error(kModel) if eos_ids
  // is empty or one is outside the vocabulary.
  Vocabulary(const Tokenizer& tokenizer, int64_t size, const std::vector<int32_t>& eos_ids);
  ~Vocabulary();
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // `source` describes whole texts: a JSON schema (draft 2020-12, local $ref; between parts of the JSON only a space,
  // or a new line with its indentation) or a regular expression in Rust's syntax; at most 64 KiB, and nested at most
  // 512 objects and arrays deep with every $ref followed. Throws Error(kData) if it is malformed, not supported, too
  // costly, or if no text satisfies it. Time and memory are bounded except for intersections of schemas (allOf,
  // siblings of $ref), so untrusted sources must pass a GrammarChecker first.
  std::shared_ptr<const Grammar> compile(GrammarKind kind, const std::string& source) const;

 private:
  sd_vocabulary* handle_ = nullptr;
};

// Compiles untrusted grammars in child processes with limits on memory and time, to find out which can be compiled
// here: a schema of a few hundred bytes can require intersections that take any amount of both.
class GrammarChecker {
 public:
  // Forks, so construct it while no other thread holds a lock. Throws Error(kIo).
  explicit GrammarChecker(const ChildLimits& limits = {384u << 20, 1, 5});
  ~GrammarChecker();

  // Returns how many bytes the compiled grammar holds. Throws Error(kData) if Vocabulary::compile() would refuse it or
  // if it exceeds the limits, Error(kIo) if no child can be started. Thread-safe.
  size_t check(GrammarKind kind, const std::string& source) const;
  bool works() const;  // ConfinedService::works()

 private:
  std::unique_ptr<ConfinedService> service_;
};

}  // namespace specdec::text
