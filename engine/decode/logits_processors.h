// What a request asks of its tokens: penalties, bias, bad words, a grammar. Every rule is a function of the tokens so
// far that changes the logits, the same for target and draft. So speculation stays exact: at drafted position i the
// rules see the first i drafted tokens, and p and q are what is left after them (tests/lossless enumerates each).
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

// The tokens that may follow; of one sequence, one thread. Tokens are pushed only if the last mask allowed them, and
// are taken back in reverse order. Nothing throws: after a failure inside, allowed() sets no bit any more.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // bit id % 32 of word id / 32 for every id of the vocabulary; sets all words
  virtual void allowed(std::span<uint32_t> bits) = 0;
  virtual void push(int32_t token) = 0;
  virtual void pop(int64_t count) = 0;
};

struct LogitsProcessors {
  double repetition_penalty = 1;  // ranges: base/sampling_ranges.h
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> bias = {};              // id, added to its logit
  std::vector<std::vector<int32_t>> bad_words = {};              // token sequences that are never completed, none empty
  std::function<std::unique_ptr<Constraint>()> constraint = {};  // makes one a sequence; may be empty
  bool any() const;
};

// Throws Error(kUsage) naming what is out of range or outside of the vocabulary.
void validate(const LogitsProcessors& rules, int64_t vocab);

// The rules of one sequence and the tokens that they have seen. Pushed tokens are tentative until commit().
//
// Order and formulas are those of vLLM (v1/sample/sampler.py, OpenAI's for presence and frequency, transformers' for
// repetition): grammar and bad words set −inf, bias is added, then for every token x of prompt or answer the logit l
// becomes l / r if l > 0, else l · r; then l − frequency · count(x) − presence · [count(x) > 0] with counts over the
// answer alone. Bad words match the answer alone. Temperature, top-k, top-p and min-p come after that (sampler.h).
class LogitsProcessorState {
 public:
  // rules must live longer. The cost of a row is linear in the distinct tokens so far, and in V under a grammar.
  LogitsProcessorState(const LogitsProcessors& rules, std::span<const int32_t> prompt);

  // logits[V] at the present position. False: no token is left, all are −inf. Finite logits stay finite or become −inf.
  bool apply(std::span<float> logits);
  bool allows(int32_t token, int64_t vocab);  // false: the grammar forbids it here
  void push(int32_t token);
  void rewind();                                 // all tentative tokens
  void commit(std::span<const int32_t> tokens);  // rewinds, then takes these for good

 private:
  struct Seen {
    int32_t id;
    bool in_prompt;
    int64_t count;
  };
  void take(int32_t token);
  void undo(int32_t token);
  std::span<const uint32_t> mask(size_t vocab);
  bool completes(const std::vector<int32_t>& word) const;

  const LogitsProcessors& rules_;
  bool penalties_;
  std::vector<Seen> seen_;                     // in order of appearance, so that undoing pops the last
  std::unordered_map<int32_t, size_t> index_;  // id → seen_
  std::vector<int32_t> answer_;                // only kept for bad words
  std::unique_ptr<Constraint> constraint_;
  std::vector<int32_t> tentative_;  // [0, depth_) are pushed; those behind were, and name what masks_ was computed for
  size_t depth_ = 0;
  std::vector<std::vector<uint32_t>> masks_;  // by depth: the draft's row and the target's ask for the same one
  size_t num_masks_ = 0;
};

}  // namespace specdec::decode
