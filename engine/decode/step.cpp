#include "engine/decode/step.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/sampler.h"

namespace specdec::decode {

namespace {

constexpr int64_t kCatchUpChunk = 512;
constexpr int64_t kScoredChunk = 32;  // of prompt tokens whose logits are wanted: each is a row of V floats

Error no_token_left() {
  return Error(ErrorKind::kUsage, "the request's grammar, bad_words or logit_bias leave no token: loosen them");
}

}  // namespace

// One sequence's share of a step.
struct Stepper::Slot {
  Sequence* sequence = nullptr;
  int limit = 0;                    // K of this step at most
  bool drafting = false;
  int64_t before = 0;               // tokens.size() at the start of the step
  size_t q_row = 0;                 // first of `limit` rows in Buffers::q
  int64_t p_row = 0;                // first of drafted + 1 rows in Buffers::target_rows
  std::vector<int32_t> drafted, pass;  // pass: [last token, drafted…]
  std::vector<double> confidences, ratios;
  VerifyResult result;
};

struct Stepper::Buffers {
  std::vector<Slot> slots;          // grows only, so that the vectors inside keep their memory
  size_t num_slots = 0;
  std::vector<size_t> active;
  std::vector<Extension> extensions;
  LogitRows draft_rows, target_rows;
  std::vector<float> q, scratch;
  std::vector<float> raw;           // the target's rows of one slot, before rules and sampling options, where log-probabilities are wanted
  std::vector<int32_t> ids;
  VerifyInput input;

  std::span<Slot> used() { return {slots.data(), num_slots}; }
};

Stepper::Stepper(CausalModel& target, CausalModel* draft, CostModel* costs, const Clock* clock, VerifyFn verify_fn)
    : target_(target), draft_(draft), costs_(costs), clock_(clock), verify_fn_(verify_fn), buffers_(std::make_unique<Buffers>()) {
  if (draft && draft->vocab_size() != target.vocab_size())
    throw Error(ErrorKind::kModel, "the draft has " + std::to_string(draft->vocab_size()) + " tokens, the target " +
                                       std::to_string(target.vocab_size()) + ": both must have the same vocabulary");
}

Stepper::~Stepper() = default;

void Stepper::start(Sequence& s, int64_t chunk, const Sequence* same_prompt) {
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
  try {
    if (same_prompt && same_prompt->target_id >= 0 && !s.prompt_logprobs) return copy_prompt(s, *same_prompt);
    s.target_id = target_.open();
    read_prompt(s, s.prompt_logprobs ? std::min(chunk, kScoredChunk) : chunk);
  } catch (...) {
    finish(s);
    throw;
  }
}

void Stepper::copy_prompt(Sequence& s, const Sequence& from) {
  const int64_t n = static_cast<int64_t>(s.tokens.size());
  if (from.tokens.size() < s.tokens.size() || !std::equal(s.tokens.begin(), s.tokens.end(), from.tokens.begin()))
    throw Error(ErrorKind::kInternal, "start: the other sequence has another prompt");
  s.target_id = target_.fork(from.target_id, n - 1);
  if (from.draft_id < 0) return;
  try {
    s.draft_id = draft_->fork(from.draft_id, std::min(draft_->length(from.draft_id), n - 1));
  } catch (const std::exception& e) {
    log(LogLevel::kWarn, std::string("the draft reads a prompt again, since its cache could not be copied: ") + e.what());
  }
}

void Stepper::read_prompt(Sequence& s, int64_t chunk) {
  Buffers& b = *buffers_;
  const int64_t n = static_cast<int64_t>(s.tokens.size());
  s.prompt_positions.clear();
  for (int64_t at = 0; at < n - 1; at += chunk) {
    const auto part = std::span<const int32_t>(s.tokens).subspan(at, std::min(chunk, n - 1 - at));
    const int64_t rows = s.prompt_logprobs ? static_cast<int64_t>(part.size()) : 0;
    b.extensions.assign(1, {s.target_id, part, rows});
    target_.extend(b.extensions, b.target_rows);
    for (int64_t i = 0; i < rows; ++i) s.prompt_positions.push_back(logprobs_of(b.target_rows.row(i), s.tokens[at + i + 1], s.logprobs));
  }
}

void Stepper::finish(Sequence& s) {
  if (s.target_id >= 0) target_.close(s.target_id);
  if (s.draft_id >= 0) draft_->close(s.draft_id);
  s.target_id = s.draft_id = -1;
}

void Stepper::drop_draft(Sequence& s, const char* reason) {
  log(LogLevel::kWarn, std::string("the draft failed and its sequence goes on without it: ") + reason);
  s.draft_failed = true;
  if (s.draft_id >= 0) draft_->close(s.draft_id);
  s.draft_id = -1;
}

// Every token fed needs a place in the cache. The target's is ensured by `remaining`, which start() cut to it; the draft is fed
// all but the last drafted token.
int Stepper::limit_k(const Sequence& s, int k) const {
  const int64_t n = static_cast<int64_t>(s.tokens.size());
  const int64_t room = std::min(s.remaining - 1, draft_->max_length() - n + 1);
  return static_cast<int>(std::clamp<int64_t>(k, 0, std::max<int64_t>(room, 0)));
}

void Stepper::plan(std::span<Sequence* const> batch) {
  Buffers& b = *buffers_;
  if (b.slots.size() < batch.size()) b.slots.resize(batch.size());
  b.num_slots = batch.size();
  size_t rows = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    Slot& slot = b.slots[i];
    Sequence& s = *batch[i];
    if (s.remaining < 1 || s.target_id < 0)
      throw Error(ErrorKind::kInternal, "step: sequence " + std::to_string(i) + " is finished or was not started");
    slot.sequence = &s;
    slot.before = static_cast<int64_t>(s.tokens.size());
    slot.limit = 0;
    if (draft_ && s.controller && !s.draft_failed) slot.limit = limit_k(s, s.controller->choose_k(static_cast<int>(batch.size())));
    slot.drafting = slot.limit > 0;
    slot.drafted.clear();
    slot.confidences.clear();
    slot.ratios.clear();
    slot.q_row = rows;
    if (!s.sampling.greedy()) rows += slot.limit;
    s.emitted.clear();
    s.emitted_logprobs.clear();
    s.overlaps.clear();
    s.drafted = s.accepted = 0;
    s.failure = nullptr;
  }
  const size_t need = rows * static_cast<size_t>(target_.vocab_size());
  if (b.q.size() < need) b.q.resize(need);
}

// Brings the draft's cache so far that the first pass of the step is short.
void Stepper::catch_up(Slot& slot) {
  Sequence& s = *slot.sequence;
  try {
    if (s.draft_id < 0) s.draft_id = draft_->open();
    while (slot.before - draft_->length(s.draft_id) > kCatchUpChunk) {
      const auto part = std::span<const int32_t>(s.tokens).subspan(draft_->length(s.draft_id), kCatchUpChunk);
      buffers_->extensions.assign(1, {s.draft_id, part, 0});
      draft_->extend(buffers_->extensions, buffers_->draft_rows);
    }
  } catch (const std::exception& e) {
    slot.drafting = false;
    drop_draft(s, e.what());
  }
}

// Draws one token for the slot. False: nothing was drawn, because the logits cannot be sampled, or because nothing may follow what
// was drafted so far (which the target need not choose).
bool Stepper::draft_one(Slot& slot, std::span<float> logits) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  if (s.rules && !s.rules->apply(logits)) return false;
  const bool adaptive = s.controller->adaptive();
  int32_t token = -1;
  double confidence = 1;
  if (s.sampling.greedy()) {
    try {
      token = argmax(logits);
    } catch (const Error& e) {
      drop_draft(s, e.what());
      return false;
    }
    if (adaptive) confidence = max_probability(logits);
  } else {
    const std::span<float> q(b.q.data() + (slot.q_row + slot.drafted.size()) * logits.size(), logits.size());
    try {
      distribution(logits, s.sampling, q, b.ids);
    } catch (const Error& e) {
      drop_draft(s, e.what());
      return false;
    }
    token = s.verify == VerifyRule::kCoupled ? s.randomness->draw_at(slot.before + static_cast<int64_t>(slot.drafted.size()), q)
                                             : s.randomness->draw(Purpose::kDraft, q);
    confidence = q[token];
  }
  if (s.rules) s.rules->push(token);
  slot.drafted.push_back(token);
  slot.confidences.push_back(confidence);
  return true;
}

// One pass of the draft over the slots named. Returns false, with every cache as before, if it threw.
bool Stepper::draft_pass(std::span<const size_t> active) {
  Buffers& b = *buffers_;
  b.extensions.clear();
  for (const size_t i : active) {
    const Slot& slot = b.slots[i];
    const Sequence& s = *slot.sequence;
    const auto tokens = slot.drafted.empty() ? std::span<const int32_t>(s.tokens).subspan(draft_->length(s.draft_id))
                                             : std::span<const int32_t>(slot.drafted).last(1);
    b.extensions.push_back({s.draft_id, tokens, 1});
  }
  try {
    draft_->extend(b.extensions, b.draft_rows);
    return true;
  } catch (const std::exception& e) {
    for (size_t j = 0; j < active.size(); ++j) {
      Sequence& s = *b.slots[active[j]].sequence;
      const Slot& slot = b.slots[active[j]];
      // The length before the pass: all of `tokens` and the drafted ones but those just fed.
      const int64_t before = slot.before + static_cast<int64_t>(slot.drafted.size()) - static_cast<int64_t>(b.extensions[j].tokens.size());
      if (draft_->length(s.draft_id) > before) draft_->truncate(s.draft_id, before);
      if (active.size() == 1) drop_draft(s, e.what());
    }
    return false;
  }
}

void Stepper::draft_tokens() {
  Buffers& b = *buffers_;
  for (Slot& slot : b.used())
    if (slot.drafting) catch_up(slot);
  for (;;) {
    b.active.clear();
    bool short_pass = true;
    for (size_t i = 0; i < b.num_slots; ++i) {
      Slot& slot = b.slots[i];
      if (!slot.drafting) continue;
      b.active.push_back(i);
      if (slot.drafted.empty() && slot.before - draft_->length(slot.sequence->draft_id) > 2) short_pass = false;
    }
    if (b.active.empty()) return;
    const double started = clock_ ? clock_->seconds() : 0;
    const auto take = [&](size_t i, int64_t row) {
      Slot& slot = b.slots[i];
      slot.drafting = draft_one(slot, b.draft_rows.row(row)) && static_cast<int>(slot.drafted.size()) < slot.limit &&
                      !slot.sequence->controller->stop_after(slot.confidences, static_cast<int>(b.num_slots));
    };
    if (draft_pass(b.active)) {
      for (size_t j = 0; j < b.active.size(); ++j) take(b.active[j], static_cast<int64_t>(j));
      if (costs_ && clock_ && short_pass) costs_->record_draft(static_cast<int>(b.num_slots), clock_->seconds() - started);
    } else {
      // Only the sequences whose own pass throws lose their draft.
      for (const size_t i : b.active) {
        if (b.slots[i].drafting && draft_pass({&i, 1}))
          take(i, 0);
        else
          b.slots[i].drafting = false;
      }
    }
  }
}

// One-hot p and q: the rule accepts while the drafted token is the arg max, and what follows is the arg max. Only rows that are
// reached are looked at.
void Stepper::verify_greedy(Slot& slot) {
  Sequence& s = *slot.sequence;
  const int64_t k = static_cast<int64_t>(slot.drafted.size());
  if (s.rules) s.rules->rewind();
  const auto best_of = [&](int64_t i) {
    const std::span<float> row = buffers_->target_rows.row(slot.p_row + i);
    if (s.rules && !s.rules->apply(row)) throw no_token_left();
    return argmax(row);
  };
  int64_t i = 0;
  int32_t best = best_of(0);
  while (i < k && slot.drafted[i] == best) {
    if (s.rules) s.rules->push(best);
    best = best_of(++i);
  }
  slot.result = {i, best};
  s.overlaps.assign(std::min(i + 1, k), 1.0);
  if (i < k) s.overlaps[i] = 0.0;
  slot.ratios.assign(s.overlaps.begin(), s.overlaps.end());
}

void Stepper::verify_sampled(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  const size_t k = slot.drafted.size(), vocab = static_cast<size_t>(target_.vocab_size());
  b.input.drafted = slot.drafted;
  b.input.position = slot.before;
  b.input.p.resize(k + 1);
  b.input.q.resize(k);
  bool dead = false;
  // From the last row to the first: drafting left the rules behind the last drafted token, and each row takes one back.
  for (size_t i = k + 1; i-- > 0;) {
    const std::span<float> p = b.target_rows.row(slot.p_row + static_cast<int64_t>(i));
    if (s.rules && !s.rules->apply(p)) {
      std::fill(p.begin(), p.end(), 0.f);  // may never be reached; drawing from it throws
      dead = true;
    } else {
      distribution(p, s.sampling, p, b.ids);
    }
    if (s.rules && i > 0) s.rules->pop();
    b.input.p[i] = p;
    if (i < k) b.input.q[i] = {b.q.data() + (slot.q_row + i) * vocab, vocab};
  }
  try {
    slot.result = verify_fn_(s.verify, b.input, *s.randomness, b.scratch);
  } catch (const Error&) {
    if (dead) throw no_token_left();
    throw;
  }
  const size_t reached = std::min<size_t>(slot.result.accepted + 1, k);
  for (size_t i = 0; i < reached; ++i) {
    const int32_t x = slot.drafted[i];
    s.overlaps.push_back(overlap(b.input.p[i], b.input.q[i]));
    const double accepted = i < static_cast<size_t>(slot.result.accepted) ? 1.0 : 0.0;
    slot.ratios.push_back(s.verify == VerifyRule::kCoupled ? accepted : std::min(1.0, static_cast<double>(b.input.p[i][x]) / b.input.q[i][x]));
  }
}

void Stepper::verify_one(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  const size_t vocab = static_cast<size_t>(target_.vocab_size());
  if (s.logprobs >= 0) {
    const float* first = b.target_rows.row(slot.p_row).data();
    b.raw.assign(first, first + slot.pass.size() * vocab);
  }
  if (s.sampling.greedy())
    verify_greedy(slot);
  else
    verify_sampled(slot);
  if (s.logprobs < 0) return;
  const size_t accepted = static_cast<size_t>(slot.result.accepted);
  for (size_t i = 0; i <= accepted; ++i)
    s.emitted_logprobs.push_back(
        logprobs_of({b.raw.data() + i * vocab, vocab}, i < accepted ? slot.drafted[i] : slot.result.next, s.logprobs));
}

void Stepper::commit(Slot& slot) {
  Sequence& s = *slot.sequence;
  const int64_t accepted = slot.result.accepted;
  s.drafted = static_cast<int>(slot.drafted.size());
  s.accepted = static_cast<int>(accepted);
  s.emitted.assign(slot.drafted.begin(), slot.drafted.begin() + accepted);
  s.emitted.push_back(slot.result.next);
  if (s.rules) s.rules->commit(s.emitted);
  s.tokens.insert(s.tokens.end(), s.emitted.begin(), s.emitted.end());
  s.remaining -= accepted + 1;
  const int64_t kept = slot.before + accepted;
  target_.truncate(s.target_id, kept);
  if (s.draft_id >= 0) draft_->truncate(s.draft_id, std::min(draft_->length(s.draft_id), kept));
  if (s.drafted > 0)
    s.counts.add_step(s.drafted, accepted, s.overlaps);
  else
    ++s.counts.plain_steps;
  s.counts.emitted += accepted + 1;
  // The coupled rule accepts less often than the overlap says: it is counted instead.
  if (s.controller)
    s.controller->observe(s.drafted, s.accepted, s.verify == VerifyRule::kCoupled ? slot.ratios : s.overlaps, slot.confidences, slot.ratios);
}

void Stepper::roll_back(Slot& slot) {
  Sequence& s = *slot.sequence;
  if (s.rules) s.rules->rewind();
  target_.truncate(s.target_id, std::min(target_.length(s.target_id), slot.before - 1));
  if (s.draft_id >= 0) draft_->truncate(s.draft_id, std::min(draft_->length(s.draft_id), slot.before - 1));
}

void Stepper::verify_all() {
  Buffers& b = *buffers_;
  b.extensions.clear();
  int64_t rows = 0;
  for (Slot& slot : b.used()) {
    slot.pass.assign(1, slot.sequence->tokens.back());
    slot.pass.insert(slot.pass.end(), slot.drafted.begin(), slot.drafted.end());
    slot.p_row = rows;
    rows += static_cast<int64_t>(slot.pass.size());
    b.extensions.push_back({slot.sequence->target_id, slot.pass, static_cast<int64_t>(slot.pass.size())});
  }
  const double started = clock_ ? clock_->seconds() : 0;
  try {
    target_.extend(b.extensions, b.target_rows);
  } catch (...) {
    for (Slot& slot : b.used()) roll_back(slot);
    throw;
  }
  for (Slot& slot : b.used()) {
    try {
      verify_one(slot);
    } catch (const Error&) {
      slot.sequence->failure = std::current_exception();
    }
  }
  if (costs_ && clock_) {
    const int64_t n = static_cast<int64_t>(b.num_slots);
    costs_->record_target(static_cast<int>(n), static_cast<int>((rows + n - 1) / n), clock_->seconds() - started);
  }
}

void Stepper::step(std::span<Sequence* const> batch) {
  if (batch.empty()) return;
  plan(batch);
  draft_tokens();
  verify_all();
  std::exception_ptr first;
  for (Slot& slot : buffers_->used()) {
    if (slot.sequence->failure) {
      roll_back(slot);
      slot.sequence->overlaps.clear();
      slot.sequence->emitted_logprobs.clear();
      if (!first) first = slot.sequence->failure;
    } else {
      commit(slot);
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace specdec::decode
