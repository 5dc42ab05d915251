// Stepper's internal state, which the phases of a step share.
#pragma once

#include <algorithm>
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
  bool from_text = false;  // drafted by Sequence::suffix_, so there is no q
  int64_t before = 0;      // tokens.size() at the start of the step
  size_t q_row = 0;        // its first row in Buffers::q
  int64_t p_row = 0;       // first of its nodes + 1 rows in Buffers::target_rows
  int depth = 0;           // number of drafted levels
  size_t level = 0;        // first node of the deepest level
  // By node; parent −1 is the text. After a round of a device, nodes of a tree that were not drafted are
  // kNotDrafted.
  std::vector<int32_t> drafted, parents;
  std::vector<size_t> q_of;  // by node: the row its token was drawn from, relative to q_row
  size_t num_q = 0;
  int32_t rules_node = -1;                  // last node whose token rules_ has seen
  std::vector<int32_t> rules_path;          // scratch of advance_rules_to()
  std::vector<int32_t> pass, pass_parents;  // the target's input: [last token, nodes…]; parents empty for a chain
  std::vector<int32_t> feed, feed_parents;  // input of the draft's next pass
  int64_t feed_rows = 0;
  std::vector<double> confidences, ratios;
  std::vector<int32_t> path;  // kept nodes
  VerifyResult result;

  bool chain() const { return from_text || !sequence->controller_ || sequence->controller_->tree().empty(); }
  // Returns the verification rule. A draft from the text has no q, so its rule must let the target draw.
  VerifyRule rule() const {
    return from_text && sequence->drafting_.verify != VerifyRule::kCoupled ? VerifyRule::kTarget
                                                                           : sequence->drafting_.verify;
  }
  // Returns whether a drafted token is accepted with a probability equal to the overlap. If not, the controller learns
  // from which tokens were kept.
  bool by_overlap() const { return chain() && (rule() == VerifyRule::kToken || rule() == VerifyRule::kBlock); }
  // Sets `out` to the nodes on the path from the text to `node`.
  void path_to(int32_t node, std::vector<int32_t>& out) const {
    out.clear();
    for (; node >= 0; node = parents[static_cast<size_t>(node)]) out.push_back(node);
    std::reverse(out.begin(), out.end());
  }
  int depth_of(size_t node) const {
    int depth = 1;
    for (int32_t at = parents[node]; at >= 0; at = parents[static_cast<size_t>(at)]) ++depth;
    return depth;
  }
  // Returns the first drafted node after this one, or −1.
  int32_t first_child(int32_t node) const {
    for (auto i = static_cast<size_t>(node + 1); i < drafted.size(); ++i)
      if (parents[i] == node && drafted[i] != kNotDrafted) return static_cast<int32_t>(i);
    return -1;
  }
  // Removes the deepest level, as if drafting had ended before it. Returns false if there is no level to remove.
  bool cut_level() {
    if (depth == 0) return false;
    while (!drafted.empty() && depth_of(drafted.size() - 1) == depth) drafted.pop_back();
    parents.resize(drafted.size());
    q_of.resize(std::min(q_of.size(), drafted.size()));
    confidences.resize(std::min(confidences.size(), drafted.size()));
    --depth;
    from_text = from_text && depth > 0;
    rules_node = -1;
    return true;
  }
  // Advances the logits processors to the state after a node. A move to a child pushes one token; any other move
  // rewinds and pushes the whole path.
  void advance_rules_to(int32_t node) {
    if (!sequence->rules_ || node == rules_node) return;
    if (node >= 0 && parents[static_cast<size_t>(node)] == rules_node) {
      sequence->rules_->push(drafted[static_cast<size_t>(node)]);
    } else {
      sequence->rules_->rewind();
      path_to(node, rules_path);
      for (const int32_t node_on_path : rules_path) sequence->rules_->push(drafted[static_cast<size_t>(node_on_path)]);
    }
    rules_node = node;
  }
};

struct Stepper::Buffers {
  std::vector<SequenceStep> steps;  // grows only, so that the vectors inside keep their memory
  size_t num_steps = 0;
  std::vector<size_t> active;
  std::vector<KController*> controllers;
  std::vector<Extension> extensions;
  int64_t draft_reads = 0;  // the part of step()'s draft_reads that is left
  LogitRows draft_rows, target_rows;
  std::vector<float> q, scratch;
  // The target's logits of one sequence's nodes, before logits processors and sampling options; filled only if
  // log-probabilities are requested.
  std::vector<float> raw;
  std::vector<int32_t> ids;
  std::vector<int64_t> places;
  VerifyInput input;
  std::vector<RoundSlot> slots;
  std::vector<StopRule> stops;  // grow only
  std::vector<RoundOutcome> outcomes;
  RoundSeconds seconds;

  std::span<SequenceStep> used() { return {steps.data(), num_steps}; }
};

}  // namespace specdec::decode
