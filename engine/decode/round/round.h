// One round of drafting and verification as a whole, for devices that can run it without asking the host in between.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/control/controller.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/sampling/verifier.h"

namespace specdec::decode {

// One sequence's part of a round.
struct RoundSlot {
  std::span<const int32_t> text;  // the target's cache holds all of these tokens but the last
  SequenceId target = -1;
  // The draft model drafts k levels; its cache holds a prefix of the text. With k = 0 it has no part.
  CausalModel* drafter = nullptr;
  SequenceId draft = -1;
  int k = 0;
  std::span<const int> tree;       // of at least k levels (SpeculationOptions); empty: a chain
  const StopRule* stop = nullptr;  // of a chain; null: it never stops early
  std::span<const int32_t> given;  // a chain of tokens that are drafted already, if k is 0
  SamplingOptions sampling = {};
  VerifyRule rule = VerifyRule::kToken;
  uint64_t seed = 0;
  std::array<uint64_t, 4> cursors = {};  // numbers drawn so far for each purpose (randomness.h)
};

inline constexpr int32_t kNotDrafted = -2;

// Values are by node of the whole shape (DraftShape) of the slot.
struct RoundOutcome {
  // kNotDrafted for nodes that were not drafted: drafting stopped before them, or their parent has fewer children than
  // others.
  std::vector<int32_t> drafted;
  std::vector<int32_t> parents;     // −1: the text
  std::vector<double> confidences;  // of a chain: the draft's in its tokens
  // Σ min(p, q) and min(1, p / q) at each node that is the first child of its parent. Unless the text is greedy, they
  // say how the draft did where the text reached this parent. Empty if `given`.
  std::vector<double> overlaps, ratios;
  VerifyResult result;
  std::array<uint64_t, 4> cursors = {};
};

// How long the parts of a round took, if the device tells. A level is a pass of one draft with its drawing.
struct RoundSeconds {
  struct Level {
    CausalModel* drafter;
    double seconds;
    int64_t more;  // tokens that the pass read besides one of each sequence; 0 if no sequence had more than two
  };
  std::vector<Level> levels;
  double target = 0;  // 0: not measured
};

class RoundRunner {
 public:
  virtual ~RoundRunner() = default;
  // Returns whether run() can run these slots. Changes nothing.
  virtual bool takes(std::span<const RoundSlot> slots) = 0;
  // Runs a round and leaves in each cache what the passes of a step leave there: the target's holds the text and all
  // nodes, drafted or not; the draft's holds the text and all nodes but those of the last level, or of a chain all
  // drafted tokens but the last. `outcomes` has one element for each slot. Returns false, with every cache as before,
  // if the logits of a slot cannot be sampled; then a step on the host says which. Throws as CausalModel::extend()
  // does; caches may then hold more tokens than before.
  virtual bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) = 0;
};

}  // namespace specdec::decode
