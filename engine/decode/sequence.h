// One answer while it is made: its text so far, its random streams, who drafts for it, and its caches.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/acceptance.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/controller.h"
#include "engine/decode/randomness.h"
#include "engine/decode/request.h"
#include "engine/decode/step_outcome.h"
#include "engine/decode/suffix_drafter.h"

namespace specdec::decode {

class Stepper;

// How a sequence is drafted for. The engine decides that, not the client. What it points to outlives the sequence.
struct Drafting {
  VerifyRule verify = VerifyRule::kToken;
  // Of K of the draft model, and whether it drafts trees and which; none: the draft model drafts nothing.
  std::optional<ControllerOptions> model = std::nullopt;
  // Of K of drafts from the sequence's own text; none: nothing is drafted from it. A step takes the one of the two that
  // promises more.
  std::optional<ControllerOptions> text = std::nullopt;
  CausalModel* draft = nullptr;  // null: the stepper's. Sequences of several drafts go together
  // where its draft's passes are timed and what its controller reads; null: the stepper's
  CostModel* draft_costs = nullptr;
  CausalModel* shadow = nullptr;  // a draft that scores what another drafted; the text does not depend on it
  int64_t expected_tokens = std::numeric_limits<int64_t>::max();  // that are likely to come, if that is known
};
// As the options say; k = 0 drafts nothing.
Drafting drafting(const SpeculationOptions& options);

// What was drafted for a target pass that threw. Its tokens have been drawn, so they are verified by the next step: to
// draw others, because of how these came out (how many of them found room), would not give the target's distribution.
struct HeldDraft {
  bool from_text = false;
  int depth = 0;                         // levels
  std::vector<int32_t> tokens, parents;  // by node, as the step has them
  std::vector<size_t> q_of;              // by node: its row of q
  std::vector<float> q;                  // rows of V; empty if there is no q (greedy, from the text)
  std::vector<double> confidences;
};

// Invariant between steps: the target's cache holds all tokens but the last one; the draft's cache holds a prefix of
// them (it catches up in the next draft pass). After Stepper::open() and before it is prefilled, or after
// Stepper::close(), it holds less, and the sequence is in no step.
class Sequence {
 public:
  // Opens no cache yet. randomness: null means SeededRandomness of the request's seed. The stepper outlives it.
  Sequence(Stepper& stepper, Request request, const Drafting& drafting = {},
           std::unique_ptr<Randomness> randomness = nullptr);
  ~Sequence();  // closes its caches
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const Request& request() const { return request_; }
  const RequestOptions& options() const { return request_.options; }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // prompt and everything emitted
  std::span<const int32_t> answer() const { return std::span(tokens_).subspan(request_.prompt.size()); }
  int64_t remaining() const { return remaining_; }  // tokens that may still be emitted; K never exceeds remaining − 1
  StepOutcome& outcome() { return outcome_; }       // of the last step
  const StepOutcome& outcome() const { return outcome_; }
  const AcceptanceCounts& counts() const { return counts_; }  // over all steps
  // Of prompt tokens 1, 2, … once all of them are prefilled, if the request wants them: the first has nothing before
  // it. They are handed over once, and a sequence that is prefilled again does not score its prompt again.
  std::vector<PositionLogprobs> take_prompt_logprobs();
  const KController* controller() const { return controller_ ? &*controller_ : nullptr; }
  // The next steps choose K by a new controller.
  void replace_controller(const ControllerOptions& options);
  // The draft threw or gave no finite logits: the sequence is decoded plainly from then on.
  bool draft_failed() const { return draft_failed_; }
  SequenceId target_id() const { return target_id_; }  // < 0: no cache is open
  SequenceId draft_id() const { return draft_id_; }

 private:
  friend class Stepper;
  friend struct ForgetfulStep;  // tests/lossless: a wrong step, which draws anew what was held
  // Drafting from the sequence's own text, with what its controller learnt of how far that goes.
  struct SuffixDraft {
    SuffixDrafter drafter;
    KController controller;
  };

  Stepper& stepper_;
  const Request request_;
  Drafting drafting_;  // its draft is fixed while draft_id_ >= 0
  std::vector<int32_t> tokens_;
  int64_t remaining_ = 0;
  std::unique_ptr<Randomness> randomness_;
  std::optional<LogitsProcessorState> rules_;  // the step keeps it up to date
  std::optional<KController> controller_;
  std::optional<SuffixDraft> suffix_;
  SequenceId target_id_ = -1, draft_id_ = -1, shadow_id_ = -1;
  bool draft_failed_ = false;
  int draft_rest_ = 0;  // steps to go without the draft, whose caches were full
  std::optional<HeldDraft> held_;
  StepOutcome outcome_;
  bool scores_prompt_;
  std::vector<PositionLogprobs> prompt_logprobs_;
  AcceptanceCounts counts_;
};

}  // namespace specdec::decode
