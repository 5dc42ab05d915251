// The planning phase of a step. It drafts from the text, chooses how deep each draft model drafts, and prefills the
// tokens that the drafts have not read.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

namespace {

// Both are numbers of tokens. kCatchUpChunk: the largest prefill pass of a draft. kFarBehind: drafts that lag behind
// their text by more than this may together prefill only `draft_reads` tokens per step (an argument of step()).
constexpr int64_t kCatchUpChunk = 512, kFarBehind = 64;
// Number of steps that a sequence goes without its draft after the draft's caches were full. The draft must then
// prefill the whole text again, and its caches may be full again.
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

// Limits the depth to what fits into the caches of both models, in which every token that a model reads takes a slot.
// For the target, remaining_ already ensures this. The draft does not read the last level.
int Stepper::limit_depth(const Sequence& s, int depth) const {
  const int64_t n = static_cast<int64_t>(s.tokens_.size());
  const int64_t room = std::min(s.remaining_ - 1, draft_of(s)->max_length() - n + 1);
  return static_cast<int>(std::clamp<int64_t>(depth, 0, std::max<int64_t>(room, 0)));
}

// Drafts from the sequence's own text (prompt lookup) if this promises more tokens than the draft model. The draft
// model then drafts nothing in this step.
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
  DraftTokens& given = step.given;
  step.processors.start(s.rules_ ? &*s.rules_ : nullptr);
  for (const int32_t token : proposal.first(std::min(proposal.size(), static_cast<size_t>(k)))) {
    const auto parent = static_cast<int32_t>(given.tokens.size()) - 1;
    step.processors.go_to(parent, given.tokens, given.parents);
    if (s.rules_ && !s.rules_->allows(token, target_.vocab_size())) break;
    given.tokens.push_back(token);
    given.parents.push_back(parent);
  }
  if (given.tokens.empty()) return;
  given.from_text = true;
  given.depth = static_cast<int>(given.tokens.size());
  if (!s.rules_) return;
  // The grammar's mask after the last token is computed while the models run.
  step.processors.go_to(given.depth - 1, given.tokens, given.parents);
  s.rules_->prepare();
}

// Chooses how deep to draft for every sequence. Decides for all sequences with the same draft together.
void Stepper::choose_depths() {
  Buffers& b = *buffers_;
  const std::span<SequenceStep> steps = b.used();
  const auto drafts = [this](const SequenceStep& step) {
    const Sequence& s = *step.sequence;
    return s.controller_ && draft_of(s) && !step.given.from_text && !step.rests && !s.draft_failed_ && !s.held_;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    Sequence& first = *steps[i].sequence;
    if (!drafts(steps[i])) {
      if (first.held_) continue;  // its depth was chosen in an earlier step
      const PlainReason rests = steps[i].rests ? PlainReason::kNoRoom : PlainReason::kNoDraft;
      first.outcome_.decision = {0, steps[i].given.from_text ? PlainReason::kFromText
                                    : first.draft_failed_    ? PlainReason::kDraftFailed
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
    step.given.clear();
    if (s.rules_) s.rules_->rewind();
    step.path.clear();
    step.ratios.clear();
    step.rests = s.draft_rest_ > 0 && s.draft_rest_-- > 0;
    if (!s.held_) draft_from_text(step, static_cast<int>(batch.size()));
    s.outcome_.clear();
  }
  choose_depths();
  for (SequenceStep& step : b.used()) {
    step.drafting = step.limit > 0;
    std::optional<DraftTokens>& held = step.sequence->held_;
    if (held) std::swap(step.given, *held);
    held.reset();
  }
}

// Prefills a draft's cache until one pass of at most kCatchUpChunk tokens can read the rest of `tokens`. Returns false
// if the remaining draft_reads of the step do not suffice.
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
    model.extend(b.extensions, b.rows);
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

// Lets each draft prefill until one pass of at most kCatchUpChunk tokens can read the rest of its text.
void Stepper::read_texts() {
  for (SequenceStep& step : buffers_->used()) {
    read_along(*step.sequence, kFarBehind, /*with_draft=*/!step.drafting);
    if (step.drafting) catch_up(step);
  }
}

}  // namespace specdec::decode
