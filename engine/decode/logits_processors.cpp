#include "engine/decode/logits_processors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/sampling_ranges.h"

namespace specdec::decode {

namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Applies a rule to a logit. A finite logit stays finite: the result is clamped. −inf stays −inf, and NaN is left for
// the sampler to report.
template <class Rule>
void change(float& logit, const Rule& rule) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (std::isfinite(logit))
    logit = static_cast<float>(std::clamp(rule(static_cast<double>(logit)), -kLargest, kLargest));
}

// Sets the logits of all tokens that are not allowed to −inf. Skips or fills 32 tokens at once where possible, because
// a grammar mostly allows either nearly all tokens (inside a string) or nearly none.
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
  if (!rules_.bad_words.empty()) answer_.push_back(token);
  if (constraint_) constraint_->push(token);
}

// Undoes take() except for the constraint, which pops several tokens at once. Tokens leave in reverse order, so an
// entry that is no longer needed is the last in seen_.
void LogitsProcessorState::undo(int32_t token) {
  --length_;
  if (penalties_) {
    Seen& seen = seen_[index_.at(token)];
    if (--seen.count == 0 && !seen.in_prompt) {
      seen_.pop_back();
      index_.erase(token);
    }
  }
  if (!rules_.bad_words.empty()) answer_.pop_back();
}

bool LogitsProcessorState::allows(int32_t token, int64_t vocab) {
  const auto& stops = rules_.stop_ids;
  if (too_short() && std::find(stops.begin(), stops.end(), token) != stops.end()) return false;
  if (!rules_.allowed_ids.empty() && !has(allowed(static_cast<size_t>(vocab)), token)) return false;
  return !constraint_ || has(mask(static_cast<size_t>(vocab)), token);
}

void LogitsProcessorState::push(int32_t token) {
  if (depth_ == tentative_.size() || tentative_[depth_] != token) {
    tentative_.resize(depth_);
    tentative_.push_back(token);
    num_masks_ = std::min(num_masks_, depth_ + 1);
  }
  ++depth_;
  take(token);
}

void LogitsProcessorState::rewind() {
  if (constraint_ && depth_ > 0) constraint_->pop(static_cast<int64_t>(depth_));
  while (depth_ > 0) undo(tentative_[--depth_]);
}

void LogitsProcessorState::commit(std::span<const int32_t> tokens) {
  rewind();
  for (const int32_t token : tokens) take(token);
  tentative_.clear();
  num_masks_ = 0;
}

bool LogitsProcessorState::completes(const std::vector<int32_t>& word) const {
  const size_t prefix = word.size() - 1;
  return prefix <= answer_.size() &&
         std::equal(word.begin(), word.end() - 1, answer_.end() - static_cast<ptrdiff_t>(prefix));
}

std::span<const uint32_t> LogitsProcessorState::mask(size_t vocab) {
  // Adds empty masks up to this depth; a mask is computed only when it is requested.
  while (num_masks_ <= depth_) {
    if (masks_.size() <= num_masks_) masks_.emplace_back();
    masks_[num_masks_++].clear();
  }
  std::vector<uint32_t>& bits = masks_[depth_];
  if (bits.empty()) {
    bits.resize((vocab + 31) / 32);
    constraint_->allowed(bits);
  }
  return bits;
}

std::span<const uint32_t> LogitsProcessorState::allowed(size_t vocab) {
  if (allowed_.empty()) {
    allowed_.resize((vocab + 31) / 32);
    for (const int32_t id : rules_.allowed_ids) allowed_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  return allowed_;
}

bool LogitsProcessorState::apply(std::span<float> logits) {
  bool masked = false;
  if (constraint_) {
    forbid(mask(logits.size()), logits);
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
  return !masked || std::any_of(logits.begin(), logits.end(), [](float l) { return l != kForbidden; });
}

}  // namespace specdec::decode
