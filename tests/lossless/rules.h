// Applies the logits processors by their definitions: recounts the occurrences of every token in the whole text at each
// position. Tests compare these counts with the counts that the step updates token by token.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>

#include "engine/decode/sampling/logits_processors.h"
#include "tests/lossless/toy.h"

namespace specdec::decode::toy {

// Forbids token 2 directly after token 1, and a third occurrence of token 0 in an answer; token 1 is always allowed.
// Throws std::logic_error if a forbidden token is pushed or more tokens are popped than were pushed.
class Automaton final : public Constraint {
 public:
  static bool allows(const Tokens& answer, int32_t token) {
    if (token == 2 && !answer.empty() && answer.back() == 1) return false;
    return token != 0 || std::count(answer.begin(), answer.end(), 0) < 2;
  }
  MaskState allowed(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0u);
    for (uint32_t id = 0; id < 32 * bits.size(); ++id)
      if (allows(answer_, static_cast<int32_t>(id))) bits[id / 32] |= 1u << (id % 32);
    return MaskState::kReady;
  }
  void push(int32_t token) override {
    if (!allows(answer_, token)) throw std::logic_error("pushed a token that was not allowed");
    answer_.push_back(token);
  }
  void pop(int64_t count) override {
    if (count < 1 || count > static_cast<int64_t>(answer_.size()))
      throw std::logic_error("popped more than was pushed");
    answer_.resize(answer_.size() - static_cast<size_t>(count));
  }

 private:
  Tokens answer_;
};

// Applies `rules` to `logits`. The first `prompt` tokens of `context` are the prompt, the others the answer so far.
inline void apply_reference(const LogitsProcessors& rules, std::span<const int32_t> context, size_t prompt,
                            std::span<float> logits) {
  const Tokens answer(context.begin() + static_cast<ptrdiff_t>(prompt), context.end());
  for (size_t x = 0; x < logits.size(); ++x) {
    const int32_t id = static_cast<int32_t>(x);
    double l = logits[x];
    for (const auto& [biased, value] : rules.bias)
      if (biased == id) l += value;
    if (std::count(context.begin(), context.end(), id) > 0)
      l = l > 0 ? l / rules.repetition_penalty : l * rules.repetition_penalty;
    const auto count = static_cast<double>(std::count(answer.begin(), answer.end(), id));
    l -= rules.frequency_penalty * count + (count > 0 ? rules.presence_penalty : 0);
    const auto lists = [id](const Tokens& ids) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
    bool forbidden = rules.constraint && !Automaton::allows(answer, id);
    forbidden |= !rules.allowed_ids.empty() && !lists(rules.allowed_ids);
    forbidden |= static_cast<int64_t>(answer.size()) < rules.min_tokens && lists(rules.stop_ids);
    for (const Tokens& word : rules.bad_words) {
      Tokens tail = answer;
      tail.push_back(id);
      forbidden |= tail.size() >= word.size() && std::equal(word.rbegin(), word.rend(), tail.rbegin());
    }
    logits[x] = forbidden ? -std::numeric_limits<float>::infinity() : static_cast<float>(l);
  }
}

}  // namespace specdec::decode::toy
