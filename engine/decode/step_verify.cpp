// The verifying half of a step: one pass of the target over all drafted tokens, then each sequence's verification rule.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

namespace {

using Applied = LogitsProcessorState::Applied;

struct MaskLate {};  // thrown by the verification of one sequence

Error no_token_left() {
  return Error(ErrorKind::kUsage,
               "the request's grammar, bad_words, allowed_token_ids, min_tokens or logit_bias leave no token: "
               "loosen them");
}

// Applies the rules, if there are any, to the row after `node`. Throws MaskLate, or MasksSpent if the node is the text.
Applied apply(std::optional<LogitsProcessorState>& rules, int32_t node, std::span<float> logits) {
  const Applied applied = rules ? rules->apply(logits) : Applied::kDone;
  if (applied == Applied::kLate) throw MaskLate();
  if (applied == Applied::kSpent && node < 0) throw MasksSpent();
  return applied;
}

}  // namespace

// Ends the step with the drafted token of `node`: the token is right, but the mask after it is not known. The next step
// asks for this mask, when the token is permanent. Such a node has no children, because they are drawn under its mask.
void Stepper::end_with(SequenceStep& step, int32_t node) {
  const auto at = static_cast<size_t>(node);
  step.result = {step.depth_of(at) - 1, step.drafted[at], step.parents[at]};
}

// Verifies with one-hot p and q: a drafted token is kept if it is the arg max. The next token is the arg max after the
// last kept token. Only reached rows are examined.
void Stepper::verify_greedy(SequenceStep& step) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  int32_t node = -1;
  for (int64_t kept = 0;; ++kept) {
    step.advance_rules_to(node);
    const std::span<float> row = b.target_rows.row(step.p_row + node + 1);
    const Applied applied = apply(s.rules_, node, row);
    if (applied == Applied::kNoTokenLeft) throw no_token_left();
    if (applied == Applied::kSpent) {
      end_with(step, node);
      break;
    }
    const int32_t best = argmax(row);
    int32_t child = next_child(b.input, node);
    while (child >= 0 && step.drafted[static_cast<size_t>(child)] != best) child = next_child(b.input, node, child + 1);
    // A reached position without a drafted token counts as 0: this node has no children, but others of its level have.
    if (static_cast<int>(s.outcome_.overlaps.size()) < step.depth)
      s.outcome_.overlaps.push_back(child >= 0 ? 1.0 : 0.0);
    if (child < 0) {
      step.result = {kept, best, node};
      break;
    }
    node = child;
  }
  step.ratios.assign(s.outcome_.overlaps.begin(), s.outcome_.overlaps.end());
  if (step.from_text) s.outcome_.overlaps.clear();
}

void Stepper::verify_sampled(SequenceStep& step) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  const size_t nodes = step.drafted.size(), vocab = static_cast<size_t>(target_.vocab_size());
  b.input.p.resize(nodes + 1);
  b.input.q.resize(step.from_text ? 0 : nodes);
  bool dead = false;
  std::vector<int32_t> spent;  // nodes after which the mask is not known
  for (size_t i = 0; i <= nodes; ++i) {
    const std::span<float> p = b.target_rows.row(step.p_row + static_cast<int64_t>(i));
    const int32_t node = static_cast<int32_t>(i) - 1;
    step.advance_rules_to(node);
    const Applied applied = apply(s.rules_, node, p);
    if (applied != Applied::kDone) std::fill(p.begin(), p.end(), 0.f);
    if (applied == Applied::kNoTokenLeft) {
      dead = true;  // the node may never be reached; if it is, drawing from this row throws
    } else if (applied == Applied::kSpent) {
      p[0] = 1;  // what is drawn from this row is not used
      spent.push_back(node);
    } else {
      distribution(p, s.options().sampling, p, b.ids);
    }
    b.input.p[i] = p;
    if (i < nodes && !step.from_text) b.input.q[i] = {b.q.data() + (step.q_row + step.q_of[i]) * vocab, vocab};
  }
  try {
    step.result = verify_fn_(step.rule(), b.input, *s.randomness_, b.scratch);
  } catch (const Error&) {
    if (dead) throw no_token_left();
    throw;
  }
  if (step.chain()) step.result.node = static_cast<int32_t>(step.result.accepted) - 1;
  if (std::find(spent.begin(), spent.end(), step.result.node) != spent.end()) end_with(step, step.result.node);
}

// Scores sampled text at each reached position. Records the overlap and the drafted token's ratio min(1, p / q). If the
// rule does not accept by overlap, records whether the token was kept instead of the ratio. Drafts from the text have
// no overlap.
void Stepper::score_positions(SequenceStep& step) {
  Sequence& s = *step.sequence;
  const VerifyInput& in = buffers_->input;
  int32_t node = -1;
  for (size_t i = 0; i < std::min(step.path.size() + 1, static_cast<size_t>(step.depth)); ++i) {
    const int32_t child = next_child(in, node), kept = i < step.path.size() ? step.path[i] : -1;
    const double was_kept = kept >= 0 ? 1.0 : 0.0;
    if (step.from_text) {
      step.ratios.push_back(was_kept);
    } else if (child < 0) {  // other nodes of this level have children, but this one has none
      s.outcome_.overlaps.push_back(0);
      step.ratios.push_back(0);
    } else {
      const std::span<const float> p = in.p[static_cast<size_t>(node + 1)], q = in.q[static_cast<size_t>(child)];
      const auto token = static_cast<size_t>(step.drafted[static_cast<size_t>(child)]);
      s.outcome_.overlaps.push_back(overlap(p, q));
      step.ratios.push_back(step.by_overlap() ? std::min(1.0, static_cast<double>(p[token]) / q[token]) : was_kept);
    }
    node = kept;
  }
}

void Stepper::verify_one(SequenceStep& step) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  const size_t vocab = static_cast<size_t>(target_.vocab_size());
  const bool rejects = s.options().reject_top > 0 && step.depth > 0 && !step.from_text;
  if (s.options().logprobs >= 0 || rejects) {
    const float* first = b.target_rows.row(step.p_row).data();
    b.raw.assign(first, first + step.pass.size() * vocab);
  }
  b.input.drafted = step.drafted;
  b.input.parents = step.chain() ? std::span<const int32_t>() : step.parents;
  b.input.position = step.before;
  if (s.options().sampling.greedy())
    verify_greedy(step);
  else
    verify_sampled(step);
  step.path_to(step.result.node, step.path);
  if (!s.options().sampling.greedy()) score_positions(step);
  const auto raw = [&](int32_t node) {
    return std::span<const float>(b.raw.data() + static_cast<size_t>(node + 1) * vocab, vocab);
  };
  const int32_t last = step.path.empty() ? -1 : step.path.back();
  const int32_t refused = rejects ? next_child(b.input, last) : -1;
  if (refused >= 0 && step.drafted[static_cast<size_t>(refused)] != step.result.next)  // see end_with()
    s.outcome_.rejected = logprobs_of(raw(last), step.drafted[static_cast<size_t>(refused)], s.options().reject_top);
  if (s.options().logprobs < 0) return;
  for (size_t i = 0; i <= step.path.size(); ++i) {
    const int32_t token = i < step.path.size() ? step.drafted[static_cast<size_t>(step.path[i])] : step.result.next;
    s.outcome_.logprobs.push_back(logprobs_of(raw(i == 0 ? -1 : step.path[i - 1]), token, s.options().logprobs));
  }
}

void Stepper::hold(SequenceStep& step) {
  if (step.depth == 0) return;
  HeldDraft& held = step.sequence->held_.emplace();
  held.from_text = step.from_text;
  held.depth = step.depth;
  held.tokens = step.drafted;
  held.parents = step.parents;
  held.q_of = step.q_of;
  const float* q = buffers_->q.data() + step.q_row * static_cast<size_t>(target_.vocab_size());
  held.q.assign(q, q + step.num_q * static_cast<size_t>(target_.vocab_size()));
  held.confidences = step.confidences;
}

// Runs one pass of the target over every sequence's last token and drafted tokens. If it throws, rolls back every
// sequence and holds its draft for the next step.
void Stepper::target_pass() {
  Buffers& b = *buffers_;
  b.extensions.clear();
  int64_t rows = 0;
  for (SequenceStep& step : b.used()) {
    step.pass.assign(1, step.sequence->tokens_.back());
    step.pass.insert(step.pass.end(), step.drafted.begin(), step.drafted.end());
    step.pass_parents.clear();
    if (!step.chain() && !step.drafted.empty()) {
      step.pass_parents.push_back(-1);
      for (const int32_t parent : step.parents) step.pass_parents.push_back(parent + 1);
    }
    step.p_row = rows;
    rows += static_cast<int64_t>(step.pass.size());
    b.extensions.push_back(
        {step.sequence->target_id_, step.pass, static_cast<int64_t>(step.pass.size()), step.pass_parents});
  }
  try {
    target_.extend(b.extensions, b.target_rows);
  } catch (...) {
    for (SequenceStep& step : b.used()) {
      roll_back(step);
      hold(step);
    }
    throw;
  }
}

void Stepper::verify_all() {
  Buffers& b = *buffers_;
  const double started = clock_ ? clock_->seconds() : 0;
  for (bool fits = false; !fits;) {
    try {
      target_pass();
      fits = true;
    } catch (const CacheFull&) {
      // Cutting a level keeps the target's distribution: whether a level fits is known before its tokens are drawn, so
      // drafting could as well have stopped before it.
      if (b.num_steps > 1 || !b.steps[0].cut_level()) throw;
      b.steps[0].sequence->held_.reset();
    }
  }
  int64_t rows = 0;
  for (SequenceStep& step : b.used()) {
    rows += static_cast<int64_t>(step.pass.size());
    try {
      verify_one(step);
    } catch (const MaskLate&) {
      step.sequence->outcome_.mask_late = true;
    } catch (...) {
      step.sequence->outcome_.failure = std::current_exception();
    }
  }
  if (costs_ && clock_) {
    const auto n = static_cast<double>(b.num_steps);
    costs_->record_target(static_cast<int>(b.num_steps), static_cast<double>(rows) / n, clock_->seconds() - started);
  }
}

}  // namespace specdec::decode
