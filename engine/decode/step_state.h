// Stepper's internal state, shared by the phases of a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/step.h"

namespace specdec::decode {

// One sequence's part of a step. Drafted tokens are the nodes of a tree, numbered level by level. A chain has one node
// per level.
struct Stepper::SequenceStep {
  Sequence* sequence = nullptr;
  int limit = 0;  // maximum number of levels in this step
  bool drafting = false;
  bool rests = false;  // whether the draft pauses in this step (draft_rest_)
  int64_t before = 0;  // tokens.size() at the start of the step
  // Tokens drafted before the models run: from the sequence's own text, or held from an earlier step.
  DraftTokens given;
  StopRule stop;           // decides when the draft model stops drafting
  bool from_text = false;  // drafted from the sequence's own text (prompt lookup), so there is no q
  int depth = 0;           // number of drafted levels
  // Indexed by node; parent −1 is the text. After a round on a device, tree nodes that were not drafted are
  // kNotDrafted.
  std::vector<int32_t> drafted, parents;
  ProcessorWalk processors;
  std::vector<double> confidences, ratios;
  std::vector<int32_t> path;  // accepted nodes
  VerifyResult result;

  bool chain() const { return from_text || !sequence->controller_ || sequence->controller_->tree().empty(); }
  // Returns the verification rule. Tokens drafted from the sequence's own text have no q, so their rule must be one
  // that draws from the target.
  VerifyRule rule() const {
    return from_text && sequence->drafting_.verify != VerifyRule::kCoupled ? VerifyRule::kTarget
                                                                           : sequence->drafting_.verify;
  }
  // Returns whether the verification rule accepts a drafted token with a probability equal to the overlap. If not, the
  // controller does not learn from overlaps but from which drafted tokens were accepted.
  bool by_overlap() const { return chain() && (rule() == VerifyRule::kToken || rule() == VerifyRule::kBlock); }
  // Returns the index of the first drafted child of `node` at or after index `from`, or −1 if there is none.
  int32_t child_of(int32_t node, int32_t from) const {
    for (auto i = static_cast<size_t>(from); i < drafted.size(); ++i)
      if (parents[i] == node && drafted[i] != kNotDrafted) return static_cast<int32_t>(i);
    return -1;
  }
  // Returns whether `token` is a drafted child of `node`.
  bool has_child(int32_t node, int32_t token) const {
    for (int32_t child = child_of(node, node + 1); child >= 0; child = child_of(node, child + 1))
      if (drafted[static_cast<size_t>(child)] == token) return true;
    return false;
  }
};

struct Stepper::Buffers {
  std::vector<SequenceStep> steps;  // never shrinks, so that the vectors inside keep their memory
  size_t num_steps = 0;
  std::vector<KController*> controllers;
  std::vector<Extension> extensions;
  std::vector<int32_t> feed;  // input of the shadow draft, a second draft on trial
  int64_t draft_reads = 0;    // tokens that drafts may still prefill in this step (an argument of step())
  LogitRows rows;             // logits of prefill passes and of the shadow draft
  std::vector<int32_t> ids;
  std::vector<int64_t> places;
  std::vector<RoundSlot> slots;
  std::vector<RoundOutcome> outcomes;  // never shrinks
  RoundSeconds seconds;
  bool on_device = false;  // whether the last step drafted and verified on the device

  std::span<SequenceStep> used() { return {steps.data(), num_steps}; }
};

}  // namespace specdec::decode
