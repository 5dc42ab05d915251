// The state of one answer while it is generated: its tokens so far, its random streams, its draft and its caches.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/acceptance.h"
#include "engine/decode/control/controller.h"
#include "engine/decode/control/suffix_drafter.h"
#include "engine/decode/request.h"
#include "engine/decode/round/round.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/sampling/randomness.h"
#include "engine/decode/step_outcome.h"

namespace specdec::decode {

class Stepper;

// Describes how tokens are drafted for a sequence. The engine sets it, not the client. The objects behind its pointers
// must outlive the sequence.
struct Drafting {
  VerifyRule verify = VerifyRule::kToken;
  // Options for choosing K, and the shape of the tree if the draft model drafts trees. If absent, the draft model is
  // not used.
  std::optional<ControllerOptions> model = std::nullopt;
  // Options for drafts from the sequence's own text (suffix_drafter.h). If absent, nothing is drafted from the text.
  // Each step uses either the draft model or the text, whichever promises more tokens.
  std::optional<ControllerOptions> text = std::nullopt;
  // Null: the stepper's draft. Sequences in one step may have different drafts.
  CausalModel* draft = nullptr;
  // Where the costs of the draft's passes are recorded; the draft's controller reads them. Null: the stepper's costs.
  CostModel* draft_costs = nullptr;
  // A second draft on trial ("shadow"). It computes its overlap with the target at the positions that `draft` drafted.
  // It does not affect the text.
  CausalModel* shadow = nullptr;
  // The likely length of the answer in tokens, if known. The controller does not expect more tokens than this.
  int64_t expected_tokens = std::numeric_limits<int64_t>::max();
};
// Returns the Drafting for these options. With k = 0, the sequence drafts nothing.
Drafting drafting(const SpeculationOptions& options);

// One answer in progress. Between steps, the target's cache holds all tokens but the last. The draft's cache holds a
// prefix of the tokens and catches up in the next draft pass. Between Stepper::open() and the end of prefill, and after
// Stepper::close(), the caches hold less, and the sequence must not be in a step.
class Sequence {
 public:
  // Does not open caches yet. If `randomness` is null, uses SeededRandomness with the request's seed. `stepper` must
  // outlive the sequence.
  Sequence(Stepper& stepper, Request request, const Drafting& drafting = {},
           std::unique_ptr<Randomness> randomness = nullptr);
  ~Sequence();  // closes its caches
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const Request& request() const { return request_; }
  const RequestOptions& options() const { return request_.options; }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // the prompt and all emitted tokens
  std::span<const int32_t> answer() const { return std::span(tokens_).subspan(request_.prompt.size()); }
  int64_t remaining() const { return remaining_; }  // tokens that may still be emitted; K is at most remaining − 1
  StepOutcome& outcome() { return outcome_; }       // outcome of the last step
  const StepOutcome& outcome() const { return outcome_; }
  const AcceptanceCounts& counts() const { return counts_; }  // sums over all steps
  // Returns the logprobs of all prompt tokens but the first (which has no preceding text), if the request wants them.
  // Call it after prefill. After the call, another prefill of the sequence does not score the prompt again.
  std::vector<PositionLogprobs> take_prompt_logprobs();
  const KController* controller() const { return controller_ ? &*controller_ : nullptr; }
  // Replaces the controller that chooses K from the next step on.
  void replace_controller(const ControllerOptions& options);
  // Returns whether the draft model failed (other than by CacheFull) or gave non-finite logits. From then on the
  // sequence does not use it.
  bool draft_failed() const { return draft_failed_; }
  SequenceId target_id() const { return target_id_; }  // < 0: no cache is open
  SequenceId draft_id() const { return draft_id_; }

 private:
  friend class Stepper;
  // Lets a test in tests/lossless build a deliberately wrong step, which discards drafted tokens that it must verify
  // (held_) and draws new ones.
  friend struct ForgetfulStep;
  // Drafts from the sequence's own text, and the controller that learns how often they are accepted.
  struct SuffixDraft {
    SuffixDrafter drafter;
    KController controller;
  };

  Stepper& stepper_;
  const Request request_;
  Drafting drafting_;  // the draft must not change while draft_id_ >= 0
  std::vector<int32_t> tokens_;
  int64_t remaining_ = 0;
  std::unique_ptr<Randomness> randomness_;
  std::optional<LogitsProcessorState> rules_;  // the step keeps it up to date
  std::optional<KController> controller_;
  std::optional<SuffixDraft> suffix_;
  SequenceId target_id_ = -1, draft_id_ = -1, shadow_id_ = -1;
  bool draft_failed_ = false;
  int draft_rest_ = 0;  // number of steps to go without the draft, whose caches were full
  // The draft of a step whose target pass threw. The next step must verify these same tokens. Replacing them
  // for a reason that depends on them (for example, because too few of them fitted into the cache) would change the
  // distribution of the text.
  std::optional<DraftTokens> held_;
  StepOutcome outcome_;
  bool scores_prompt_;
  std::vector<PositionLogprobs> prompt_logprobs_;
  AcceptanceCounts counts_;
};

}  // namespace specdec::decode
