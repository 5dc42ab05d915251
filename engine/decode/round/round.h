// One round drafts and verifies once for every sequence. A step (step.h) plans a slot for each sequence, calls a
// RoundRunner with the slots, and commits the results. DeviceRound (device_round.h) runs the whole round on a GPU.
// HostRound (host_round.h) calls the models one after the other and draws and verifies on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/control/controller.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/sampling/logits_processors.h"
#include "engine/decode/sampling/logprobs.h"
#include "engine/decode/sampling/verifier.h"

namespace specdec::decode {

inline constexpr int32_t kNotDrafted = -2;

// Tokens that are drafted but not verified yet, as the nodes of a tree, level by level. A chain has one node per level.
struct DraftTokens {
  bool from_text = false;                // from the sequence's own text (prompt lookup): a chain without q
  int depth = 0;                         // number of levels
  std::vector<int32_t> tokens, parents;  // indexed by node; parent −1 is the text
  std::vector<size_t> q_of;              // by node: the row of q that its token was drawn from
  std::vector<float> q;                  // rows of V; empty if there is no q (greedy, or drafted from the text)
  std::vector<double> confidences;       // for a chain: the draft's confidence in each token
  void clear() {
    from_text = false;
    depth = 0;
    tokens.clear(), parents.clear(), q_of.clear(), q.clear(), confidences.clear();
  }
};

// The inputs of a round for one sequence.
struct RoundSlot {
  std::span<const int32_t> text;  // the target's cache holds all of these tokens but the last
  SequenceId target = -1;
  // The draft model, which drafts k levels; its cache holds a prefix of the text. Not used if k = 0.
  CausalModel* drafter = nullptr;
  SequenceId draft = -1;
  int k = 0;
  std::span<const int> tree;           // at least k levels (SpeculationOptions); empty: a chain
  const StopRule* stop = nullptr;      // for a chain; null: drafting never stops early
  bool wants_confidences = false;      // for a greedy chain; a sampled chain has them anyway
  const DraftTokens* given = nullptr;  // tokens drafted before this round; only if k is 0
  SamplingOptions sampling = {};
  VerifyRule rule = VerifyRule::kToken;
  Randomness* randomness = nullptr;
  // Only rounds on the host support the members below (wants_only_tokens()).
  LogitsProcessorState* processors = nullptr;
  int logprobs = -1, reject_top = 0;  // see RequestOptions
  bool wants_rows = false;            // whether to set RoundOutcome::rows
};

// Returns whether a round on a device could run this slot. False if the slot wants log-probabilities or rows, has
// logits processors, uses the coupled rule, does not draw with SeededRandomness, or verifies a draft that the draft
// model made in an earlier round.
bool wants_only_tokens(const RoundSlot& slot);

struct RoundOutcome {
  // Indexed by node. After a round on a device, `drafted` has all nodes of the shape (DraftShape). Nodes that were not
  // drafted have the value kNotDrafted: drafting stopped before them, or their parent has fewer children than others.
  // Parent −1 is the text.
  std::vector<int32_t> drafted, parents;
  std::vector<double> confidences;  // for a chain: the draft's confidence in each token
  // Σ min(p, q) and min(1, p / q), indexed by node. Set for each node that is its parent's first child, if the text
  // before the node was accepted. Undefined for greedy sampling; may be empty if there is no q.
  std::vector<double> overlaps, ratios;
  VerifyResult result;
  bool stopped_early = false;  // StopRule ended drafting before k levels
  int cut = 0;                 // number of levels dropped because the target's caches had no room for them

  // Only rounds on the host set the members below. draft_failure is set if the draft's pass failed or its logits cannot
  // be sampled.
  std::exception_ptr draft_failure;
  // Set if the target's logits cannot be sampled; `result` is then undefined.
  std::exception_ptr failure;
  // mask_late: the grammar's mask was not ready in time, and `result` is undefined. `held`: the draft that the next
  // round must verify, after a late mask or after the target's pass threw.
  bool mask_late = false;
  std::optional<DraftTokens> held;
  // Set if RoundSlot::wants_rows: the target's distribution after the text and after each node, [nodes + 1, V] (for
  // greedy sampling, the logits). Only rows that verification reached are set. Valid until the runner's next round.
  std::span<const float> rows;
  std::vector<PositionLogprobs> logprobs;    // one per emitted token, if wanted
  std::optional<PositionLogprobs> rejected;  // logprobs of the first rejected token, if wanted

  void clear();
};

// path_to() sets `path` to the nodes from the text to `node`, in a draft whose nodes have these parents.
void path_to(int32_t node, std::span<const int32_t> parents, std::vector<int32_t>& path);
// Returns the level of the node, counted from 1.
int depth_of(size_t node, std::span<const int32_t> parents);

// Moves the state of logits processors from one node of a draft to another.
class ProcessorWalk {
 public:
  void start(LogitsProcessorState* state) {
    state_ = state;
    node_ = kUnknown;
  }
  // Moves to the state after a node. A move to a child pushes one token; any other move rewinds and pushes the whole
  // path.
  void go_to(int32_t node, std::span<const int32_t> drafted, std::span<const int32_t> parents);

 private:
  static constexpr int32_t kUnknown = -2;
  LogitsProcessorState* state_ = nullptr;  // null: there are no logits processors
  int32_t node_ = kUnknown;                // the last node whose token the state has seen; −1: the text
  std::vector<int32_t> path_;              // reused buffer
};

// The durations of the parts of a round. A level is one pass of one draft, followed by drawing.
struct RoundSeconds {
  struct Level {
    CausalModel* drafter;
    double seconds;
    int64_t more;  // tokens that the draft read beyond one per sequence; 0 if no sequence read more than two
  };
  std::vector<Level> levels;
  double target = 0;
  bool measured = false;  // false: the times are not representative
};

class RoundRunner {
 public:
  virtual ~RoundRunner() = default;
  // Returns whether run() supports these slots, without changing anything.
  virtual bool takes(std::span<const RoundSlot> slots) = 0;
  // Runs a round. `outcomes` has one element per slot. Afterwards the target's caches hold the text and all nodes,
  // drafted or not. The drafts' caches hold the text and all nodes but those of the last level; for a chain, all
  // drafted tokens but the last. Returns false if this runner cannot sample the logits of a slot; every cache and the
  // randomness are then unchanged, and the caller runs the round on the host to find that slot. Throws as
  // CausalModel::extend() does; caches may then hold more tokens than before.
  virtual bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) = 0;
};

}  // namespace specdec::decode
