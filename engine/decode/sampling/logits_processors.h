// The logits processors of a request: penalties, bias, forbidden and allowed tokens, a grammar. Each changes the logits
// as a function of the tokens so far, in the same way for target and draft. Speculation therefore stays exact: at
// drafted position i the processors have seen the first i drafted tokens, and p and q are the distributions of the
// processed logits (tests/lossless enumerates each processor).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace specdec::decode {

// Whether the mask of a position is known. kLate: not yet; ask again later. kSpent: never, because computing the
// sequence's masks has used up its time or memory, or has failed.
enum class MaskState { kReady, kLate, kSpent };

// A grammar's state for one sequence, which tells the tokens that may follow. Not thread-safe. The caller may push only
// tokens that the last mask allowed, and pops them in reverse order. No call throws.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // Sets bit id % 32 of word id / 32 for every id that may follow; writes all words. Writes only if it returns kReady.
  virtual MaskState allowed(std::span<uint32_t> bits) = 0;
  // If another thread computes masks, starts to compute the mask of this position and returns without waiting for it.
  virtual MaskState prepare() { return MaskState::kReady; }
  virtual void push(int32_t token) = 0;
  virtual void pop(int64_t count) = 0;
  virtual size_t bytes() const { return 0; }  // approximate memory in bytes
};

struct LogitsProcessors {
  double repetition_penalty = 1;  // ranges: base/sampling_ranges.h
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> bias = {};  // (id, value that is added to its logit)
  std::vector<std::vector<int32_t>> bad_words = {};  // token sequences that must never be completed; none is empty
  std::vector<int32_t> allowed_ids = {};             // if not empty, no other token may follow
  int64_t min_tokens = 0;                            // none of the answer's first min_tokens tokens may be in stop_ids
  std::vector<int32_t> stop_ids = {};                // ids that would end the answer
  // Creates a grammar's state for each sequence. Empty: there is no grammar.
  std::function<std::unique_ptr<Constraint>()> constraint = {};
  bool any() const;
};

// Throws Error(kUsage) if a value is out of range, an id is outside the vocabulary or a bad word is empty.
void validate(const LogitsProcessors& rules, int64_t vocab);

// The failure of a sequence whose grammar has used up its time or memory.
struct MasksSpent : Error {
  MasksSpent() : Error(ErrorKind::kUsage, "the request's grammar takes too much time or memory: simplify it") {}
};

// Applies a request's logits processors to one sequence and tracks its tokens. Pushed tokens are tentative until
// commit().
//
// A drafted token must not make an answer fail that would succeed without it. So if the grammar fails after tentative
// tokens were pushed, it is replaced once by a new grammar that has only the permanent tokens. From then on the grammar
// is asked only after permanent tokens, and the mask of every other position counts as kSpent.
//
// Order and formulas are those of vLLM (v1/sample/sampler.py), with OpenAI's presence and frequency penalties and
// transformers' repetition penalty r. First, grammar, allowed_ids, min_tokens and bad words set logits to −inf. Then
// bias is added. Then the logit l of every token x of prompt or answer becomes l / r if l > 0, else l · r. Last, l
// becomes l − frequency · count(x) − presence · [count(x) > 0]. Counts, min_tokens and bad words consider only the
// answer, not the prompt. Temperature, top-k, top-p and min-p follow (sampler.h).
class LogitsProcessorState {
 public:
  // `rules` must outlive this object. apply() takes time linear in the number of distinct tokens so far; with a
  // grammar, also linear in V.
  LogitsProcessorState(const LogitsProcessors& rules, std::span<const int32_t> prompt);

  // kNoTokenLeft: all logits are −inf. kLate and kSpent: see MaskState; the logits are then unchanged.
  enum class Applied { kDone, kNoTokenLeft, kLate, kSpent };
  // Changes logits[V] of the current position. Finite logits stay finite or become −inf.
  Applied apply(std::span<float> logits);
  // Returns false if the grammar, allowed_ids or min_tokens forbid the token here, or if the mask is late or spent.
  bool allows(int32_t token, int64_t vocab);
  // Starts to compute the mask of this position, without waiting for it.
  MaskState prepare();
  // Starts to compute the mask of this position, as prepare() does. If the mask is ready, also stores it, so that masks
  // of other positions can be prepared.
  MaskState keep_mask(int64_t vocab);
  void push(int32_t token);
  void rewind();                                 // drops all tentative tokens
  void commit(std::span<const int32_t> tokens);  // drops all tentative tokens, then adds these permanently

 private:
  struct Seen {
    int32_t id;
    bool in_prompt;
    int64_t count;
  };
  // The position after some tentative tokens. Node 0, the root, is the position after the permanent tokens. Masks are
  // stored, so that the draft, the target and a later step that verifies the same draft share them.
  struct Node {
    int32_t token;
    size_t parent;
    std::vector<uint32_t> mask;  // empty: not known
  };
  void take(int32_t token);  // updates everything but the constraint
  void undo(int32_t token);
  size_t add_node(int32_t token, size_t parent);
  MaskState know_mask(size_t vocab);
  MaskState ask(const std::function<MaskState(Constraint&)>& question);
  std::span<const uint32_t> allowed(size_t vocab);
  bool too_short() const { return length_ < rules_.min_tokens; }  // whether the answer must not end yet
  bool completes(const std::vector<int32_t>& word) const;

  const LogitsProcessors& rules_;
  bool penalties_;
  std::vector<Seen> seen_;                     // in order of appearance, so that undoing pops the last
  std::unordered_map<int32_t, size_t> index_;  // id → index into seen_
  int64_t length_ = 0;                         // tokens of the answer
  std::vector<int32_t> answer_;                // kept only if there are bad words or a constraint
  size_t permanent_ = 0;                       // number of permanent tokens in answer_
  std::vector<uint32_t> allowed_;              // allowed_ids as bits; made by the first call of allowed()
  std::unique_ptr<Constraint> constraint_;
  bool tried_ = false;  // constraint_ has seen tentative tokens
  // True after the constraint has failed after tentative tokens and was replaced: the new one never gets tentative
  // tokens.
  bool tries_no_more_ = false;
  std::vector<Node> nodes_;  // the first num_nodes_ are in use; the others only keep their memory
  size_t num_nodes_ = 0, at_ = 0;
};

}  // namespace specdec::decode
