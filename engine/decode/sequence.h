// The state of one answer while it is generated: its text so far, its random streams, its draft and its caches.
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

// Says how tokens are drafted for a sequence. The engine decides this, not the client. Everything that it points to
// must outlive the sequence.
struct Drafting {
  VerifyRule verify = VerifyRule::kToken;
  // Says how the draft model's K is chosen, and the tree's shape if it drafts trees; none: the draft model drafts
  // nothing.
  std::optional<ControllerOptions> model = std::nullopt;
  // The same for drafts from the sequence's own text; none: nothing is drafted from the text. A step uses the draft
  // model or the text, whichever promises more.
  std::optional<ControllerOptions> text = std::nullopt;
  // Null: the stepper's draft. One step may mix sequences with different drafts.
  CausalModel* draft = nullptr;
  // The draft's passes are timed into these costs, and the draft's controller reads them; null: the stepper's costs.
  CostModel* draft_costs = nullptr;
  // A second draft that only scores the positions that `draft` drafted; it does not affect the text.
  CausalModel* shadow = nullptr;
  // The likely length of the answer, if known. It limits the number of tokens that the controller expects to come.
  int64_t expected_tokens = std::numeric_limits<int64_t>::max();
};
// Returns the Drafting that the options ask for; with k = 0 it drafts nothing.
Drafting drafting(const SpeculationOptions& options);

// Holds one answer in progress. Between steps, the target's cache holds all tokens but the last. The draft's cache
// holds a prefix of the tokens and catches up in the next draft pass. Between Stepper::open() and the end of prefill,
// and after Stepper::close(), the caches hold less, and the sequence takes part in no step.
class Sequence {
 public:
  // Opens no cache yet. If `randomness` is null, uses SeededRandomness with the request's seed. `stepper` must outlive
  // the sequence.
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
  StepOutcome& outcome() { return outcome_; }       // of the last step
  const StepOutcome& outcome() const { return outcome_; }
  const AcceptanceCounts& counts() const { return counts_; }  // over all steps
  // Returns the logprobs of all prompt tokens but the first, if the request wants them; the first has none, since
  // nothing precedes it. Call it after prefill. After the call, another prefill of the sequence does not score the
  // prompt again.
  std::vector<PositionLogprobs> take_prompt_logprobs();
  const KController* controller() const { return controller_ ? &*controller_ : nullptr; }
  // Makes the next steps choose K with a new controller.
  void replace_controller(const ControllerOptions& options);
  // Returns whether the draft model failed (other than by CacheFull) or gave no finite logits. From then on the
  // sequence does not use it.
  bool draft_failed() const { return draft_failed_; }
  SequenceId target_id() const { return target_id_; }  // < 0: no cache is open
  SequenceId draft_id() const { return draft_id_; }

 private:
  friend class Stepper;
  // A deliberately wrong step of tests/lossless, which draws held tokens anew.
  friend struct ForgetfulStep;
  // Drafts from the sequence's own text. The controller learns how often these drafts are accepted.
  struct SuffixDraft {
    SuffixDrafter drafter;
    KController controller;
  };

  Stepper& stepper_;
  const Request request_;
  Drafting drafting_;  // its draft must not change while draft_id_ >= 0
  std::vector<int32_t> tokens_;
  int64_t remaining_ = 0;
  std::unique_ptr<Randomness> randomness_;
  std::optional<LogitsProcessorState> rules_;  // kept up to date by the step
  std::optional<KController> controller_;
  std::optional<SuffixDraft> suffix_;
  SequenceId target_id_ = -1, draft_id_ = -1, shadow_id_ = -1;
  bool draft_failed_ = false;
  int draft_rest_ = 0;  // steps left without the draft, after its caches were full
  // The draft of a step whose target pass threw. The next step verifies these tokens, because they have been drawn.
  // Drawing new tokens because of how these came out (for example because too few fitted into the cache) would change
  // the distribution of the text.
  std::optional<DraftTokens> held_;
  StepOutcome outcome_;
  bool scores_prompt_;
  std::vector<PositionLogprobs> prompt_logprobs_;
  AcceptanceCounts counts_;
};

}  // namespace specdec::decode
