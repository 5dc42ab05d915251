// One draft-verify-commit step over a batch of sequences: the single implementation that generate, validate, bench and
// serve run.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/sequence.h"
#include "engine/decode/verifier.h"

namespace specdec::decode {

// Throws Error(kModel) for two vocabularies.
void check_vocabulary(const CausalModel& target, const CausalModel& draft);

// Owns every buffer of a step; one per engine thread.
class Stepper {
 public:
  // The verification rule as a function: the default is the product's; tests inject rules known to be wrong.
  using VerifyFn = VerifyResult (*)(VerifyRule, const VerifyInput&, Randomness&, std::vector<float>& scratch);

  // draft may be null: of sequences that name none. `clock` times passes for `costs` (null: not recorded).
  Stepper(CausalModel& target, CausalModel* draft, CostModel* costs = nullptr, const Clock* clock = nullptr,
          VerifyFn verify_fn = &verify);
  ~Stepper();

  int64_t vocab_size() const { return target_.vocab_size(); }
  CostModel* costs() const { return costs_; }

  // Opens the target's cache, with what the tenant's texts left of these tokens; remaining() is cut to what the
  // target's max_length leaves. Throws Error(kData) if the prompt is empty, holds an id outside the vocabulary or
  // leaves no room for a token. A draft with a shorter max_length is used as far as it reaches. same_prompt: a sequence
  // that runs and whose tokens begin with these; its caches are copied, where there is room.
  void open(Sequence& sequence, const Sequence* same_prompt = nullptr);
  // One pass of the target over at most `most` of the tokens that have to be prefilled before the sequence may step,
  // which are all but the last. Returns how many it took. If the pass throws, the sequence is as before it.
  int64_t prefill(Sequence& sequence, int64_t most);
  int64_t pending_prefill(const Sequence& sequence) const {
    return static_cast<int64_t>(sequence.tokens_.size()) - 1 - target_.length(sequence.target_id_);
  }
  void start(Sequence& sequence, int64_t chunk = 512);  // open() and prefill() to the end; closes it if that throws
  // Drafts, verifies and commits once for every sequence; each emits at least one token. A draft that fails costs its
  // sequence the draft, nothing else; one that throws CacheFull costs it the draft for some steps. If the target's pass
  // throws, every sequence is as before the step, but that what was drafted is held for the next; a sequence alone
  // gives up its deepest levels before CacheFull is thrown. If the rows of some sequences cannot be sampled, those get
  // `failure`, the others are committed, and the first failure is thrown at the end. draft_reads: tokens that drafts
  // far behind may read in this step, of all sequences together; those whose draft needs more of them step plainly
  // meanwhile.
  void step(std::span<Sequence* const> batch, int64_t draft_reads = std::numeric_limits<int64_t>::max());
  // Closes the sequence's caches; may be called twice. Everything else stays: opened and prefilled again, the sequence
  // goes on where it was.
  void close(Sequence& sequence);
  void end_shadow(Sequence& sequence);  // the sequence goes on without it

 private:
  struct SequenceStep;
  struct Buffers;
  // step_draft.cpp
  void plan(std::span<Sequence* const> batch);
  void draft_from_text(SequenceStep& step, int batch);
  void choose_depths();
  int limit_depth(const Sequence& sequence, int depth) const;
  CausalModel* draft_of(const Sequence& sequence) const {
    return sequence.drafting_.draft ? sequence.drafting_.draft : draft_;
  }
  CostModel* draft_costs_of(const Sequence& sequence) const {
    return sequence.drafting_.draft_costs ? sequence.drafting_.draft_costs : costs_;
  }
  void draft_tokens();
  void draft_with(CausalModel& draft);
  void record_draft(CostModel& costs, double seconds, int64_t more);
  void restore(SequenceStep& step);
  bool read_up(CausalModel& model, SequenceId id, std::span<const int32_t> tokens);
  void catch_up(SequenceStep& step);
  void add_feed(SequenceStep& step);
  bool draft_pass(std::span<const size_t> active);
  bool draft_level(SequenceStep& step, int64_t row);
  bool draft_children(SequenceStep& step, int32_t parent, std::span<float> logits);
  void drop_draft(Sequence& sequence, const std::exception& reason);
  // step_verify.cpp
  void verify_all();
  void target_pass();
  void hold(SequenceStep& step);
  void verify_one(SequenceStep& step);
  void verify_greedy(SequenceStep& step);
  void verify_sampled(SequenceStep& step);
  void score_positions(SequenceStep& step);
  // step_shadow.cpp
  void score_shadow(SequenceStep& step);
  void ask_shadow(SequenceStep& step);
  // step.cpp
  void copy_prompt(Sequence& sequence, const Sequence& from);
  static void open_cache(CausalModel& model, SequenceId& id, const Sequence& sequence, size_t count);
  void commit(SequenceStep& step);
  void roll_back(SequenceStep& step);

  CausalModel& target_;
  CausalModel* draft_;
  CostModel* costs_;
  const Clock* clock_;
  VerifyFn verify_fn_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace specdec::decode
