// One draft-verify-commit step over a batch of sequences: the single implementation that generate, validate, bench and
// serve run.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/run_options.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/controller.h"
#include "engine/decode/logit_rules.h"
#include "engine/decode/logprobs.h"
#include "engine/decode/randomness.h"
#include "engine/decode/suffix_drafter.h"
#include "engine/decode/verifier.h"

namespace specdec::decode {

// Drafting from the sequence's own text, with what it learnt of how far that goes (ControllerOptions::free_draft).
struct SuffixDraft {
  SuffixDrafter drafter;
  KController controller;
};

// What was drafted for a target pass that threw. Its tokens have been drawn, so they are verified by the next step: to
// draw others, because of how these came out (how many of them found room), would not give the target's distribution.
struct HeldDraft {
  bool from_text = false;
  int depth = 0;                         // levels
  std::vector<int32_t> tokens, parents;  // by node, as the step has them
  std::vector<size_t> q_of;              // by node: its row of q
  std::vector<float> q;                  // rows of V; empty where there is no q (greedy, from the text)
  std::vector<double> confidences;
};

// A sequence being generated. Invariant between steps: the target's cache holds all of `tokens` but the last one; the
// draft's cache holds a prefix of `tokens` (it catches up in the next draft pass). While it is opened but not read, or
// closed by finish(), it holds less, and the sequence is in no step.
struct Sequence {
  std::vector<int32_t> tokens;  // prompt and everything emitted
  SamplingOptions sampling;
  // null: logits as the models give them. Made from the prompt; the step keeps it up to date
  LogitState* rules = nullptr;
  int logprobs = -1;             // >= 0: logprobs_of() every emitted token with so many likeliest ones
  int reject_top = 0;            // > 0: `rejected`, with so many likeliest tokens
  bool prompt_logprobs = false;  // and of the prompt's, while it is read
  VerifyRule verify = VerifyRule::kToken;
  Randomness* randomness = nullptr;
  // null: nothing is drafted by the draft model. Also says whether trees are drafted, and which
  KController* controller = nullptr;
  SuffixDraft* suffix = nullptr;     // null: nothing is drafted from the text. A step takes the one that promises more
  CostModel* draft_costs = nullptr;  // where its draft's passes are timed; null: the stepper's. The controller's own
  // null: the stepper's. Fixed while draft_id >= 0; sequences of several drafts go together
  CausalModel* draft = nullptr;
  // a draft that scores what another drafted (shadow_overlaps); the text knows nothing of it
  CausalModel* shadow = nullptr;
  uint64_t tenant = 0;    // whose caches may be adopted (CausalModel::adopt), and who may adopt this one's
  int64_t remaining = 0;  // tokens that may still be emitted; K never exceeds remaining - 1
  // tokens that are likely to come, if that is known; `remaining` bounds it
  int64_t expected = std::numeric_limits<int64_t>::max();
  SequenceId target_id = -1, draft_id = -1, shadow_id = -1;
  bool draft_failed = false;      // the draft threw or gave no finite logits: plain from then on
  int draft_rest = 0;             // steps to go without the draft, whose caches were full
  std::optional<HeldDraft> held;  // the step's own
  // result of the last step:
  KDecision decision;             // of the draft model's K
  std::vector<int32_t> emitted;   // accepted + 1 tokens, appended to `tokens`
  int drafted = 0, accepted = 0;  // positions: of a tree its depth, and of that what was kept
  int suffix_drafted = 0,
      suffix_accepted = 0;  // drafted from the text: `drafted` is 0 then, since the draft model's figures stay its own
  std::vector<double> overlaps;  // Σ min(p, q) at each reached position
  std::vector<double> observed;  // what the controller was told of them: the overlap, or whether the token was kept
  // the shadow's at the same ones; empty where it was not asked or failed, which ends it
  std::vector<double> shadow_overlaps;
  std::vector<PositionLogprobs> emitted_logprobs;  // one an emitted token, where asked for
  // the first token of the draft model that was refused, as logprobs_of() sees its place
  std::optional<PositionLogprobs> rejected;
  std::exception_ptr failure;  // set when this sequence cannot go on; its tokens and caches are as before the step.
                               // Error(kUsage): its own rules leave no token, the models are well
  // of reading the prompt:
  std::vector<PositionLogprobs> prompt_positions;  // of prompt tokens 1, 2, …: the first has nothing before it
  AcceptanceCounts counts;                         // over the whole sequence
};

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

  // Opens the target's cache, with what the tenant's texts left of these tokens; `remaining` is cut to what the
  // target's max_length leaves. Throws Error(kData) if the prompt is empty, holds an id outside the vocabulary or
  // leaves no room for a token. A draft with a shorter max_length is used as far as it reaches. same_prompt: a sequence
  // that runs and whose tokens begin with these; its caches are copied, where there is room.
  void open(Sequence& sequence, const Sequence* same_prompt = nullptr);
  // One pass of the target over at most `most` tokens that it has to read before the sequence may step: all but the
  // last. How many it read. If the pass throws, the sequence is as before it.
  int64_t read(Sequence& sequence, int64_t most);
  int64_t unread(const Sequence& sequence) const {
    return static_cast<int64_t>(sequence.tokens.size()) - 1 - target_.length(sequence.target_id);
  }
  void start(Sequence& sequence, int64_t chunk = 512);  // open() and read() to the end; closed again if that throws
  // Drafts, verifies and commits once for every sequence; each emits at least one token. A draft that fails costs its
  // sequence the draft, nothing else; one that throws OutOfRoom costs it the draft for some steps. If the target's pass
  // throws, every sequence is as before the step, but that what was drafted is held for the next; a sequence alone
  // gives up its deepest levels before OutOfRoom is thrown. If the rows of some sequences cannot be sampled, those get
  // `failure`, the others are committed, and the first failure is thrown at the end. draft_reads: tokens that drafts
  // far behind may read in this step, of all sequences together; those whose draft needs more of them step plainly
  // meanwhile.
  void step(std::span<Sequence* const> batch, int64_t draft_reads = std::numeric_limits<int64_t>::max());
  // Closes caches; may be called twice. Everything else stays: opened and read again, the sequence goes on where it
  // was.
  void finish(Sequence& sequence);
  void end_shadow(Sequence& sequence);  // the sequence goes on without it

 private:
  struct Slot;
  struct Buffers;
  // step_draft.cpp
  void plan(std::span<Sequence* const> batch);
  void draft_from_text(Slot& slot, int batch);
  void choose_depths();
  int limit_depth(const Sequence& sequence, int depth) const;
  CausalModel* draft_of(const Sequence& sequence) const { return sequence.draft ? sequence.draft : draft_; }
  CostModel* draft_costs_of(const Sequence& sequence) const {
    return sequence.draft_costs ? sequence.draft_costs : costs_;
  }
  void draft_tokens();
  void draft_with(CausalModel& draft);
  void record_draft(CostModel& costs, double seconds, int64_t more);
  void restore(Slot& slot);
  bool read_up(CausalModel& model, SequenceId id, std::span<const int32_t> tokens);
  void catch_up(Slot& slot);
  void add_feed(Slot& slot);
  bool draft_pass(std::span<const size_t> active);
  bool draft_level(Slot& slot, int64_t row);
  bool draft_children(Slot& slot, int32_t parent, std::span<float> logits);
  void drop_draft(Sequence& sequence, const std::exception& reason);
  // step_verify.cpp
  void verify_all();
  void target_pass();
  void hold(Slot& slot);
  void verify_one(Slot& slot);
  void verify_greedy(Slot& slot);
  void verify_sampled(Slot& slot);
  void score_positions(Slot& slot);
  // step_shadow.cpp
  void score_shadow(Slot& slot);
  void ask_shadow(Slot& slot);
  // step.cpp
  void copy_prompt(Sequence& sequence, const Sequence& from);
  static void open_cache(CausalModel& model, SequenceId& id, const Sequence& sequence, size_t count);
  void commit(Slot& slot);
  void roll_back(Slot& slot);

  CausalModel& target_;
  CausalModel* draft_;
  CostModel* costs_;
  const Clock* clock_;
  VerifyFn verify_fn_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace specdec::decode
