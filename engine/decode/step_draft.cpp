// The drafting half of a step: levels of tokens, each from one pass of the draft over all sequences.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/sampler.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

namespace {

constexpr int64_t kCatchUpChunk = 512, kFarBehind = 64;  // tokens
constexpr int kDraftRest = 32;  // steps: the draft reads the whole text again, and may find no room again

}  // namespace

void Stepper::drop_draft(Sequence& s, const std::exception& reason) {
  if (dynamic_cast<const OutOfRoom*>(&reason)) {
    s.draft_rest = kDraftRest;
  } else {
    log(LogLevel::kWarn, std::string("the draft failed and its sequence goes on without it: ") + reason.what());
    s.draft_failed = true;
  }
  if (s.draft_id >= 0) draft_of(s)->close(s.draft_id);
  s.draft_id = -1;
}

// Every token fed needs a place in the cache. The target's is ensured by `remaining`, which start() cut to it; the
// draft is fed all but the last level.
int Stepper::limit_depth(const Sequence& s, int depth) const {
  const int64_t n = static_cast<int64_t>(s.tokens.size());
  const int64_t room = std::min(s.remaining - 1, draft_of(s)->max_length() - n + 1);
  return static_cast<int>(std::clamp<int64_t>(depth, 0, std::max<int64_t>(room, 0)));
}

// The text's own continuation, where it promises more than the draft model, which then does nothing in this step.
void Stepper::draft_from_text(Slot& slot, int batch) {
  Sequence& s = *slot.sequence;
  if (!s.suffix || s.remaining < 2) return;
  KController& controller = s.suffix->controller;
  const std::span<const int32_t> proposal =
      s.suffix->drafter.propose(s.tokens, static_cast<int>(std::min<int64_t>(s.remaining - 1, controller.max_k())));
  if (proposal.empty()) return;
  const int k = controller.choose_k(batch);
  const bool model = draft_of(s) && s.controller && !s.draft_failed;
  if (k == 0 || (model && s.controller->expected_rate(batch) >= controller.rate())) return;
  for (const int32_t token : proposal.first(std::min(proposal.size(), static_cast<size_t>(k)))) {
    const auto parent = static_cast<int32_t>(slot.drafted.size()) - 1;
    slot.rule_path(parent);
    if (s.rules && !s.rules->allows(token, target_.vocab_size())) break;
    slot.drafted.push_back(token);
    slot.parents.push_back(parent);
  }
  if (slot.drafted.empty()) return;
  slot.from_text = true;
  slot.depth = static_cast<int>(slot.drafted.size());
}

// Those of one draft choose together.
void Stepper::choose_depths() {
  Buffers& b = *buffers_;
  const std::span<Slot> slots = b.used();
  const auto drafts = [this](const Slot& slot) {
    const Sequence& s = *slot.sequence;
    return s.controller && draft_of(s) && !slot.from_text && !slot.rests && !s.draft_failed && !s.held;
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    Sequence& first = *slots[i].sequence;
    if (!drafts(slots[i])) {
      if (first.held) continue;  // what it holds was chosen before
      const PlainReason rests = slots[i].rests ? PlainReason::kNoRoom : PlainReason::kNoDraft;
      first.decision = {0, slots[i].from_text   ? PlainReason::kFromText
                           : first.draft_failed ? PlainReason::kDraftFailed
                                                : rests};
      continue;
    }
    const auto same = [&](const Slot& slot) { return drafts(slot) && draft_of(*slot.sequence) == draft_of(first); };
    if (std::any_of(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(i), same)) continue;
    b.controllers.clear();
    for (Slot& slot : slots.subspan(i)) {
      if (!same(slot)) continue;
      const Sequence& s = *slot.sequence;
      const auto text = std::span(s.tokens).first(s.tokens.size() - 1);
      const int64_t has = s.draft_id < 0 ? draft_of(s)->adoptable(text, s.tenant) : draft_of(s)->length(s.draft_id);
      s.controller->expect(static_cast<int64_t>(text.size()) - has, std::min(s.remaining, s.expected));
      b.controllers.push_back(s.controller);
    }
    KController::choose(b.controllers, static_cast<int>(slots.size()));
    for (Slot& slot : slots.subspan(i)) {
      if (!same(slot)) continue;
      Sequence& s = *slot.sequence;
      s.decision = s.controller->decision();
      slot.limit = limit_depth(s, s.decision.k);
      if (s.decision.k > 0 && slot.limit == 0) s.decision = {0, PlainReason::kNoRoom};
    }
  }
}

void Stepper::plan(std::span<Sequence* const> batch) {
  Buffers& b = *buffers_;
  if (b.slots.size() < batch.size()) b.slots.resize(batch.size());
  b.num_slots = batch.size();
  for (size_t i = 0; i < batch.size(); ++i) {
    Slot& slot = b.slots[i];
    Sequence& s = *batch[i];
    if (s.remaining < 1 || s.target_id < 0 || unread(s) > 0)
      throw Error(ErrorKind::kInternal,
                  "step: sequence " + std::to_string(i) + " is finished, or was not started or not read whole");
    slot.sequence = &s;
    slot.before = static_cast<int64_t>(s.tokens.size());
    slot.limit = 0;
    slot.from_text = false;
    slot.depth = 0;
    slot.level = slot.num_q = 0;
    slot.ruled = -1;
    if (s.rules) s.rules->rewind();
    slot.drafted.clear();
    slot.parents.clear();
    slot.q_of.clear();
    slot.path.clear();
    slot.confidences.clear();
    slot.ratios.clear();
    slot.rests = s.draft_rest > 0 && s.draft_rest-- > 0;
    if (!s.held) draft_from_text(slot, static_cast<int>(batch.size()));
    s.emitted.clear();
    s.emitted_logprobs.clear();
    s.overlaps.clear();
    s.observed.clear();
    s.shadow_overlaps.clear();
    s.rejected.reset();
    s.drafted = s.accepted = s.suffix_drafted = s.suffix_accepted = 0;
    s.failure = nullptr;
  }
  choose_depths();
  size_t rows = 0;
  for (Slot& slot : b.used()) {
    const Sequence& s = *slot.sequence;
    slot.drafting = slot.limit > 0;
    slot.q_row = rows;
    if (s.held) rows += s.held->q.size() / static_cast<size_t>(target_.vocab_size());
    // One row for the text and one for every node that may get children.
    if (!s.sampling.greedy() && slot.drafting)
      rows += 1 + static_cast<size_t>(tree_nodes(s.controller->tree(), slot.limit - 1));
  }
  const size_t need = rows * static_cast<size_t>(target_.vocab_size());
  if (b.q.size() < need) b.q.resize(need);
  for (Slot& slot : b.used())
    if (slot.sequence->held) restore(slot);
}

// What was drafted before is this step's draft.
void Stepper::restore(Slot& slot) {
  HeldDraft& held = *slot.sequence->held;
  slot.from_text = held.from_text;
  slot.depth = held.depth;
  slot.drafted = held.tokens;
  slot.parents = held.parents;
  slot.q_of = held.q_of;
  slot.num_q = held.q.size() / static_cast<size_t>(target_.vocab_size());
  std::copy(held.q.begin(), held.q.end(),
            buffers_->q.begin() + static_cast<int64_t>(slot.q_row) * target_.vocab_size());
  slot.confidences = held.confidences;
  slot.sequence->held.reset();
}

// Brings a cache so far that one short pass is left of `tokens`. False: more is left than this step may read.
bool Stepper::read_up(CausalModel& model, SequenceId id, std::span<const int32_t> tokens) {
  Buffers& b = *buffers_;
  for (;;) {
    const int64_t at = model.length(id), left = static_cast<int64_t>(tokens.size()) - at,
                  part = std::min(kCatchUpChunk, b.draft_reads);
    if (left <= std::max(part, kFarBehind)) {
      if (left > kFarBehind) b.draft_reads -= left;
      return true;
    }
    if (part <= 0) return false;
    b.extensions.assign(1, {id, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(part)), 0});
    model.extend(b.extensions, b.draft_rows);
    b.draft_reads -= part;
  }
}

void Stepper::catch_up(Slot& slot) {
  Sequence& s = *slot.sequence;
  try {
    CausalModel& draft = *draft_of(s);
    if (s.draft_id < 0) open_cache(draft, s.draft_id, s, s.tokens.size() - 1);
    const int64_t before = draft.length(s.draft_id);
    const double started = clock_ ? clock_->seconds() : 0;
    slot.drafting = read_up(draft, s.draft_id, s.tokens);
    CostModel* const costs = draft_costs_of(s);
    if (const int64_t read = draft.length(s.draft_id) - before; read > 0 && costs && clock_)
      costs->record_read(read, clock_->seconds() - started);
    if (!slot.drafting) s.decision = {0, PlainReason::kCatchingUp};
  } catch (const std::exception& e) {
    slot.drafting = false;
    drop_draft(s, e);
  }
}

// Draws a node's children from its logits: without replacement, so that siblings differ; where the rule lets the draft
// choose, and of greedy text, the likeliest. False: none was drawn, because the logits cannot be sampled, or because
// nothing may follow (which the target need not choose).
bool Stepper::draft_children(Slot& slot, int32_t parent, std::span<float> logits) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  slot.rule_path(parent);
  if (s.rules && !s.rules->apply(logits)) return false;
  const size_t row = slot.num_q;
  const int width = slot.chain() ? 1 : s.controller->tree()[static_cast<size_t>(slot.depth)];
  const bool greedy = s.sampling.greedy();
  const std::span<float> q =
      greedy ? logits : std::span<float>(b.q.data() + (slot.q_row + row) * logits.size(), logits.size());
  const float none = greedy ? -std::numeric_limits<float>::infinity() : 0.f;
  double confidence = 1;
  try {
    if (greedy && slot.chain() && s.controller->adaptive()) confidence = max_probability(logits);
    if (!greedy) distribution(logits, s.sampling, q, b.ids);
  } catch (const Error& e) {
    drop_draft(s, e);
    return false;
  }
  std::span<float> left = q;
  if (!greedy && width > 1) {  // q itself stays whole for verification
    b.scratch.assign(q.begin(), q.end());
    left = b.scratch;
  }
  for (int child = 0; child < width; ++child) {
    if (child > 0 && std::none_of(left.begin(), left.end(), [&](float x) { return x > none; })) break;
    int32_t token = -1;
    try {
      if (greedy || s.verify == VerifyRule::kTarget)
        token = argmax(left);
      else if (s.verify == VerifyRule::kCoupled)
        token = s.randomness->draw_at(slot.before + slot.depth, left);
      else
        token = s.randomness->draw(Purpose::kDraft, left);
    } catch (const Error& e) {
      if (child > 0) break;
      drop_draft(s, e);
      return false;
    }
    slot.drafted.push_back(token);
    slot.parents.push_back(parent);
    slot.q_of.push_back(row);
    if (slot.chain()) slot.confidences.push_back(greedy ? confidence : q[static_cast<size_t>(token)]);
    if (width > 1) left[static_cast<size_t>(token)] = none;
  }
  if (!greedy) ++slot.num_q;
  return true;
}

// Children of every node of the deepest level, or of the text; `row`: its first row of logits. False: nothing more is
// drafted.
bool Stepper::draft_level(Slot& slot, int64_t row) {
  const size_t first = slot.level, last = slot.drafted.size();
  const int64_t parents = slot.depth == 0 ? 1 : static_cast<int64_t>(last - first);
  for (int64_t i = 0; i < parents; ++i) {
    const int32_t parent = slot.depth == 0 ? -1 : static_cast<int32_t>(first) + static_cast<int32_t>(i);
    if (!draft_children(slot, parent, buffers_->draft_rows.row(row + i)) && slot.sequence->draft_failed) break;
  }
  if (slot.drafted.size() == last) return false;
  slot.level = last;
  ++slot.depth;
  Sequence& s = *slot.sequence;
  if (s.draft_failed || slot.depth >= slot.limit) return false;
  return !(s.decision.stopped_early = s.controller->stop_after(slot.confidences, static_cast<int>(buffers_->num_slots),
                                                               static_cast<int>(buffers_->active.size())));
}

// What the next pass of the draft reads. A chain goes on from its last token; a tree is read whole again, since a
// level's tokens must not see each other and only the tokens of one pass can be told apart.
void Stepper::add_feed(Slot& slot) {
  Sequence& s = *slot.sequence;
  slot.feed_parents.clear();
  if (slot.depth == 0) {
    slot.feed.assign(s.tokens.begin() + draft_of(s)->length(s.draft_id), s.tokens.end());
    slot.feed_rows = 1;
  } else if (slot.chain()) {
    slot.feed.assign(1, slot.drafted.back());
    slot.feed_rows = 1;
  } else {
    draft_of(s)->truncate(s.draft_id, slot.before);
    slot.feed = slot.drafted;
    slot.feed_parents = slot.parents;
    slot.feed_rows = static_cast<int64_t>(slot.drafted.size() - slot.level);
  }
  buffers_->extensions.push_back({s.draft_id, slot.feed, slot.feed_rows, slot.feed_parents});
}

// One pass of a draft over the slots named, all of which it drafts for. Returns false, with every cache as before, if
// it threw.
bool Stepper::draft_pass(std::span<const size_t> active) {
  Buffers& b = *buffers_;
  CausalModel& draft = *draft_of(*b.slots[active.front()].sequence);
  b.extensions.clear();
  for (const size_t i : active) add_feed(b.slots[i]);
  try {
    draft.extend(b.extensions, b.draft_rows);
    return true;
  } catch (const std::exception& e) {
    for (const size_t i : active) {
      Slot& slot = b.slots[i];
      Sequence& s = *slot.sequence;
      const auto fed = static_cast<int64_t>(slot.feed.size());
      const int64_t before = slot.depth == 0 ? slot.before - fed
                             : slot.chain()  ? slot.before + slot.depth - fed
                                             : slot.before;
      if (draft.length(s.draft_id) > before) draft.truncate(s.draft_id, before);
      if (active.size() > 1) continue;
      slot.drafting = false;
      drop_draft(s, e);
    }
    return false;
  }
}

void Stepper::draft_tokens() {
  Buffers& b = *buffers_;
  for (Slot& slot : b.used())
    if (slot.drafting) catch_up(slot);
  for (Slot& slot : b.used())
    if (slot.drafting) draft_with(*draft_of(*slot.sequence));
  for (Slot& slot : b.used()) {
    Sequence& s = *slot.sequence;
    if (slot.limit == 0 || !slot.drafted.empty() || s.decision.k == 0) continue;
    s.decision = {0, s.draft_failed     ? PlainReason::kDraftFailed
                     : s.draft_rest > 0 ? PlainReason::kNoRoom
                                        : PlainReason::kRules};
  }
}

// A pass of the draft that read `more` tokens than those it drafted behind, if they are worth counting: a prompt's, or
// those of plain steps.
void Stepper::record_draft(CostModel& costs, double seconds, int64_t more) {
  const int batch = static_cast<int>(buffers_->num_slots);
  if (more == 0) return costs.record_draft(batch, seconds);
  const double usual = costs.draft_seconds(batch);
  costs.record_read(more, std::isfinite(usual) ? seconds - usual : seconds);
}

// Everything that the sequences of one draft draft in this step.
void Stepper::draft_with(CausalModel& draft) {
  Buffers& b = *buffers_;
  for (;;) {
    b.active.clear();
    bool short_pass = true;
    for (size_t i = 0; i < b.num_slots; ++i) {
      Slot& slot = b.slots[i];
      if (!slot.drafting || draft_of(*slot.sequence) != &draft) continue;
      b.active.push_back(i);
      if (slot.depth == 0 && slot.before - draft.length(slot.sequence->draft_id) > 2) short_pass = false;
    }
    if (b.active.empty()) return;
    const double started = clock_ ? clock_->seconds() : 0;
    if (draft_pass(b.active)) {
      int64_t row = 0, fed = 0;
      for (const size_t i : b.active) {
        Slot& slot = b.slots[i];
        const int64_t rows = slot.feed_rows;
        fed += static_cast<int64_t>(slot.feed.size());
        slot.drafting = draft_level(slot, row);
        row += rows;
      }
      CostModel* const costs = draft_costs_of(*b.slots[b.active.front()].sequence);
      if (costs && clock_)
        record_draft(*costs, clock_->seconds() - started, short_pass ? 0 : fed - static_cast<int64_t>(b.active.size()));
    } else {
      // Only the sequences whose own pass throws lose their draft.
      for (const size_t i : b.active)
        b.slots[i].drafting = b.slots[i].drafting && draft_pass({&i, 1}) && draft_level(b.slots[i], 0);
    }
  }
}

}  // namespace specdec::decode
