// Implements one draft-verify-commit step over a batch of sequences. generate, validate, bench and serve all use this
// implementation.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/decode/round/host_round.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/sampling/verifier.h"
#include "engine/decode/sequence.h"

namespace specdec::decode {

// Throws Error(kModel) if the two vocabularies differ.
void check_vocabulary(const CausalModel& target, const CausalModel& draft);

// Owns all buffers of a step. Each engine thread has its own Stepper.
class Stepper {
 public:
  using VerifyFn = HostRound::VerifyFn;

  // `draft` is used for sequences whose Drafting names no draft, and may be null. `clock` times the passes for `costs`;
  // if `clock` is null, no costs are recorded.
  Stepper(CausalModel& target, CausalModel* draft, CostModel* costs = nullptr, const Clock* clock = nullptr,
          VerifyFn verify_fn = &verify);
  ~Stepper();

  // A step drafts and verifies on the target's device (as a round) if the target's RoundRunner (CausalModel::rounds())
  // supports all sequences of the step; otherwise it runs on the host. use_rounds() replaces that RoundRunner by
  // `rounds`, which must belong to the same target and outlive the stepper. With null, all steps run on the host.
  void use_rounds(RoundRunner* rounds) { rounds_ = rounds; }
  // Returns the duration of the parts of the last step if it ran on the device. If it ran on the host, the result has
  // no times.
  const RoundSeconds& device_seconds() const;

  int64_t vocab_size() const { return target_.vocab_size(); }
  CostModel* costs() const { return costs_; }

  // Opens the target's cache, fills it from the tenant's cached blocks and limits remaining() to the target's
  // max_length. Throws Error(kData) if the prompt is empty, has an id outside the vocabulary or leaves no room for a
  // token. A draft with a shorter max_length than the target is used up to its own length. `same_prompt` is a running
  // sequence whose tokens begin with this sequence's tokens; its caches are copied if there is room.
  void open(Sequence& sequence, const Sequence* same_prompt = nullptr);
  // Runs one target pass over at most `most` of the tokens that must be prefilled before the first step (all but the
  // last). Returns the number of tokens prefilled. If the pass throws, the sequence is unchanged.
  int64_t prefill(Sequence& sequence, int64_t most);
  int64_t pending_prefill(const Sequence& sequence) const {
    return static_cast<int64_t>(sequence.tokens_.size()) - 1 - target_.length(sequence.target_id_);
  }
  // Calls open(), then prefill() until no token is left to prefill. If prefill() throws, closes the sequence.
  void start(Sequence& sequence, int64_t chunk = 512);
  // Drafts, verifies and commits once for every sequence; each emits at least one token. If a draft fails, its sequence
  // stops using the draft: for some steps if the failure was CacheFull, otherwise for the rest of the answer.
  //
  // If the target's pass throws, every sequence is unchanged, except that its drafted tokens are held for the next
  // step. If the pass throws CacheFull and the step has only one sequence, the step drops the deepest level of the
  // draft and tries again; it throws CacheFull when no level is left. If the target's logits of some sequences cannot
  // be sampled, these get StepOutcome::failure, the others are committed, and the first failure is thrown at the end.
  //
  // `draft_reads` limits the number of tokens that drafts far behind their text may prefill in this step, summed over
  // all sequences. A sequence whose draft needs more is decoded without the draft until the draft has caught up.
  void step(std::span<Sequence* const> batch, int64_t draft_reads = std::numeric_limits<int64_t>::max());
  // Returns false while the grammar's first mask for the sequence's next step is not ready. The caller should then
  // leave the sequence out of steps. If a later mask of the step is not ready, step() sets StepOutcome::mask_late.
  bool ready(Sequence& sequence);
  // Closes the sequence's caches; may be called twice. Everything else is kept, so after open() and prefill() the
  // sequence continues where it was.
  void close(Sequence& sequence);
  void end_shadow(Sequence& sequence);  // drops the sequence's second draft on trial (shadow)

 private:
  struct SequenceStep;
  struct Buffers;
  // Implemented in step_plan.cpp:
  void plan(std::span<Sequence* const> batch);
  void draft_from_text(SequenceStep& step, int batch);
  void choose_depths();
  int limit_depth(const Sequence& sequence, int depth) const;
  CausalModel* draft_of(const Sequence& sequence) const {
    return sequence.drafting_.draft ? sequence.drafting_.draft : draft_;
  }
  // Returns the sequence's draft if it reads hidden states of the target, else null.
  CausalModel* follower_of(const Sequence& sequence) const {
    CausalModel* const draft = draft_of(sequence);
    return draft && sequence.controller_ && !sequence.draft_failed_ && draft->reads_states() ? draft : nullptr;
  }
  CostModel* draft_costs_of(const Sequence& sequence) const {
    return sequence.drafting_.draft_costs ? sequence.drafting_.draft_costs : costs_;
  }
  void read_texts();
  bool read_up(CausalModel& model, SequenceId id, std::span<const int32_t> tokens);
  void catch_up(SequenceStep& step);
  void drop_draft(Sequence& sequence, const std::exception& reason);
  // Implemented in step_round.cpp:
  void fill_slots();
  bool run_on_device();
  void run_round();
  void take_draft(SequenceStep& step, RoundOutcome& round);
  void score_positions(SequenceStep& step, const RoundOutcome& round);
  void take_outcomes();
  void record_draft(CostModel& costs, double seconds, int64_t more);
  void record_round();
  // Implemented in step_shadow.cpp:
  void score_shadow(SequenceStep& step);
  void score_shadow_at(SequenceStep& step, int64_t i, std::span<float> q);
  bool ask_shadow(SequenceStep& step, int64_t reached);
  bool ask_following_shadow(SequenceStep& step, int64_t reached);
  void copy_shadow(Sequence& sequence, const Sequence& from);
  void drop_shadow(Sequence& sequence, const std::exception& reason);
  // Implemented in step.cpp:
  void copy_prompt(Sequence& sequence, const Sequence& from);
  static int64_t open_cache(CausalModel& model, SequenceId& id, const Sequence& sequence, size_t count);
  size_t open_followers(Sequence& sequence, size_t count);
  void read_along(Sequence& sequence, int64_t least, bool with_draft = true);
  void commit(SequenceStep& step);
  void roll_back(SequenceStep& step);

  CausalModel& target_;
  CausalModel* draft_;
  CostModel* costs_;
  const Clock* clock_;
  HostRound host_;
  RoundRunner* rounds_;  // null: all steps run on the host
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace specdec::decode
