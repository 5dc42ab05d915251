// The drafting half of a step. Drafts level by level; a level takes one pass of the draft over all sequences.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/decode/step_state.h"
#include "engine/rules/draft_rules.h"

namespace specdec::decode {

namespace {

// In tokens: the largest prefill pass of a draft, and the lag up to which catching up does not count towards
// draft_reads.
constexpr int64_t kCatchUpChunk = 512, kFarBehind = 64;
// Number of steps without the draft after its caches were full. The draft then prefills the whole text again, and may
// again find its caches full.
constexpr int kDraftRest = 32;

}  // namespace

void Stepper::drop_draft(Sequence& s, const std::exception& reason) {
  if (dynamic_cast<const CacheFull*>(&reason)) {
    s.draft_rest_ = kDraftRest;
  } else {
    log(LogLevel::kWarn, std::string("the draft failed and its sequence goes on without it: ") + reason.what());
    s.draft_failed_ = true;
  }
  if (s.draft_id_ >= 0) draft_of(s)->close(s.draft_id_);
  s.draft_id_ = -1;
}

// Limits the depth to what fits into both caches, where every token fed takes a slot. For the target, `remaining_`
// ensures this, because open() limits it. The draft is fed all levels but the last.
int Stepper::limit_depth(const Sequence& s, int depth) const {
  const int64_t n = static_cast<int64_t>(s.tokens_.size());
  const int64_t room = std::min(s.remaining_ - 1, draft_of(s)->max_length() - n + 1);
  return static_cast<int>(std::clamp<int64_t>(depth, 0, std::max<int64_t>(room, 0)));
}

// Drafts from the text if this promises more than the draft model, which then does nothing in this step.
void Stepper::draft_from_text(SequenceStep& step, int batch) {
  Sequence& s = *step.sequence;
  if (!s.suffix_ || s.remaining_ < 2) return;
  KController& controller = s.suffix_->controller;
  const std::span<const int32_t> proposal =
      s.suffix_->drafter.propose(s.tokens_, static_cast<int>(std::min<int64_t>(s.remaining_ - 1, controller.max_k())));
  if (proposal.empty()) return;
  const int k = controller.choose_k(batch);
  const bool model = draft_of(s) && s.controller_ && !s.draft_failed_;
  if (k == 0 || (model && s.controller_->expected_rate(batch) >= controller.rate())) return;
  for (const int32_t token : proposal.first(std::min(proposal.size(), static_cast<size_t>(k)))) {
    const auto parent = static_cast<int32_t>(step.drafted.size()) - 1;
    step.advance_rules_to(parent);
    if (s.rules_ && !s.rules_->allows(token, target_.vocab_size())) break;
    step.drafted.push_back(token);
    step.parents.push_back(parent);
  }
  if (step.drafted.empty()) return;
  step.from_text = true;
  step.depth = static_cast<int>(step.drafted.size());
  prepare_leaf(step);
}

// Has the mask after a chain's last token computed while the models run.
void Stepper::prepare_leaf(SequenceStep& step) {
  if (!step.sequence->rules_ || !step.chain()) return;
  step.advance_rules_to(static_cast<int32_t>(step.drafted.size()) - 1);
  step.sequence->rules_->prepare();
}

// Chooses how deep to draft for every sequence. Sequences with the same draft choose together.
void Stepper::choose_depths() {
  Buffers& b = *buffers_;
  const std::span<SequenceStep> steps = b.used();
  const auto drafts = [this](const SequenceStep& step) {
    const Sequence& s = *step.sequence;
    return s.controller_ && draft_of(s) && !step.from_text && !step.rests && !s.draft_failed_ && !s.held_;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    Sequence& first = *steps[i].sequence;
    if (!drafts(steps[i])) {
      if (first.held_) continue;  // its depth was chosen in an earlier step
      const PlainReason rests = steps[i].rests ? PlainReason::kNoRoom : PlainReason::kNoDraft;
      first.outcome_.decision = {0, steps[i].from_text    ? PlainReason::kFromText
                                    : first.draft_failed_ ? PlainReason::kDraftFailed
                                                          : rests};
      continue;
    }
    const auto same = [&](const SequenceStep& step) {
      return drafts(step) && draft_of(*step.sequence) == draft_of(first);
    };
    if (std::any_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(i), same)) continue;
    b.controllers.clear();
    for (SequenceStep& step : steps.subspan(i)) {
      if (!same(step)) continue;
      Sequence& s = *step.sequence;
      const auto text = std::span(s.tokens_).first(s.tokens_.size() - 1);
      const int64_t has = s.draft_id_ < 0 ? draft_of(s)->cached_prefix_tokens(text, s.options().tenant)
                                          : draft_of(s)->length(s.draft_id_);
      s.controller_->expect(static_cast<int64_t>(text.size()) - has,
                            std::min(s.remaining_, s.drafting_.expected_tokens));
      b.controllers.push_back(&*s.controller_);
    }
    KController::choose(b.controllers, static_cast<int>(steps.size()));
    for (SequenceStep& step : steps.subspan(i)) {
      if (!same(step)) continue;
      Sequence& s = *step.sequence;
      s.outcome_.decision = s.controller_->decision();
      step.limit = limit_depth(s, s.outcome_.decision.k);
      if (s.outcome_.decision.k > 0 && step.limit == 0) s.outcome_.decision = {0, PlainReason::kNoRoom};
    }
  }
}

void Stepper::plan(std::span<Sequence* const> batch) {
  Buffers& b = *buffers_;
  if (b.steps.size() < batch.size()) b.steps.resize(batch.size());
  b.num_steps = batch.size();
  for (size_t i = 0; i < batch.size(); ++i) {
    SequenceStep& step = b.steps[i];
    Sequence& s = *batch[i];
    if (s.remaining_ < 1 || s.target_id_ < 0 || pending_prefill(s) > 0)
      throw Error(ErrorKind::kInternal,
                  "step: sequence " + std::to_string(i) + " is finished, or was not started or not read whole");
    step.sequence = &s;
    step.before = static_cast<int64_t>(s.tokens_.size());
    step.limit = 0;
    step.from_text = false;
    step.depth = 0;
    step.level = step.num_q = 0;
    step.rules_node = -1;
    if (s.rules_) s.rules_->rewind();
    step.drafted.clear();
    step.parents.clear();
    step.q_of.clear();
    step.path.clear();
    step.confidences.clear();
    step.ratios.clear();
    step.rests = s.draft_rest_ > 0 && s.draft_rest_-- > 0;
    if (!s.held_) draft_from_text(step, static_cast<int>(batch.size()));
    s.outcome_.clear();
  }
  choose_depths();
  size_t rows = 0;
  for (SequenceStep& step : b.used()) {
    const Sequence& s = *step.sequence;
    step.drafting = step.limit > 0;
    step.q_row = rows;
    if (s.held_) rows += s.held_->q.size() / static_cast<size_t>(target_.vocab_size());
    // One row for the text, and one for every node that may have children.
    if (!s.options().sampling.greedy() && step.drafting)
      rows += 1 + static_cast<size_t>(tree_nodes(s.controller_->tree(), step.limit - 1));
  }
  const size_t need = rows * static_cast<size_t>(target_.vocab_size());
  if (b.q.size() < need) b.q.resize(need);
  for (SequenceStep& step : b.used())
    if (step.sequence->held_) restore(step);
}

// Makes the held draft of an earlier step the draft of this step.
void Stepper::restore(SequenceStep& step) {
  HeldDraft& held = *step.sequence->held_;
  step.from_text = held.from_text;
  step.depth = held.depth;
  step.drafted = held.tokens;
  step.parents = held.parents;
  step.q_of = held.q_of;
  step.num_q = held.q.size() / static_cast<size_t>(target_.vocab_size());
  std::copy(held.q.begin(), held.q.end(),
            buffers_->q.begin() + static_cast<int64_t>(step.q_row) * target_.vocab_size());
  step.confidences = held.confidences;
  step.sequence->held_.reset();
}

// Prefills a cache until one short pass can take the rest of `tokens`. Returns false if the step's draft_reads do not
// suffice for this.
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

void Stepper::catch_up(SequenceStep& step) {
  Sequence& s = *step.sequence;
  try {
    CausalModel& draft = *draft_of(s);
    if (s.draft_id_ < 0) open_cache(draft, s.draft_id_, s, s.tokens_.size() - 1);
    if (draft.follow(s.draft_id_, s.target_id_) < step.before) {
      step.drafting = false;
      s.outcome_.decision = {0, PlainReason::kCatchingUp};
      return;
    }
    const int64_t before = draft.length(s.draft_id_);
    const double started = clock_ ? clock_->seconds() : 0;
    step.drafting = read_up(draft, s.draft_id_, s.tokens_);
    CostModel* const costs = draft_costs_of(s);
    if (const int64_t read = draft.length(s.draft_id_) - before; read > 0 && costs && clock_)
      costs->record_read(read, clock_->seconds() - started);
    if (!step.drafting) s.outcome_.decision = {0, PlainReason::kCatchingUp};
  } catch (const std::exception& e) {
    step.drafting = false;
    drop_draft(s, e);
  }
}

// Draws a node's children from its logits, without replacement, so that siblings differ. Takes the likeliest tokens for
// greedy text, and under the target rule, which lets the draft choose. Returns false if no child was drawn: the logits
// cannot be sampled, or the logits processors leave no token, or their mask is late. The latter two are no failure:
// the target need not reach this node, and drafting may end before any token, because that does not depend on it.
bool Stepper::draft_children(SequenceStep& step, int32_t parent, std::span<float> logits) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  step.advance_rules_to(parent);
  if (s.rules_ && s.rules_->apply(logits) != LogitsProcessorState::Applied::kDone) return false;
  const size_t row = step.num_q;
  const int width = step.chain() ? 1 : s.controller_->tree()[static_cast<size_t>(step.depth)];
  const bool greedy = s.options().sampling.greedy();
  const std::span<float> q =
      greedy ? logits : std::span<float>(b.q.data() + (step.q_row + row) * logits.size(), logits.size());
  const float none = greedy ? -std::numeric_limits<float>::infinity() : 0.f;
  double confidence = 1;
  try {
    if (greedy && step.chain() && s.controller_->adaptive()) confidence = max_probability(logits);
    if (!greedy) distribution(logits, s.options().sampling, q, b.ids);
  } catch (const Error& e) {
    drop_draft(s, e);
    return false;
  }
  std::span<float> left = q;
  // q must stay whole for verification.
  if (!greedy && width > 1) {
    b.scratch.assign(q.begin(), q.end());
    left = b.scratch;
  }
  const auto likely = [&] {
    return std::count_if(q.begin(), q.end(), [](float x) { return x >= rules::kLeastDrawn; });
  };
  const int most = greedy || width == 1 ? width : static_cast<int>(std::clamp<int64_t>(likely(), 1, width));
  for (int child = 0; child < most; ++child) {
    if (child > 0 && greedy && std::none_of(left.begin(), left.end(), [&](float x) { return x > none; })) break;
    int32_t token = -1;
    try {
      if (greedy || s.drafting_.verify == VerifyRule::kTarget)
        token = argmax(left);
      else if (s.drafting_.verify == VerifyRule::kCoupled)
        token = s.randomness_->draw_at(step.before + step.depth, left);
      else
        token = s.randomness_->draw(Purpose::kDraft, left);
    } catch (const Error& e) {
      if (child > 0) break;
      drop_draft(s, e);
      return false;
    }
    step.drafted.push_back(token);
    step.parents.push_back(parent);
    step.q_of.push_back(row);
    if (step.chain()) step.confidences.push_back(greedy ? confidence : q[static_cast<size_t>(token)]);
    if (width > 1) left[static_cast<size_t>(token)] = none;
  }
  if (!greedy) ++step.num_q;
  return true;
}

// Draws children for every node of the deepest level, or for the text if nothing is drafted. `row` is the first row of
// the logits of these nodes. Returns false if drafting ends here.
bool Stepper::draft_level(SequenceStep& step, int64_t row) {
  const size_t first = step.level, last = step.drafted.size();
  const int64_t parents = step.depth == 0 ? 1 : static_cast<int64_t>(last - first);
  for (int64_t i = 0; i < parents; ++i) {
    const int32_t parent = step.depth == 0 ? -1 : static_cast<int32_t>(first) + static_cast<int32_t>(i);
    if (!draft_children(step, parent, buffers_->draft_rows.row(row + i)) && step.sequence->draft_failed_) break;
  }
  if (step.drafted.size() == last) return false;
  step.level = last;
  ++step.depth;
  prepare_leaf(step);
  Sequence& s = *step.sequence;
  if (s.draft_failed_ || step.depth >= step.limit) return false;
  return !(s.outcome_.decision.stopped_early = s.controller_->stop_after(
               step.confidences, static_cast<int>(buffers_->num_steps), static_cast<int>(buffers_->active.size())));
}

// Sets the input of the draft's next pass. A chain continues from its last token. A tree is fed whole again, because
// tokens of a level must not see each other and the mask can only separate tokens of one pass.
void Stepper::add_feed(SequenceStep& step) {
  Sequence& s = *step.sequence;
  step.feed_parents.clear();
  if (step.depth == 0) {
    step.feed.assign(s.tokens_.begin() + draft_of(s)->length(s.draft_id_), s.tokens_.end());
    step.feed_rows = 1;
  } else if (step.chain()) {
    step.feed.assign(1, step.drafted.back());
    step.feed_rows = 1;
  } else {
    draft_of(s)->truncate(s.draft_id_, step.before);
    step.feed = step.drafted;
    step.feed_parents = step.parents;
    step.feed_rows = static_cast<int64_t>(step.drafted.size() - step.level);
  }
  buffers_->extensions.push_back({s.draft_id_, step.feed, step.feed_rows, step.feed_parents});
}

// Runs one pass of one draft for the sequences in `active`, all of which use this draft. If the pass throws, restores
// every cache and returns false; if `active` has only one sequence, it also loses its draft.
bool Stepper::draft_pass(std::span<const size_t> active) {
  Buffers& b = *buffers_;
  CausalModel& draft = *draft_of(*b.steps[active.front()].sequence);
  b.extensions.clear();
  for (const size_t i : active) add_feed(b.steps[i]);
  try {
    draft.extend(b.extensions, b.draft_rows);
    return true;
  } catch (const std::exception& e) {
    for (const size_t i : active) {
      SequenceStep& step = b.steps[i];
      Sequence& s = *step.sequence;
      const auto fed = static_cast<int64_t>(step.feed.size());
      const int64_t before = step.depth == 0 ? step.before - fed
                             : step.chain()  ? step.before + step.depth - fed
                                             : step.before;
      if (draft.length(s.draft_id_) > before) draft.truncate(s.draft_id_, before);
      if (active.size() > 1) continue;
      step.drafting = false;
      drop_draft(s, e);
    }
    return false;
  }
}

// Lets the drafts read the text until one short pass can take the rest.
void Stepper::read_texts() {
  for (SequenceStep& step : buffers_->used()) {
    read_along(*step.sequence, kFarBehind, /*with_draft=*/!step.drafting);
    if (step.drafting) catch_up(step);
  }
}

void Stepper::draft_tokens() {
  Buffers& b = *buffers_;
  read_texts();
  for (SequenceStep& step : b.used())
    if (step.drafting) draft_with(*draft_of(*step.sequence));
  for (SequenceStep& step : b.used()) {
    Sequence& s = *step.sequence;
    if (step.limit == 0 || !step.drafted.empty() || s.outcome_.decision.k == 0) continue;
    s.outcome_.decision = {0, s.draft_failed_     ? PlainReason::kDraftFailed
                              : s.draft_rest_ > 0 ? PlainReason::kNoRoom
                                                  : PlainReason::kRules};
  }
}

// Records the time of a draft pass. `more` is the number of tokens that it prefilled in addition to the last one of
// each sequence; 0 if no sequence prefilled more than two tokens. With `more` > 0, the time beyond that of a usual
// draft pass is recorded as prefill.
void Stepper::record_draft(CostModel& costs, double seconds, int64_t more) {
  const int batch = static_cast<int>(buffers_->num_steps);
  if (more == 0) return costs.record_draft(batch, seconds);
  const double usual = costs.draft_seconds(batch);
  costs.record_read(more, std::isfinite(usual) ? seconds - usual : seconds);
}

// Runs all passes of one draft in this step.
void Stepper::draft_with(CausalModel& draft) {
  Buffers& b = *buffers_;
  for (;;) {
    b.active.clear();
    bool short_pass = true;
    for (size_t i = 0; i < b.num_steps; ++i) {
      SequenceStep& step = b.steps[i];
      if (!step.drafting || draft_of(*step.sequence) != &draft) continue;
      b.active.push_back(i);
      if (step.depth == 0 && step.before - draft.length(step.sequence->draft_id_) > 2) short_pass = false;
    }
    if (b.active.empty()) return;
    const double started = clock_ ? clock_->seconds() : 0;
    if (draft_pass(b.active)) {
      int64_t row = 0, fed = 0;
      for (const size_t i : b.active) {
        SequenceStep& step = b.steps[i];
        const int64_t rows = step.feed_rows;
        fed += static_cast<int64_t>(step.feed.size());
        step.drafting = draft_level(step, row);
        row += rows;
      }
      CostModel* const costs = draft_costs_of(*b.steps[b.active.front()].sequence);
      if (costs && clock_)
        record_draft(*costs, clock_->seconds() - started, short_pass ? 0 : fed - static_cast<int64_t>(b.active.size()));
    } else {
      // Runs each sequence alone, so that only the sequences whose own pass throws lose their draft.
      for (const size_t i : b.active)
        b.steps[i].drafting = b.steps[i].drafting && draft_pass({&i, 1}) && draft_level(b.steps[i], 0);
    }
  }
}

}  // namespace specdec::decode
