// The verifying half of a step: one pass of the target over all drafted tokens, then each sequence's rule.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "engine/decode/sampler.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

namespace {

Error no_token_left() {
  return Error(ErrorKind::kUsage, "the request's grammar, bad_words or logit_bias leave no token: loosen them");
}

}  // namespace

// One-hot p and q: a drafted token is kept if it is the arg max, and what follows is the arg max. Only rows that are
// reached are looked at.
void Stepper::verify_greedy(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  int32_t node = -1;
  for (int64_t kept = 0;; ++kept) {
    slot.rule_path(node);
    const std::span<float> row = b.target_rows.row(slot.p_row + node + 1);
    if (s.rules && !s.rules->apply(row)) throw no_token_left();
    const int32_t best = argmax(row);
    int32_t child = next_child(b.input, node);
    while (child >= 0 && slot.drafted[static_cast<size_t>(child)] != best) child = next_child(b.input, node, child + 1);
    // A node may have no children where its neighbours have some: the position was reached, and nothing stood there.
    if (static_cast<int>(s.overlaps.size()) < slot.depth) s.overlaps.push_back(child >= 0 ? 1.0 : 0.0);
    if (child < 0) {
      slot.result = {kept, best, node};
      break;
    }
    node = child;
  }
  slot.ratios.assign(s.overlaps.begin(), s.overlaps.end());
  if (slot.from_text) s.overlaps.clear();
}

void Stepper::verify_sampled(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  const size_t nodes = slot.drafted.size(), vocab = static_cast<size_t>(target_.vocab_size());
  b.input.p.resize(nodes + 1);
  b.input.q.resize(slot.from_text ? 0 : nodes);
  bool dead = false;
  for (size_t i = 0; i <= nodes; ++i) {
    const std::span<float> p = b.target_rows.row(slot.p_row + static_cast<int64_t>(i));
    slot.rule_path(static_cast<int32_t>(i) - 1);
    if (s.rules && !s.rules->apply(p)) {
      std::fill(p.begin(), p.end(), 0.f);  // may never be reached; drawing from it throws
      dead = true;
    } else {
      distribution(p, s.sampling, p, b.ids);
    }
    b.input.p[i] = p;
    if (i < nodes && !slot.from_text) b.input.q[i] = {b.q.data() + (slot.q_row + slot.q_of[i]) * vocab, vocab};
  }
  try {
    slot.result = verify_fn_(slot.rule(), b.input, *s.randomness, b.scratch);
  } catch (const Error&) {
    if (dead) throw no_token_left();
    throw;
  }
  if (slot.chain()) slot.result.node = static_cast<int32_t>(slot.result.accepted) - 1;
}

// Of sampled text: overlap at each reached position, and what became of the token drafted there.
void Stepper::score_positions(Slot& slot) {
  Sequence& s = *slot.sequence;
  const VerifyInput& in = buffers_->input;
  int32_t node = -1;
  for (size_t i = 0; i < std::min(slot.path.size() + 1, static_cast<size_t>(slot.depth)); ++i) {
    const int32_t child = next_child(in, node), kept = i < slot.path.size() ? slot.path[i] : -1;
    const double was_kept = kept >= 0 ? 1.0 : 0.0;
    if (slot.from_text) {
      slot.ratios.push_back(was_kept);
    } else if (child < 0) {  // neighbours of this node have children, it has none
      s.overlaps.push_back(0);
      slot.ratios.push_back(0);
    } else {
      const std::span<const float> p = in.p[static_cast<size_t>(node + 1)], q = in.q[static_cast<size_t>(child)];
      const auto token = static_cast<size_t>(slot.drafted[static_cast<size_t>(child)]);
      s.overlaps.push_back(overlap(p, q));
      slot.ratios.push_back(slot.by_overlap() ? std::min(1.0, static_cast<double>(p[token]) / q[token]) : was_kept);
    }
    node = kept;
  }
}

void Stepper::verify_one(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  const size_t vocab = static_cast<size_t>(target_.vocab_size());
  const bool rejects = s.reject_top > 0 && slot.depth > 0 && !slot.from_text;
  if (s.logprobs >= 0 || rejects) {
    const float* first = b.target_rows.row(slot.p_row).data();
    b.raw.assign(first, first + slot.pass.size() * vocab);
  }
  b.input.drafted = slot.drafted;
  b.input.parents = slot.chain() ? std::span<const int32_t>() : slot.parents;
  b.input.position = slot.before;
  if (s.sampling.greedy())
    verify_greedy(slot);
  else
    verify_sampled(slot);
  slot.path_to(slot.result.node, slot.path);
  if (!s.sampling.greedy()) score_positions(slot);
  const auto raw = [&](int32_t node) {
    return std::span<const float>(b.raw.data() + static_cast<size_t>(node + 1) * vocab, vocab);
  };
  const int32_t last = slot.path.empty() ? -1 : slot.path.back();
  if (const int32_t refused = rejects ? next_child(b.input, last) : -1; refused >= 0)
    s.rejected = logprobs_of(raw(last), slot.drafted[static_cast<size_t>(refused)], s.reject_top);
  if (s.logprobs < 0) return;
  for (size_t i = 0; i <= slot.path.size(); ++i) {
    const int32_t token = i < slot.path.size() ? slot.drafted[static_cast<size_t>(slot.path[i])] : slot.result.next;
    s.emitted_logprobs.push_back(logprobs_of(raw(i == 0 ? -1 : slot.path[i - 1]), token, s.logprobs));
  }
}

void Stepper::hold(Slot& slot) {
  if (slot.depth == 0) return;
  HeldDraft& held = slot.sequence->held.emplace();
  held.from_text = slot.from_text;
  held.depth = slot.depth;
  held.tokens = slot.drafted;
  held.parents = slot.parents;
  held.q_of = slot.q_of;
  const float* q = buffers_->q.data() + slot.q_row * static_cast<size_t>(target_.vocab_size());
  held.q.assign(q, q + slot.num_q * static_cast<size_t>(target_.vocab_size()));
  held.confidences = slot.confidences;
}

// One pass over every text's end and what was drafted behind it.
void Stepper::target_pass() {
  Buffers& b = *buffers_;
  b.extensions.clear();
  int64_t rows = 0;
  for (Slot& slot : b.used()) {
    slot.pass.assign(1, slot.sequence->tokens.back());
    slot.pass.insert(slot.pass.end(), slot.drafted.begin(), slot.drafted.end());
    slot.pass_parents.clear();
    if (!slot.chain() && !slot.drafted.empty()) {
      slot.pass_parents.push_back(-1);
      for (const int32_t parent : slot.parents) slot.pass_parents.push_back(parent + 1);
    }
    slot.p_row = rows;
    rows += static_cast<int64_t>(slot.pass.size());
    b.extensions.push_back(
        {slot.sequence->target_id, slot.pass, static_cast<int64_t>(slot.pass.size()), slot.pass_parents});
  }
  try {
    target_.extend(b.extensions, b.target_rows);
  } catch (...) {
    for (Slot& slot : b.used()) {
      roll_back(slot);
      hold(slot);
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
    } catch (const OutOfRoom&) {
      // A level less is a draft that stopped a level earlier: whether there is room for a level is known before it is
      // drawn.
      if (b.num_slots > 1 || !b.slots[0].cut_level()) throw;
      b.slots[0].sequence->held.reset();
    }
  }
  int64_t rows = 0;
  for (Slot& slot : b.used()) {
    rows += static_cast<int64_t>(slot.pass.size());
    try {
      verify_one(slot);
    } catch (...) {
      slot.sequence->failure = std::current_exception();
    }
  }
  if (costs_ && clock_) {
    const auto n = static_cast<double>(b.num_slots);
    costs_->record_target(static_cast<int>(b.num_slots), static_cast<double>(rows) / n, clock_->seconds() - started);
  }
}

}  // namespace specdec::decode
