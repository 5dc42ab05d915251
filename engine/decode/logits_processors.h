// Logits processors that a request asks for: penalties, bias, forbidden and allowed tokens, a grammar. Each changes the
// logits as a function of the tokens so far, in the same way for target and draft. This keeps speculation exact: at
// drafted position i the processors see the first i drafted tokens, and p and q are the distributions of the processed
// logits (tests/lossless enumerates each).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace specdec::decode {

// Reports which tokens may follow in one sequence. Not thread-safe. The caller pushes only tokens that the last mask
// allowed and pops them in reverse order. No call throws; after an internal failure allowed() allows no token.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // Sets bit id % 32 of word id / 32 for every id that may follow; writes all words.
  virtual void allowed(std::span<uint32_t> bits) = 0;
  virtual void push(int32_t token) = 0;
  virtual void pop(int64_t count) = 0;
};

struct LogitsProcessors {
  double repetition_penalty = 1;  // ranges: base/sampling_ranges.h
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> bias = {};  // (id, value added to its logit)
  std::vector<std::vector<int32_t>> bad_words = {};  // token sequences that must never be completed; none is empty
  std::vector<int32_t> allowed_ids = {};             // if not empty, no other token may follow
  int64_t min_tokens = 0;                            // the first min_tokens tokens of the answer …
  std::vector<int32_t> stop_ids = {};                // … are none of these, which would end it
  std::function<std::unique_ptr<Constraint>()> constraint = {};  // makes one per sequence; empty: no grammar
  bool any() const;
};

// Throws Error(kUsage) if a value is out of range, an id is outside the vocabulary or a bad word is empty.
void validate(const LogitsProcessors& rules, int64_t vocab);

// Applies a request's logits processors to one sequence and tracks its tokens. Pushed tokens are tentative until
// commit().
//
// Order and formulas are vLLM's (v1/sample/sampler.py), with OpenAI's presence and frequency penalties and
// transformers' repetition penalty r. First, grammar, allowed_ids, min_tokens and bad words set logits to −inf. Then
// bias is added. Then the logit l of every token x of prompt or answer becomes l / r if l > 0, else l · r. Last, l
// becomes l − frequency · count(x) − presence · [count(x) > 0]. Counts, min_tokens and bad words consider only the
// answer, not the prompt. Temperature, top-k, top-p and min-p follow (sampler.h).
class LogitsProcessorState {
 public:
  // `rules` must outlive this object. apply() takes time linear in the number of distinct tokens so far, and in V under
  // a grammar.
  LogitsProcessorState(const LogitsProcessors& rules, std::span<const int32_t> prompt);

  // Changes logits[V] of the current position. Returns false if no token is left, because all logits are −inf. Finite
  // logits stay finite or become −inf.
  bool apply(std::span<float> logits);
  // Returns false if the grammar, allowed_ids or min_tokens forbid the token here.
  bool allows(int32_t token, int64_t vocab);
  void push(int32_t token);
  void rewind();                                 // drops all tentative tokens
  void commit(std::span<const int32_t> tokens);  // rewinds, then adds these permanently

 private:
  struct Seen {
    int32_t id;
    bool in_prompt;
    int64_t count;
  };
  void take(int32_t token);
  void undo(int32_t token);
  std::span<const uint32_t> mask(size_t vocab);
  std::span<const uint32_t> allowed(size_t vocab);
  bool too_short() const { return length_ < rules_.min_tokens; }  // for a token that ends the answer
  bool completes(const std::vector<int32_t>& word) const;

  const LogitsProcessors& rules_;
  bool penalties_;
  std::vector<Seen> seen_;                     // in order of appearance, so that undoing pops the last
  std::unordered_map<int32_t, size_t> index_;  // id → index into seen_
  int64_t length_ = 0;                         // tokens of the answer
  std::vector<int32_t> answer_;                // kept only if there are bad words
  std::vector<uint32_t> allowed_;              // allowed_ids as bits; made by the first call of allowed()
  std::unique_ptr<Constraint> constraint_;
  // The first depth_ tokens are pushed now; the others were pushed before the last rewind. masks_[i] is the mask after
  // the first i of all these tokens.
  std::vector<int32_t> tentative_;
  size_t depth_ = 0;
  std::vector<std::vector<uint32_t>> masks_;  // by depth; kept so that the draft and the target share a mask
  size_t num_masks_ = 0;
};

}  // namespace specdec::decode
