// AnswerCut decides at which emitted token an answer ends. generate(), the server's scheduler and roll-outs (rollout.h)
// use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/decode/request.h"

namespace specdec::decode {

enum class AnswerEnd { kNone, kStop, kLength };

// Cuts the emitted tokens at the end of the answer: after an EOS token, at a token where the caller stops (such as a
// stop string), or after max_tokens tokens. A step may emit tokens beyond the end; they do not belong to the answer.
class AnswerCut {
 public:
  // `options` must outlive this object.
  explicit AnswerCut(const RequestOptions& options) : options_(options) {}

  // Calls take(token, is_eos) for each emitted token that belongs to the answer, in order, until the answer ends.
  // take() returns false to end the answer at that token. add() returns why the answer ended, or kNone if it continues.
  template <class Take>
  AnswerEnd add(std::span<const int32_t> emitted, Take&& take) {
    for (const int32_t token : emitted) {
      ++tokens_;
      const auto& eos = options_.eos_ids;
      const bool is_eos = std::find(eos.begin(), eos.end(), token) != eos.end();
      const bool goes_on = take(token, is_eos);
      if (is_eos || !goes_on) return AnswerEnd::kStop;
      if (tokens_ >= options_.max_tokens) return AnswerEnd::kLength;
    }
    return AnswerEnd::kNone;
  }
  int64_t tokens() const { return tokens_; }  // tokens in the answer so far, including EOS

 private:
  const RequestOptions& options_;
  int64_t tokens_ = 0;
};

}  // namespace specdec::decode
