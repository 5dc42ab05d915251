#include "deploy/serve/request/request_numbers.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace specdec::deploy {

namespace {

constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();
constexpr IntegerRange kAnyInteger{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
// OpenAI's maximum; the command-line flag --temperature allows more.
constexpr NumberRange kServedTemperatures{.low = kTemperatures.low, .high = 2, .or_zero = true};
using enum Endpoint;

const RequestNumber kNumbers[] = {
    {"temperature", {}, kServedTemperatures, 1},
    {"top_p", {}, kTopPs, 1},
    {"min_p", {}, kMinPs, 0},
    {"top_k", {}, IntegerRange{-1, kMost32}, -1},  // -1 means off, as in vLLM; 0 means off, as in specdec's flags
    {"seed", {}, kAnyInteger},
    {"presence_penalty", {}, kPenalties, 0},
    {"frequency_penalty", {}, kPenalties, 0},
    {"repetition_penalty", {}, kRepetitionPenalties, 1},
    {"logit_bias{}", {}, kLogitBiases},
    {"n", {}, IntegerRange{1, kMostAnswers}, 1},
    {"max_tokens", kChat, IntegerRange{1, kMost32}},
    {"max_tokens", kCompletions, IntegerRange{0, kMost32}, 16},  // 0 is allowed only with echo
    {"max_completion_tokens", kChat, IntegerRange{1, kMost32}},
    {"max_completion_tokens", kCompletions, IntegerRange{0, kMost32}},
    {"min_tokens", {}, IntegerRange{0, kMost32}, 0},
    {"truncate_prompt_tokens", {}, IntegerRange{-1, kMost32}},  // -1: as many as fit
    {"top_logprobs", kChat, IntegerRange{0, 20}},
    {"logprobs", kCompletions, IntegerRange{0, 20}},
    // The upper limit, the vocabulary size, is checked later.
    {"stop_token_ids[]", {}, IntegerRange{0, kMost32}},
    {"allowed_token_ids[]", {}, IntegerRange{0, kMost32}},
    {"prompt[]", kCompletions, IntegerRange{0, kMost32}},
};

}  // namespace

std::string IntegerRange::text() const {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

std::span<const RequestNumber> request_numbers() { return kNumbers; }

const RequestNumber& request_number(Endpoint endpoint, const std::string& name) {
  const auto row = std::find_if(std::begin(kNumbers), std::end(kNumbers), [&](const RequestNumber& r) {
    return r.name == name && r.only.value_or(endpoint) == endpoint;
  });
  if (row == std::end(kNumbers))
    throw Error(ErrorKind::kInternal, name + " is not in the table of a request's numbers");
  return *row;
}

}  // namespace specdec::deploy
