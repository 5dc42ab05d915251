#include "engine/decode/step.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

namespace {

constexpr int64_t kScoredChunk = 32;  // of prompt tokens whose logits are wanted: each is a row of V floats

// What stays of a cache that holds `before` tokens and, behind them, the first `nodes` of a tree.
void keep_path(CausalModel& model, SequenceId id, int64_t before, std::span<const int32_t> path, int64_t nodes,
               std::vector<int64_t>& places) {
  places.clear();
  for (const int32_t node : path)
    if (node < nodes) places.push_back(before + node);
  const auto kept = static_cast<int64_t>(places.size());
  if (places.empty() || places.back() == before + kept - 1)
    model.truncate(id, before + kept);
  else
    model.keep(id, before, places);
}

}  // namespace

void check_vocabulary(const CausalModel& target, const CausalModel& draft) {
  if (draft.vocab_size() != target.vocab_size())
    throw Error(ErrorKind::kModel, "the draft has " + std::to_string(draft.vocab_size()) + " tokens, the target " +
                                       std::to_string(target.vocab_size()) + ": both must have the same vocabulary");
}

Stepper::Stepper(CausalModel& target, CausalModel* draft, CostModel* costs, const Clock* clock, VerifyFn verify_fn)
    : target_(target),
      draft_(draft),
      costs_(costs),
      clock_(clock),
      verify_fn_(verify_fn),
      buffers_(std::make_unique<Buffers>()) {
  if (draft) check_vocabulary(target, *draft);
}

Stepper::~Stepper() = default;

void Stepper::open(Sequence& s, const Sequence* same_prompt) {
  const int64_t n = static_cast<int64_t>(s.tokens.size());
  if (n == 0) throw Error(ErrorKind::kData, "the prompt has no tokens: give at least one (BOS)");
  if (n >= target_.max_length())
    throw Error(ErrorKind::kData, "the prompt has " + std::to_string(n) + " tokens, but the model holds " +
                                      std::to_string(target_.max_length()) + " with the answer: shorten it");
  for (const int32_t id : s.tokens)
    if (id < 0 || id >= target_.vocab_size())
      throw Error(ErrorKind::kData, "token id " + std::to_string(id) + " of the prompt is outside the vocabulary of " +
                                        std::to_string(target_.vocab_size()));
  s.remaining = std::min(s.remaining, target_.max_length() - n);
  s.prompt_positions.clear();
  if (same_prompt && same_prompt->target_id >= 0 && !s.prompt_logprobs) copy_prompt(s, *same_prompt);
  if (s.target_id < 0) open_cache(target_, s.target_id, s, s.prompt_logprobs ? 0 : s.tokens.size() - 1);
}

// What the tenant's texts left of the first `count` tokens need not be read.
void Stepper::open_cache(CausalModel& model, SequenceId& id, const Sequence& s, size_t count) {
  id = model.open();
  model.adopt(id, std::span(s.tokens).first(count), s.tenant);
}

void Stepper::start(Sequence& s, int64_t chunk) {
  open(s);
  try {
    while (unread(s) > 0) read(s, chunk);
  } catch (...) {
    finish(s);
    throw;
  }
}

void Stepper::copy_prompt(Sequence& s, const Sequence& from) {
  const int64_t n = static_cast<int64_t>(s.tokens.size());
  if (from.tokens.size() < s.tokens.size() || !std::equal(s.tokens.begin(), s.tokens.end(), from.tokens.begin()))
    throw Error(ErrorKind::kInternal, "open: the other sequence has another prompt");
  try {
    s.target_id = target_.fork(from.target_id, std::min(target_.length(from.target_id), n - 1));
  } catch (const OutOfRoom&) {
    return;
  }
  CausalModel* const draft = draft_of(s);
  if (from.draft_id < 0 || draft_of(from) != draft) return;
  try {
    s.draft_id = draft->fork(from.draft_id, std::min(draft->length(from.draft_id), n - 1));
  } catch (const std::exception& e) {
    log(LogLevel::kWarn,
        std::string("the draft reads a prompt again, since its cache could not be copied: ") + e.what());
  }
}

int64_t Stepper::read(Sequence& s, int64_t most) {
  Buffers& b = *buffers_;
  const int64_t at = target_.length(s.target_id),
                count = std::min({most, unread(s), s.prompt_logprobs ? kScoredChunk : most});
  if (count <= 0) return 0;
  const int64_t rows = s.prompt_logprobs ? count : 0;
  b.extensions.assign(1, {s.target_id, std::span<const int32_t>(s.tokens).subspan(at, count), rows});
  try {
    target_.extend(b.extensions, b.target_rows);
  } catch (...) {
    target_.truncate(s.target_id, std::min(target_.length(s.target_id), at));
    throw;
  }
  for (int64_t i = 0; i < rows; ++i)
    s.prompt_positions.push_back(logprobs_of(b.target_rows.row(i), s.tokens[at + i + 1], s.logprobs));
  return count;
}

void Stepper::finish(Sequence& s) {
  if (s.target_id >= 0) target_.close(s.target_id);
  if (s.draft_id >= 0) draft_of(s)->close(s.draft_id);
  if (s.shadow_id >= 0) s.shadow->close(s.shadow_id);
  s.target_id = s.draft_id = s.shadow_id = -1;
}

// What can throw comes before the sequence is changed.
void Stepper::commit(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  const int64_t accepted = slot.result.accepted;
  keep_path(target_, s.target_id, slot.before, slot.path, static_cast<int64_t>(slot.drafted.size()), b.places);
  if (const int64_t held = s.draft_id >= 0 ? draft_of(s)->length(s.draft_id) - slot.before : -1; held >= 0)
    keep_path(*draft_of(s), s.draft_id, slot.before, slot.path, held, b.places);
  if (slot.depth > 0 && !slot.from_text)
    s.counts.add_step(slot.depth, accepted, s.overlaps);
  else
    ++s.counts.plain_steps;
  (slot.from_text ? s.suffix_drafted : s.drafted) = slot.depth;
  (slot.from_text ? s.suffix_accepted : s.accepted) = static_cast<int>(accepted);
  s.emitted.clear();
  for (const int32_t node : slot.path) s.emitted.push_back(slot.drafted[static_cast<size_t>(node)]);
  s.emitted.push_back(slot.result.next);
  if (s.rules) s.rules->commit(s.emitted);
  s.tokens.insert(s.tokens.end(), s.emitted.begin(), s.emitted.end());
  s.remaining -= accepted + 1;
  s.counts.emitted += accepted + 1;
  if (slot.from_text) {
    s.suffix->controller.observe(s.suffix_drafted, s.suffix_accepted, slot.ratios);
  } else if (s.controller) {
    s.observed = slot.by_overlap() ? s.overlaps : slot.ratios;
    s.controller->observe(s.drafted, s.accepted, s.observed, slot.confidences, slot.ratios);
  }
}

void Stepper::roll_back(Slot& slot) {
  Sequence& s = *slot.sequence;
  if (s.rules) s.rules->rewind();
  target_.truncate(s.target_id, std::min(target_.length(s.target_id), slot.before - 1));
  if (s.draft_id >= 0) draft_of(s)->truncate(s.draft_id, std::min(draft_of(s)->length(s.draft_id), slot.before - 1));
}

void Stepper::step(std::span<Sequence* const> batch, int64_t draft_reads) {
  if (batch.empty()) return;
  buffers_->draft_reads = draft_reads;
  plan(batch);
  draft_tokens();
  verify_all();
  std::exception_ptr first;
  for (Slot& slot : buffers_->used()) {
    Sequence& s = *slot.sequence;
    if (!s.failure) {
      score_shadow(slot);
      try {
        commit(slot);
        continue;
      } catch (...) {
        s.failure = std::current_exception();
      }
    }
    roll_back(slot);
    s.emitted.clear();
    s.overlaps.clear();
    s.emitted_logprobs.clear();
    s.drafted = s.accepted = s.suffix_drafted = s.suffix_accepted = 0;
    if (!first) first = s.failure;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace specdec::decode
