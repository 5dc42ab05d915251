#include "engine/decode/sequence.h"

#include <algorithm>
#include <utility>

#include "engine/decode/step.h"

namespace specdec::decode {

namespace {

// Number of answer tokens for which memory is reserved. A longer answer allocates memory a few times.
constexpr int64_t kReservedTokens = 1024;

}  // namespace

Drafting drafting(const SpeculationOptions& options) {
  Drafting out;
  out.verify = options.verify;
  if (options.k == 0) return out;
  out.model = controller_options(options);
  if (options.suffix) out.text = suffix_controller_options(options);
  return out;
}

Sequence::Sequence(Stepper& stepper, Request request, const Drafting& drafting, std::unique_ptr<Randomness> randomness)
    : stepper_(stepper),
      request_(std::move(request)),
      drafting_(drafting),
      tokens_(request_.prompt),
      remaining_(request_.options.max_tokens),
      randomness_(randomness ? std::move(randomness) : std::make_unique<SeededRandomness>(request_.seed)),
      scores_prompt_(request_.options.prompt_logprobs) {
  tokens_.reserve(tokens_.size() + static_cast<size_t>(std::clamp<int64_t>(remaining_, 0, kReservedTokens)));
  if (const auto& rules = request_.options.rules; rules && rules->any()) rules_.emplace(*rules, request_.prompt);
  if (drafting.model) replace_controller(*drafting.model);
  if (drafting.text) suffix_.emplace(SuffixDrafter(), KController(*drafting.text, stepper.costs()));
}

Sequence::~Sequence() { stepper_.close(*this); }

std::vector<PositionLogprobs> Sequence::take_prompt_logprobs() {
  scores_prompt_ = false;
  return std::exchange(prompt_logprobs_, {});
}

void Sequence::replace_controller(const ControllerOptions& options) {
  controller_.emplace(options, drafting_.draft_costs ? drafting_.draft_costs : stepper_.costs());
  const auto levels = static_cast<size_t>(std::max(controller_->max_k(), 0));
  outcome_.emitted.reserve(levels + 1);
  outcome_.overlaps.reserve(levels);
  outcome_.observed.reserve(levels);
}

}  // namespace specdec::decode
