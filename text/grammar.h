// JSON schemas and regular expressions as what may follow a text, token by token, through the Rust crate (llguidance).
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

// The grammar after some tokens. One thread at a time; nothing throws: after a failure inside (a bound on the work of
// one step) allowed() sets no bit any more.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(sd_grammar* handle) : handle_(handle) {}  // owns it
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;

  // bit id % 32 of word id / 32; behind the end of the text the end-of-text ids alone
  void allowed(std::span<uint32_t> bits);
  void push(int32_t token);  // one that was allowed
  void pop(int64_t count);

 private:
  sd_grammar* handle_;
};

// A compiled grammar, before the first token. Immutable; made into a matcher for every answer.
class Grammar {
 public:
  explicit Grammar(sd_grammar* handle) : handle_(handle) {}  // owns it
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  std::unique_ptr<GrammarMatcher> matcher() const;  // throws Error(kInternal)

 private:
  sd_grammar* handle_;
};

// The tokens of one model as a trie. Const methods are thread-safe.
class Vocabulary {
 public:
  // size: ids of the model's vocabulary; eos_ids: what ends a text. Throws Error(kModel) where there is none or one is
  // outside.
  Vocabulary(const Tokenizer& tokenizer, int64_t size, const std::vector<int32_t>& eos_ids);
  ~Vocabulary();
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  // `source` describes whole texts: JSON (draft 2020-12, local $ref, white space of a space or a line and its
  // indentation) or Rust's regular expressions, at most 64 KiB, and 512 objects and arrays deep with every $ref
  // followed. Throws Error(kData) for what is malformed, not supported, too costly, or satisfied by no text. Time and
  // memory are bounded but for the intersections of schemas (allOf, siblings of $ref): what a stranger sends goes
  // through a GrammarChecker first.
  std::shared_ptr<const Grammar> compile(GrammarKind kind, const std::string& source) const;

 private:
  sd_vocabulary* handle_ = nullptr;
};

// Compiles grammars of strangers in child processes with a limit of memory and time, to find out which can be compiled
// here: a schema of a few hundred bytes can ask for intersections that take any amount of both.
class GrammarChecker {
 public:
  // Forks: make it where no other thread holds a lock. Throws Error(kIo).
  explicit GrammarChecker(const ChildLimits& limits = {384u << 20, 1, 5});
  ~GrammarChecker();

  // Returns how many bytes the compiled grammar holds. Throws Error(kData) for what Vocabulary::compile() refuses, and
  // for what went over the limits; Error(kIo) where no child can be started. Thread-safe.
  size_t check(GrammarKind kind, const std::string& source) const;
  bool works() const;  // ConfinedService::works()

 private:
  std::unique_ptr<ConfinedService> service_;
};

}  // namespace specdec::text
