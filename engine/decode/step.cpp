#include "engine/decode/step.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

namespace {

// Maximum number of prompt tokens per pass if their logprobs are requested, because each token then needs V logits.
constexpr int64_t kScoredChunk = 32;

// A sequence's tokens in a model's KV cache: `before` tokens of text, followed by the first `nodes` nodes of a draft
// tree.
struct CachedTree {
  SequenceId id;
  int64_t before, nodes;
};

// Keeps only the accepted path of the tree in the model's cache. `places` is a reused buffer.
void keep_path(CausalModel& model, const CachedTree& cached, std::span<const int32_t> path,
               std::vector<int64_t>& places) {
  places.clear();
  for (const int32_t node : path)
    if (node < cached.nodes) places.push_back(cached.before + node);
  const auto kept = static_cast<int64_t>(places.size());
  if (places.empty() || places.back() == cached.before + kept - 1)
    model.truncate(cached.id, cached.before + kept);
  else
    model.keep(cached.id, cached.before, places);
}

}  // namespace

void check_vocabulary(const CausalModel& target, const CausalModel& draft) {
  if (draft.vocab_size() != target.vocab_size())
    throw Error(ErrorKind::kModel, "the draft has " + std::to_string(draft.vocab_size()) + " tokens, the target " +
                                       std::to_string(target.vocab_size()) + ": both must have the same vocabulary");
}

Stepper::Stepper(CausalModel& target, CausalModel* draft, CostModel* costs, const Clock* clock,
                 HostRound::VerifyFn verify_fn)
    : target_(target),
      draft_(draft),
      costs_(costs),
      clock_(clock),
      host_(target, costs ? clock : nullptr, verify_fn),
      rounds_(verify_fn == &verify ? target.rounds() : nullptr),
      buffers_(std::make_unique<Buffers>()) {
  if (draft) check_vocabulary(target, *draft);
}

Stepper::~Stepper() = default;

void Stepper::open(Sequence& s, const Sequence* same_prompt) {
  const int64_t n = static_cast<int64_t>(s.tokens_.size());
  if (n == 0) throw Error(ErrorKind::kData, "the prompt has no tokens: give at least one (BOS)");
  if (n >= target_.max_length())
    throw Error(ErrorKind::kData, "the prompt has " + std::to_string(n) + " tokens, but the model holds " +
                                      std::to_string(target_.max_length()) + " with the answer: shorten it");
  for (const int32_t id : s.tokens_)
    if (id < 0 || id >= target_.vocab_size())
      throw Error(ErrorKind::kData, "token id " + std::to_string(id) + " of the prompt is outside the vocabulary of " +
                                        std::to_string(target_.vocab_size()));
  s.remaining_ = std::min(s.remaining_, target_.max_length() - n);
  s.prompt_logprobs_.clear();
  if (same_prompt && same_prompt->target_id_ >= 0 && !s.scores_prompt_) copy_prompt(s, *same_prompt);
  if (s.target_id_ >= 0) return;
  const size_t count = open_followers(s, s.scores_prompt_ ? 0 : s.tokens_.size() - 1);
  open_cache(target_, s.target_id_, s, count);
  if (s.draft_id_ >= 0) draft_of(s)->follow(s.draft_id_, s.target_id_);
  if (s.shadow_id_ >= 0) s.drafting_.shadow->follow(s.shadow_id_, s.target_id_);
}

// Opens the caches of drafts that read hidden states of the target. Returns how many of the first `count` tokens the
// target may take from its cached blocks. The target must run all later tokens, because the drafts' cached blocks do
// not cover them and the drafts need their hidden states.
size_t Stepper::open_followers(Sequence& s, size_t count) {
  const auto open_one = [&](CausalModel& draft, SequenceId& id) {
    const int64_t found = id < 0 ? open_cache(draft, id, s, s.tokens_.size() - 1) : 0;
    count = std::min(count, static_cast<size_t>(std::max<int64_t>(found - 1, 0)));
  };
  if (CausalModel* const draft = follower_of(s)) try {
      open_one(*draft, s.draft_id_);
    } catch (const std::exception& e) {
      drop_draft(s, e);
    }
  CausalModel* const shadow = s.drafting_.shadow;
  const bool fits = shadow && static_cast<int64_t>(s.tokens_.size()) <= shadow->max_length();
  if (fits && shadow->reads_states()) try {
      open_one(*shadow, s.shadow_id_);
    } catch (const std::exception& e) {
      drop_shadow(s, e);
    }
  return count;
}

// Lets drafts that read hidden states process the text as far as the target has, if they are at least `least` tokens
// behind. The target has stored the states of these tokens. Without `with_draft`, only the shadow draft reads.
void Stepper::read_along(Sequence& s, int64_t least, bool with_draft) {
  const auto read = [&](CausalModel& draft, SequenceId id) {
    const int64_t at = draft.length(id),
                  can = std::min(draft.follow(id, s.target_id_), static_cast<int64_t>(s.tokens_.size()) - 1);
    if (can - at < least) return;
    buffers_->extensions.assign(
        1,
        {id, std::span<const int32_t>(s.tokens_).subspan(static_cast<size_t>(at), static_cast<size_t>(can - at)), 0});
    draft.extend(buffers_->extensions, buffers_->rows);
  };
  if (CausalModel* const draft = follower_of(s); with_draft && draft && s.draft_id_ >= 0) try {
      read(*draft, s.draft_id_);
    } catch (const std::exception& e) {
      drop_draft(s, e);
    }
  if (CausalModel* const shadow = s.drafting_.shadow; shadow && shadow->reads_states() && s.shadow_id_ >= 0) try {
      if (static_cast<int64_t>(s.tokens_.size()) > shadow->max_length()) return end_shadow(s);
      read(*shadow, s.shadow_id_);
    } catch (const std::exception& e) {
      drop_shadow(s, e);
    }
}

// Opens a cache and fills it from the tenant's cached blocks of the first `count` tokens, which then need no prefill.
// Returns the number of cached tokens.
int64_t Stepper::open_cache(CausalModel& model, SequenceId& id, const Sequence& s, size_t count) {
  id = model.open();
  return model.adopt(id, std::span(s.tokens_).first(count), s.options().tenant);
}

void Stepper::start(Sequence& s, int64_t chunk) {
  open(s);
  try {
    while (pending_prefill(s) > 0) prefill(s, chunk);
  } catch (...) {
    close(s);
    throw;
  }
}

void Stepper::copy_prompt(Sequence& s, const Sequence& from) {
  const int64_t n = static_cast<int64_t>(s.tokens_.size());
  if (from.tokens_.size() < s.tokens_.size() || !std::equal(s.tokens_.begin(), s.tokens_.end(), from.tokens_.begin()))
    throw Error(ErrorKind::kInternal, "open: the other sequence has another prompt");
  CausalModel* const shadow =
      from.shadow_id_ >= 0 && from.drafting_.shadow->reads_states() ? from.drafting_.shadow : nullptr;
  // A draft that reads hidden states needs the state of the second-last token. `from` may have dropped this state, so
  // the target runs that token again.
  const int64_t copied = follower_of(s) || shadow ? std::max<int64_t>(n - 2, 0) : n - 1;
  try {
    s.target_id_ = target_.fork(from.target_id_, std::min(target_.length(from.target_id_), copied));
  } catch (const CacheFull&) {
    return;
  }
  if (shadow) copy_shadow(s, from);
  CausalModel* const draft = draft_of(s);
  if (from.draft_id_ < 0 || draft_of(from) != draft) return;
  try {
    s.draft_id_ = draft->fork(from.draft_id_, std::min(draft->length(from.draft_id_), n - 1));
    draft->follow(s.draft_id_, s.target_id_);
  } catch (const std::exception& e) {
    log(LogLevel::kWarn,
        std::string("the draft reads a prompt again, since its cache could not be copied: ") + e.what());
  }
}

// Copies the cache of a shadow draft (a second draft on trial) that reads hidden states. Forking the target copied the
// states stored for this shadow. If sequence `s` does not use the shadow, follow() and close() drop the copied states.
void Stepper::copy_shadow(Sequence& s, const Sequence& from) {
  CausalModel& shadow = *from.drafting_.shadow;
  const bool scores = s.drafting_.shadow == &shadow;
  SequenceId id = -1;
  try {
    if (scores)
      id = shadow.fork(from.shadow_id_,
                       std::min(shadow.length(from.shadow_id_), static_cast<int64_t>(s.tokens_.size()) - 1));
  } catch (const std::exception& e) {
    log(LogLevel::kWarn, std::string("the draft on trial does not score a copied prompt: ") + e.what());
  }
  const bool forked = id >= 0;
  if (!forked) id = shadow.open();
  shadow.follow(id, s.target_id_);
  if (forked)
    s.shadow_id_ = id;
  else
    shadow.close(id);
}

int64_t Stepper::prefill(Sequence& s, int64_t most) {
  Buffers& b = *buffers_;
  const int64_t at = target_.length(s.target_id_),
                count = std::min({most, pending_prefill(s), s.scores_prompt_ ? kScoredChunk : most});
  if (count <= 0) return 0;
  const int64_t rows = s.scores_prompt_ ? count : 0;
  b.extensions.assign(1, {s.target_id_, std::span<const int32_t>(s.tokens_).subspan(at, count), rows});
  try {
    target_.extend(b.extensions, b.rows);
  } catch (...) {
    target_.truncate(s.target_id_, std::min(target_.length(s.target_id_), at));
    throw;
  }
  for (int64_t i = 0; i < rows; ++i)
    s.prompt_logprobs_.push_back(logprobs_of(b.rows.row(i), s.tokens_[at + i + 1], s.options().logprobs));
  read_along(s, 1);
  return count;
}

void Stepper::close(Sequence& s) {
  if (s.target_id_ >= 0) target_.close(s.target_id_);
  if (s.draft_id_ >= 0) draft_of(s)->close(s.draft_id_);
  if (s.shadow_id_ >= 0) s.drafting_.shadow->close(s.shadow_id_);
  s.target_id_ = s.draft_id_ = s.shadow_id_ = -1;
}

// Calls the functions that can throw first, and only then changes the sequence.
void Stepper::commit(SequenceStep& step) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  const int64_t accepted = step.result.accepted;
  keep_path(target_, {s.target_id_, step.before, static_cast<int64_t>(step.drafted.size())}, step.path, b.places);
  const int64_t held = s.draft_id_ >= 0 ? draft_of(s)->length(s.draft_id_) - step.before : -1;
  if (held >= 0 && draft_of(s)->reads_states())
    draft_of(s)->truncate(s.draft_id_, step.before);  // the draft reads the accepted tokens again
  else if (held >= 0)
    keep_path(*draft_of(s), {s.draft_id_, step.before, held}, step.path, b.places);
  if (step.depth > 0 && !step.from_text)
    s.counts_.add_step(step.depth, accepted, s.outcome_.overlaps);
  else
    ++s.counts_.plain_steps;
  (step.from_text ? s.outcome_.suffix_drafted : s.outcome_.drafted) = step.depth;
  (step.from_text ? s.outcome_.suffix_accepted : s.outcome_.accepted) = static_cast<int>(accepted);
  s.outcome_.emitted.clear();
  for (const int32_t node : step.path) s.outcome_.emitted.push_back(step.drafted[static_cast<size_t>(node)]);
  s.outcome_.emitted.push_back(step.result.next);
  if (s.rules_) s.rules_->commit(s.outcome_.emitted);
  s.tokens_.insert(s.tokens_.end(), s.outcome_.emitted.begin(), s.outcome_.emitted.end());
  s.remaining_ -= accepted + 1;
  s.counts_.emitted += accepted + 1;
  if (step.from_text) {
    s.suffix_->controller.observe(s.outcome_.suffix_drafted, s.outcome_.suffix_accepted, step.ratios);
  } else if (s.controller_) {
    s.outcome_.observed = step.by_overlap() ? s.outcome_.overlaps : step.ratios;
    s.controller_->observe(s.outcome_.drafted, s.outcome_.accepted, s.outcome_.observed, step.confidences, step.ratios);
  }
}

void Stepper::roll_back(SequenceStep& step) {
  Sequence& s = *step.sequence;
  if (s.rules_) s.rules_->rewind();
  const auto cut = [&](CausalModel& model, SequenceId id) {
    model.truncate(id, std::min(model.length(id), step.before - 1));
  };
  cut(target_, s.target_id_);
  if (s.draft_id_ >= 0) cut(*draft_of(s), s.draft_id_);
  if (s.shadow_id_ >= 0) cut(*s.drafting_.shadow, s.shadow_id_);
}

bool Stepper::ready(Sequence& s) {
  if (!s.rules_) return true;
  s.rules_->rewind();
  if (s.rules_->keep_mask(vocab_size()) == MaskState::kLate) return false;
  if (!s.held_) return true;
  const std::vector<int32_t>&tokens = s.held_->tokens, &parents = s.held_->parents;
  std::vector<int32_t> path;
  for (size_t node = 0; node < tokens.size(); ++node) {
    path.clear();
    for (auto at = static_cast<int32_t>(node); at >= 0; at = parents[static_cast<size_t>(at)]) path.push_back(at);
    s.rules_->rewind();
    for (auto at = path.rbegin(); at != path.rend(); ++at) s.rules_->push(tokens[static_cast<size_t>(*at)]);
    if (s.rules_->keep_mask(vocab_size()) == MaskState::kLate) return false;
  }
  return true;
}

void Stepper::step(std::span<Sequence* const> batch, int64_t draft_reads) {
  if (batch.empty()) return;
  buffers_->draft_reads = draft_reads;
  plan(batch);
  read_texts();
  run_round();
  std::exception_ptr first;
  for (SequenceStep& step : buffers_->used()) {
    Sequence& s = *step.sequence;
    if (s.outcome_.mask_late) {
      roll_back(step);
      continue;
    }
    if (!s.outcome_.failure) {
      score_shadow(step);
      try {
        commit(step);
        continue;
      } catch (...) {
        s.outcome_.failure = std::current_exception();
      }
    }
    roll_back(step);
    s.outcome_.emitted.clear();
    s.outcome_.overlaps.clear();
    s.outcome_.logprobs.clear();
    s.outcome_.drafted = s.outcome_.accepted = s.outcome_.suffix_drafted = s.outcome_.suffix_accepted = 0;
    if (!first) first = s.outcome_.failure;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace specdec::decode
