// What a Stepper keeps from one phase of a step to the next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/step.h"

namespace specdec::decode {

// One sequence's share of a step. Drafted tokens are the nodes of a tree, level by level; of a chain each level has
// one.
struct Stepper::SequenceStep {
  Sequence* sequence = nullptr;
  int limit = 0;  // levels of this step at most
  bool drafting = false;
  bool rests = false;                     // Sequence::draft_rest
  bool from_text = false;                 // drafted by Sequence::suffix: there is no q
  int64_t before = 0;                     // tokens.size() at the start of the step
  size_t q_row = 0;                       // first of its rows in Buffers::q
  int64_t p_row = 0;                      // first of nodes + 1 rows in Buffers::target_rows
  int depth = 0;                          // levels drafted
  size_t level = 0;                       // first node of the deepest
  std::vector<int32_t> drafted, parents;  // by node; parent −1: the text
  std::vector<size_t> q_of;               // by node: the row it was drawn from, of q_row
  size_t num_q = 0;
  int32_t rules_node = -1;                  // the node whose path the rules have seen
  std::vector<int32_t> rules_path;          // advance_rules_to()'s own
  std::vector<int32_t> pass, pass_parents;  // of the target: [last token, nodes…]; empty parents: a chain
  std::vector<int32_t> feed, feed_parents;  // of the draft
  int64_t feed_rows = 0;
  std::vector<double> confidences, ratios;
  std::vector<int32_t> path;  // nodes that were kept
  VerifyResult result;

  bool chain() const { return from_text || !sequence->controller_ || sequence->controller_->tree().empty(); }
  // Of a draft that has no q only what the target draws itself can be asked.
  VerifyRule rule() const {
    return from_text && sequence->drafting_.verify != VerifyRule::kCoupled ? VerifyRule::kTarget
                                                                           : sequence->drafting_.verify;
  }
  // Whether a drafted token is accepted as often as the overlap says; if not, what was kept is counted.
  bool by_overlap() const { return chain() && (rule() == VerifyRule::kToken || rule() == VerifyRule::kBlock); }
  // The nodes from the text down to this one.
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
  // Without its deepest level, which ends drafting. False: there is none.
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
  // The rules as they are behind a node. One step down costs one push, any other way the whole path.
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
  int64_t draft_reads = 0;  // left of step()'s
  LogitRows draft_rows, target_rows;
  std::vector<float> q, scratch;
  // the target's rows of one step, before rules and sampling options, where log-probabilities are wanted
  std::vector<float> raw;
  std::vector<int32_t> ids;
  std::vector<int64_t> places;
  VerifyInput input;

  std::span<SequenceStep> used() { return {steps.data(), num_steps}; }
};

}  // namespace specdec::decode
