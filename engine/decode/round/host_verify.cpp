// The verification half of a round on the host: one pass of the target over all drafted tokens, then each sequence's
// verification rule.
#include <algorithm>

#include "base/error.h"
#include "engine/decode/round/host_round.h"
#include "engine/decode/sampling/sampler.h"

namespace specdec::decode {

namespace {

using Applied = LogitsProcessorState::Applied;

struct MaskLate {};  // thrown if the grammar's mask is not ready when a sequence is verified

Error no_token_left() {
  return Error(ErrorKind::kUsage,
               "the request's grammar, bad_words, allowed_token_ids, min_tokens or logit_bias leave no token: "
               "loosen them");
}

// Applies the logits processors, if there are any, to the logits after `node` (negative: after the text). Throws
// MaskLate if the grammar's mask is not ready. Throws MasksSpent if the grammar has used up its time or memory after
// the text.
Applied apply(LogitsProcessorState* processors, int32_t node, std::span<float> logits) {
  const Applied applied = processors ? processors->apply(logits) : Applied::kDone;
  if (applied == Applied::kLate) throw MaskLate();
  if (applied == Applied::kSpent && node < 0) throw MasksSpent();
  return applied;
}

}  // namespace

// Ends the round with the drafted token of `node` as the next token. The token is valid, but the grammar's mask after
// it is not known (kSpent). The next round requests this mask. `node` has no children, because drawing children needs
// the same mask.
void HostRound::end_with(Part& part, int32_t node) {
  RoundOutcome& out = *part.outcome;
  const auto at = static_cast<size_t>(node);
  out.result = {depth_of(at, out.parents) - 1, out.drafted[at], out.parents[at]};
}

// Verifies greedy text: a drafted token is accepted if it is the arg max of the target's logits. The next token is the
// arg max after the last accepted token. Only rows that are reached are processed.
void HostRound::verify_greedy(Part& part) {
  RoundOutcome& out = *part.outcome;
  int32_t node = -1;
  for (int64_t kept = 0;; ++kept) {
    part.go_to(node);
    const std::span<float> row = target_rows_.row(part.p_row + node + 1);
    const Applied applied = apply(part.slot->processors, node, row);
    if (applied == Applied::kNoTokenLeft) throw no_token_left();
    if (applied == Applied::kSpent) return end_with(part, node);
    const int32_t best = argmax(row);
    int32_t child = next_child(input_, node);
    while (child >= 0 && out.drafted[static_cast<size_t>(child)] != best) child = next_child(input_, node, child + 1);
    if (child < 0) {
      out.result = {kept, best, node};
      return;
    }
    node = child;
  }
}

void HostRound::verify_sampled(Part& part) {
  const RoundSlot& slot = *part.slot;
  RoundOutcome& out = *part.outcome;
  const size_t nodes = out.drafted.size(), vocab = static_cast<size_t>(target_.vocab_size());
  input_.p.resize(nodes + 1);
  input_.q.resize(part.from_text ? 0 : nodes);
  bool dead = false;
  std::vector<int32_t> spent;  // nodes after which the mask is not known
  for (size_t i = 0; i <= nodes; ++i) {
    const std::span<float> p = target_rows_.row(part.p_row + static_cast<int64_t>(i));
    const int32_t node = static_cast<int32_t>(i) - 1;
    part.go_to(node);
    const Applied applied = apply(slot.processors, node, p);
    if (applied != Applied::kDone) std::fill(p.begin(), p.end(), 0.f);
    if (applied == Applied::kNoTokenLeft) {
      dead = true;  // an error only if this node is accepted: drawing the next token then throws
    } else if (applied == Applied::kSpent) {
      p[0] = 1;  // makes the row valid; end_with() replaces a token drawn from this row
      spent.push_back(node);
    } else {
      distribution(p, slot.sampling, p, ids_);
    }
    input_.p[i] = p;
    if (i < nodes && !part.from_text) input_.q[i] = {q_.data() + (part.q_row + part.q_of[i]) * vocab, vocab};
  }
  try {
    out.result = verify_fn_(slot.rule, input_, *slot.randomness, scratch_);
  } catch (const Error&) {
    if (dead) throw no_token_left();
    throw;
  }
  if (part.chain()) out.result.node = static_cast<int32_t>(out.result.accepted) - 1;
  if (std::find(spent.begin(), spent.end(), out.result.node) != spent.end()) end_with(part, out.result.node);
}

// Computes the overlaps and ratios of p and q for sampled text at each reached position.
void HostRound::score_positions(Part& part) {
  RoundOutcome& out = *part.outcome;
  out.overlaps.assign(out.drafted.size(), 0);
  out.ratios.assign(out.drafted.size(), 0);
  for (size_t i = 0; i <= part.path.size(); ++i) {
    const int32_t node = i == 0 ? -1 : part.path[i - 1], child = next_child(input_, node);
    if (child < 0) continue;
    const auto at = static_cast<size_t>(child);
    const std::span<const float> p = input_.p[static_cast<size_t>(node + 1)], q = input_.q[at];
    const auto token = static_cast<size_t>(out.drafted[at]);
    out.overlaps[at] = overlap(p, q);
    out.ratios[at] = std::min(1.0, static_cast<double>(p[token]) / q[token]);
  }
}

void HostRound::verify_one(Part& part) {
  const RoundSlot& slot = *part.slot;
  RoundOutcome& out = *part.outcome;
  const size_t vocab = static_cast<size_t>(target_.vocab_size());
  const bool rejects = slot.reject_top > 0 && part.depth > 0 && !part.from_text;
  const float* const first = target_rows_.row(part.p_row).data();
  if (slot.logprobs >= 0 || rejects) raw_.assign(first, first + part.pass.size() * vocab);
  if (slot.wants_rows) out.rows = {first, part.pass.size() * vocab};
  input_.drafted = out.drafted;
  input_.parents = part.chain() ? std::span<const int32_t>() : out.parents;
  input_.position = part.before();
  if (part.greedy())
    verify_greedy(part);
  else
    verify_sampled(part);
  path_to(out.result.node, out.parents, part.path);
  if (!part.greedy() && !part.from_text) score_positions(part);
  const auto raw = [&](int32_t node) {
    return std::span<const float>(raw_.data() + static_cast<size_t>(node + 1) * vocab, vocab);
  };
  const int32_t last = part.path.empty() ? -1 : part.path.back();
  const int32_t refused = rejects ? next_child(input_, last) : -1;
  // The first rejected token is reported, unless end_with() made it the next token.
  if (refused >= 0 && out.drafted[static_cast<size_t>(refused)] != out.result.next)
    out.rejected = logprobs_of(raw(last), out.drafted[static_cast<size_t>(refused)], slot.reject_top);
  if (slot.logprobs < 0) return;
  for (size_t i = 0; i <= part.path.size(); ++i) {
    const int32_t token = i < part.path.size() ? out.drafted[static_cast<size_t>(part.path[i])] : out.result.next;
    out.logprobs.push_back(logprobs_of(raw(i == 0 ? -1 : part.path[i - 1]), token, slot.logprobs));
  }
}

void HostRound::hold(Part& part) {
  if (part.depth == 0) return;
  const RoundOutcome& out = *part.outcome;
  const auto vocab = static_cast<size_t>(target_.vocab_size());
  const float* const q = q_.data() + part.q_row * vocab;
  part.outcome->held = DraftTokens{part.from_text, part.depth, out.drafted,
                                   out.parents,    part.q_of,  std::vector<float>(q, q + part.num_q * vocab),
                                   out.confidences};
}

// Runs one pass of the target over the last token and the drafted tokens of every sequence.
void HostRound::target_pass() {
  extensions_.clear();
  int64_t rows = 0;
  for (Part& part : parts()) {
    const RoundOutcome& out = *part.outcome;
    part.pass.assign(1, part.slot->text.back());
    part.pass.insert(part.pass.end(), out.drafted.begin(), out.drafted.end());
    part.pass_parents.clear();
    if (!part.chain() && !out.drafted.empty()) {
      part.pass_parents.push_back(-1);
      for (const int32_t parent : out.parents) part.pass_parents.push_back(parent + 1);
    }
    part.p_row = rows;
    rows += static_cast<int64_t>(part.pass.size());
    extensions_.push_back({part.slot->target, part.pass, static_cast<int64_t>(part.pass.size()), part.pass_parents});
  }
  target_.extend(extensions_, target_rows_);
}

void HostRound::verify_all() {
  for (bool fits = false; !fits;) {
    try {
      target_pass();
      fits = true;
    } catch (const CacheFull&) {
      // Dropping a level preserves the target's distribution. Whether a level fits is known before its tokens are
      // drawn, so the result is the same as if drafting had stopped before this level.
      if (num_parts_ == 1 && parts_[0].cut_level()) continue;
      for (Part& part : parts()) hold(part);
      throw;
    } catch (...) {
      for (Part& part : parts()) hold(part);
      throw;
    }
  }
  for (Part& part : parts()) {
    try {
      verify_one(part);
    } catch (const MaskLate&) {
      part.outcome->mask_late = true;
      hold(part);
    } catch (...) {
      part.outcome->failure = std::current_exception();
    }
  }
}

}  // namespace specdec::decode
