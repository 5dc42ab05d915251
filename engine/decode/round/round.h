// One round of drafting and verification as a whole. A step (step.h) plans a slot for each sequence, has a runner run
// them, and commits what comes out. DeviceRound (device_round.h) runs a whole round on a GPU and does not ask the host
// in between. HostRound (host_round.h) runs it on the host and calls the models one after the other.
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

// Tokens that are drafted and not verified yet, as the nodes of a tree, level by level. A chain has one node in each
// level.
struct DraftTokens {
  bool from_text = false;                // proposed by the text itself: a chain without q
  int depth = 0;                         // number of levels
  std::vector<int32_t> tokens, parents;  // by node; parent −1 is the text
  std::vector<size_t> q_of;              // by node: the row of q that its token was drawn from
  std::vector<float> q;                  // rows of V; empty if there is no q (greedy, or drafted from the text)
  std::vector<double> confidences;       // of a chain: the draft's confidence in each token
  void clear() {
    from_text = false;
    depth = 0;
    tokens.clear(), parents.clear(), q_of.clear(), q.clear(), confidences.clear();
  }
};

// One sequence's part of a round.
struct RoundSlot {
  std::span<const int32_t> text;  // the target's cache holds all of these tokens but the last
  SequenceId target = -1;
  // The draft model drafts k levels; its cache holds a prefix of the text. With k = 0 it has no part.
  CausalModel* drafter = nullptr;
  SequenceId draft = -1;
  int k = 0;
  std::span<const int> tree;           // of at least k levels (SpeculationOptions); empty: a chain
  const StopRule* stop = nullptr;      // of a chain; null: it never stops early
  bool wants_confidences = false;      // for a greedy chain; a sampled chain has them anyway
  const DraftTokens* given = nullptr;  // tokens that were drafted before this round; only if k is 0
  SamplingOptions sampling = {};
  VerifyRule rule = VerifyRule::kToken;
  Randomness* randomness = nullptr;
  // The members below ask for what only a round on the host can give (wants_only_tokens()).
  LogitsProcessorState* processors = nullptr;
  int logprobs = -1, reject_top = 0;  // as in RequestOptions
  bool wants_rows = false;            // RoundOutcome::rows
};

// Returns whether a device could run this slot: it wants only tokens, confidences and overlaps, has no logits
// processors, draws from Philox, does not use the coupled rule, and does not verify a draft that the draft model drew
// in an earlier round.
bool wants_only_tokens(const RoundSlot& slot);

struct RoundOutcome {
  // By node. `drafted` is kNotDrafted for nodes of the whole shape (DraftShape) that a device did not draft: drafting
  // stopped before them, or their parent has fewer children than others. Parent −1 is the text.
  std::vector<int32_t> drafted, parents;
  std::vector<double> confidences;  // of a chain: the draft's confidence in each token
  // By node: Σ min(p, q) and min(1, p / q) at each node that is the first child of its parent, at least where the text
  // reached this parent. They mean nothing if the text is greedy, and may be empty if there is no q.
  std::vector<double> overlaps, ratios;
  VerifyResult result;
  bool stopped_early = false;  // StopRule ended drafting before k levels
  int cut = 0;                 // levels that were given up, since the target's caches had no room for them

  // Only rounds on the host set the members below. This one is set if the draft's pass failed or its logits cannot be
  // sampled.
  std::exception_ptr draft_failure;
  // Set if the target's logits cannot be sampled; `result` then means nothing.
  std::exception_ptr failure;
  // True if the grammar's mask was not ready in time; `result` then means nothing. `held` is the draft that the next
  // round must verify, after a late mask or a target pass that threw.
  bool mask_late = false;
  std::optional<DraftTokens> held;
  // p after the text and after each node, [nodes + 1, V], where the text reached it; logits if it is greedy. Valid
  // until the runner's next round. Only if wanted.
  std::span<const float> rows;
  std::vector<PositionLogprobs> logprobs;    // one for each token that the round emits, if wanted
  std::optional<PositionLogprobs> rejected;  // the first rejected token, if wanted

  void clear();
};

// path_to() and depth_of() walk through a draft whose nodes have these parents. path_to() sets `path` to the nodes from
// the text to `node`.
void path_to(int32_t node, std::span<const int32_t> parents, std::vector<int32_t>& path);
// Returns the level of the node, counted from 1.
int depth_of(size_t node, std::span<const int32_t> parents);

// Moves the state of logits processors between the nodes of a draft.
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
  LogitsProcessorState* state_ = nullptr;  // null: there are none
  int32_t node_ = kUnknown;                // the last node whose token the state has seen; −1: the text
  std::vector<int32_t> path_;              // scratch
};

// How long the parts of a round took. A level is a pass of one draft with its drawing.
struct RoundSeconds {
  struct Level {
    CausalModel* drafter;
    double seconds;
    int64_t more;  // tokens read beyond one for each sequence; 0 if no sequence had more than two to read
  };
  std::vector<Level> levels;
  double target = 0;
  bool measured = false;  // false: the times say nothing about other rounds
};

class RoundRunner {
 public:
  virtual ~RoundRunner() = default;
  // Returns whether run() can run these slots. Changes nothing.
  virtual bool takes(std::span<const RoundSlot> slots) = 0;
  // Runs a round and leaves in each cache what its passes leave there: the target's holds the text and all nodes,
  // drafted or not; the draft's holds the text and all nodes but those of the last level, or, for a chain, all drafted
  // tokens but the last. `outcomes` has one element for each slot. Returns false, with every cache and the randomness
  // as before, if this runner cannot sample the logits of a slot; a round on the host then finds out which slot it is.
  // Throws as CausalModel::extend() does; caches may then hold more tokens than before.
  virtual bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) = 0;
};

}  // namespace specdec::decode
