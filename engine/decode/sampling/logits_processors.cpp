#include "engine/decode/sampling/logits_processors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/sampling_ranges.h"

namespace specdec::decode {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Applies `rule` to a logit. A finite result is clamped to the range of float, so it stays finite. −inf stays −inf. NaN
// stays NaN, which the sampler reports.
template <class Rule>
void change(float& logit, const Rule& rule) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (std::isfinite(logit))
    logit = static_cast<float>(std::clamp(rule(static_cast<double>(logit)), -kLargest, kLargest));
}

// Sets the logits of all tokens that are not allowed to −inf. Handles 32 tokens at once if all or none of them are
// allowed, because a grammar mostly allows either nearly all tokens (inside a string) or nearly none.
void forbid(std::span<const uint32_t> allowed, std::span<float> logits) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    const uint32_t bits = allowed[word];
    if (bits == ~0u) continue;
    const std::span<float> part = logits.subspan(32 * word, std::min<size_t>(32, logits.size() - 32 * word));
    if (bits == 0) {
      std::fill(part.begin(), part.end(), kForbidden);
      continue;
    }
    for (size_t i = 0; i < part.size(); ++i)
      if (!(bits >> i & 1)) part[i] = kForbidden;
  }
}

bool has(std::span<const uint32_t> bits, int32_t id) {
  const auto at = static_cast<size_t>(id);
  return (bits[at / 32] >> (at % 32) & 1) != 0;
}

void require(bool holds, const std::string& what, const std::string& expected) {
  if (!holds) throw Error(ErrorKind::kUsage, what + ": expected " + expected);
}

}  // namespace

bool LogitsProcessors::any() const {
  return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 || !bias.empty() ||
         !bad_words.empty() || !allowed_ids.empty() || (min_tokens > 0 && !stop_ids.empty()) || constraint;
}

void validate(const LogitsProcessors& rules, int64_t vocab) {
  require(kRepetitionPenalties.contains(rules.repetition_penalty), "repetition_penalty", kRepetitionPenalties.text());
  require(kPenalties.contains(rules.presence_penalty), "presence_penalty", kPenalties.text());
  require(kPenalties.contains(rules.frequency_penalty), "frequency_penalty", kPenalties.text());
  const std::string ids = "token ids from 0 to " + std::to_string(vocab - 1);
  for (const auto& [id, value] : rules.bias) {
    require(id >= 0 && id < vocab, "logit_bias", ids);
    require(kLogitBiases.contains(value), "logit_bias", kLogitBiases.text());
  }
  for (const auto& word : rules.bad_words) {
    require(!word.empty(), "bad_words", "at least one token a word");
    for (const int32_t id : word) require(id >= 0 && id < vocab, "bad_words", ids);
  }
  for (const int32_t id : rules.allowed_ids) require(id >= 0 && id < vocab, "allowed_token_ids", ids);
  require(rules.min_tokens >= 0, "min_tokens", "at least 0");
  for (const int32_t id : rules.stop_ids) require(id >= 0 && id < vocab, "stop_token_ids", ids);
}

LogitsProcessorState::LogitsProcessorState(const LogitsProcessors& rules, std::span<const int32_t> prompt)
    : rules_(rules),
      penalties_(rules.repetition_penalty != 1 || rules.presence_penalty != 0 || rules.frequency_penalty != 0),
      constraint_(rules.constraint ? rules.constraint() : nullptr) {
  add_node(-1, 0);
  prepare();
  if (rules.repetition_penalty == 1) return;
  for (const int32_t id : prompt)
    if (index_.emplace(id, seen_.size()).second) seen_.push_back({id, true, 0});
}

void LogitsProcessorState::take(int32_t token) {
  ++length_;
  if (penalties_) {
    const auto [at, fresh] = index_.emplace(token, seen_.size());
    if (fresh) seen_.push_back({token, false, 0});
    ++seen_[at->second].count;
  }
  if (constraint_ || !rules_.bad_words.empty()) answer_.push_back(token);
}

// Undoes take(). Tokens are undone in reverse order of taking, so an element of seen_ that is removed is its last one.
void LogitsProcessorState::undo(int32_t token) {
  --length_;
  if (penalties_) {
    Seen& seen = seen_[index_.at(token)];
    if (--seen.count == 0 && !seen.in_prompt) {
      seen_.pop_back();
      index_.erase(token);
    }
  }
  if (constraint_ || !rules_.bad_words.empty()) answer_.pop_back();
}

bool LogitsProcessorState::allows(int32_t token, int64_t vocab) {
  const auto& stops = rules_.stop_ids;
  if (too_short() && std::find(stops.begin(), stops.end(), token) != stops.end()) return false;
  if (!rules_.allowed_ids.empty() && !has(allowed(static_cast<size_t>(vocab)), token)) return false;
  if (!constraint_) return true;
  return know_mask(static_cast<size_t>(vocab)) == MaskState::kReady && has(nodes_[at_].mask, token);
}

size_t LogitsProcessorState::add_node(int32_t token, size_t parent) {
  if (num_nodes_ == nodes_.size()) nodes_.emplace_back();
  nodes_[num_nodes_].token = token;
  nodes_[num_nodes_].parent = parent;
  nodes_[num_nodes_].mask.clear();
  return num_nodes_++;
}

void LogitsProcessorState::push(int32_t token) {
  size_t child = at_ + 1;
  while (child < num_nodes_ && (nodes_[child].parent != at_ || nodes_[child].token != token)) ++child;
  at_ = child < num_nodes_ ? child : add_node(token, at_);
  take(token);
  if (!constraint_ || tries_no_more_) return;
  tried_ = true;
  constraint_->push(token);
}

void LogitsProcessorState::rewind() {
  int64_t depth = 0;
  for (; at_ > 0; at_ = nodes_[at_].parent, ++depth) undo(nodes_[at_].token);
  if (constraint_ && depth > 0 && !tries_no_more_) constraint_->pop(depth);
}

void LogitsProcessorState::commit(std::span<const int32_t> tokens) {
  rewind();
  for (const int32_t token : tokens) {
    take(token);
    if (constraint_) constraint_->push(token);
  }
  permanent_ = answer_.size();
  num_nodes_ = 0;
  add_node(-1, 0);
  prepare();
}

MaskState LogitsProcessorState::prepare() {
  if (!constraint_ || !nodes_[at_].mask.empty()) return MaskState::kReady;
  return ask([](Constraint& constraint) { return constraint.prepare(); });
}

// Asks the grammar a question about the current position. If the grammar fails after tentative (drafted) tokens,
// replaces it by a new grammar that has only the permanent tokens.
MaskState LogitsProcessorState::ask(const std::function<MaskState(Constraint&)>& question) {
  if (at_ > 0 && tries_no_more_) return MaskState::kSpent;
  const MaskState state = question(*constraint_);
  if (state != MaskState::kSpent || !tried_) return state;
  tried_ = false;
  tries_no_more_ = true;
  constraint_ = rules_.constraint();
  for (const int32_t token : std::span(answer_).first(permanent_)) constraint_->push(token);
  return at_ > 0 ? state : question(*constraint_);
}

bool LogitsProcessorState::completes(const std::vector<int32_t>& word) const {
  const size_t prefix = word.size() - 1;
  return prefix <= answer_.size() &&
         std::equal(word.begin(), word.end() - 1, answer_.end() - static_cast<ptrdiff_t>(prefix));
}

MaskState LogitsProcessorState::keep_mask(int64_t vocab) {
  if (!constraint_) return MaskState::kReady;
  return prepare() == MaskState::kLate ? MaskState::kLate : know_mask(static_cast<size_t>(vocab));
}

// Computes the mask of the current position if it is not known yet.
MaskState LogitsProcessorState::know_mask(size_t vocab) {
  std::vector<uint32_t>& bits = nodes_[at_].mask;
  if (!bits.empty()) return MaskState::kReady;
  bits.resize((vocab + 31) / 32);
  const MaskState state = ask([&bits](Constraint& constraint) { return constraint.allowed(bits); });
  if (state != MaskState::kReady) bits.clear();
  return state;
}

std::span<const uint32_t> LogitsProcessorState::allowed(size_t vocab) {
  if (allowed_.empty()) {
    allowed_.resize((vocab + 31) / 32);
    for (const int32_t id : rules_.allowed_ids) allowed_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  return allowed_;
}

LogitsProcessorState::Applied LogitsProcessorState::apply(std::span<float> logits) {
  bool masked = false;
  if (constraint_) {
    const MaskState state = know_mask(logits.size());
    if (state != MaskState::kReady) return state == MaskState::kLate ? Applied::kLate : Applied::kSpent;
    forbid(nodes_[at_].mask, logits);
    masked = true;
  }
  if (!rules_.allowed_ids.empty()) {
    forbid(allowed(logits.size()), logits);
    masked = true;
  }
  if (too_short() && !rules_.stop_ids.empty()) {
    for (const int32_t id : rules_.stop_ids) logits[static_cast<size_t>(id)] = kForbidden;
    masked = true;
  }
  for (const auto& word : rules_.bad_words)
    if (completes(word)) {
      logits[static_cast<size_t>(word.back())] = kForbidden;
      masked = true;
    }
  for (const auto& [id, value] : rules_.bias)
    change(logits[static_cast<size_t>(id)], [value = value](double l) { return l + value; });
  if (penalties_) {
    const double repetition = static_cast<float>(rules_.repetition_penalty);
    for (const Seen& seen : seen_) {
      float& logit = logits[static_cast<size_t>(seen.id)];
      change(logit, [repetition](double l) { return l > 0 ? l / repetition : l * repetition; });
      if (seen.count == 0) continue;
      const double less =
          static_cast<float>(rules_.frequency_penalty * static_cast<double>(seen.count) + rules_.presence_penalty);
      change(logit, [less](double l) { return l - less; });
    }
  }
  const bool left = !masked || std::any_of(logits.begin(), logits.end(), [](float l) { return l != kForbidden; });
  return left ? Applied::kDone : Applied::kNoTokenLeft;
}

}  // namespace specdec::decode
