// Stepper's internal state, which the phases of a step share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/step.h"

namespace specdec::decode {

// Holds one sequence's part of a step. Drafted tokens are the nodes of a tree, level by level. A chain has one node per
// level.
struct Stepper::SequenceStep {
  Sequence* sequence = nullptr;
  int limit = 0;  // largest number of levels in this step
  bool drafting = false;
  bool rests = false;      // the draft pauses in this step (draft_rest_)
  int64_t before = 0;      // tokens.size() at the start of the step
  DraftTokens given;       // what is drafted before the round: from the text, or held from an earlier step
  StopRule stop;           // when the draft model stops
  bool from_text = false;  // drafted by Sequence::suffix_, so there is no q
  int depth = 0;           // number of drafted levels
  // By node; parent −1 is the text. After a round of a device, nodes of a tree that were not drafted are kNotDrafted.
  std::vector<int32_t> drafted, parents;
  ProcessorWalk processors;
  std::vector<double> confidences, ratios;
  std::vector<int32_t> path;  // kept nodes
  VerifyResult result;

  bool chain() const { return from_text || !sequence->controller_ || sequence->controller_->tree().empty(); }
  // Returns the verification rule. A draft from the text has no q, so its rule must let the target draw.
  VerifyRule rule() const {
    return from_text && sequence->drafting_.verify != VerifyRule::kCoupled ? VerifyRule::kTarget
                                                                           : sequence->drafting_.verify;
  }
  // Returns whether a drafted token is accepted with a probability equal to the overlap. If this is false, the
  // controller learns from which drafted tokens were kept instead.
  bool by_overlap() const { return chain() && (rule() == VerifyRule::kToken || rule() == VerifyRule::kBlock); }
  // Returns the first drafted child of a node from `from` on, or −1.
  int32_t child_of(int32_t node, int32_t from) const {
    for (auto i = static_cast<size_t>(from); i < drafted.size(); ++i)
      if (parents[i] == node && drafted[i] != kNotDrafted) return static_cast<int32_t>(i);
    return -1;
  }
  // Returns whether a token was drafted after a node.
  bool has_child(int32_t node, int32_t token) const {
    for (int32_t child = child_of(node, node + 1); child >= 0; child = child_of(node, child + 1))
      if (drafted[static_cast<size_t>(child)] == token) return true;
    return false;
  }
};

struct Stepper::Buffers {
  std::vector<SequenceStep> steps;  // grows only, so that the vectors inside keep their memory
  size_t num_steps = 0;
  std::vector<KController*> controllers;
  std::vector<Extension> extensions;
  std::vector<int32_t> feed;  // what a draft on trial reads
  int64_t draft_reads = 0;    // the part of step()'s draft_reads that is left
  LogitRows rows;             // of passes outside rounds
  std::vector<int32_t> ids;
  std::vector<int64_t> places;
  std::vector<RoundSlot> slots;
  std::vector<RoundOutcome> outcomes;  // grow only
  RoundSeconds seconds;
  bool on_device = false;  // the last round ran on the device

  std::span<SequenceStep> used() { return {steps.data(), num_steps}; }
};

}  // namespace specdec::decode
