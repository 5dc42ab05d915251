#include "engine/decode/generate.h"

#include <algorithm>

#include "base/error.h"

namespace specdec::decode {

GenerateResult generate(Stepper& stepper, const GenerateRequest& request, CostModel* costs, const Clock& clock,
                        const std::function<bool(int32_t)>& on_token) {
  if (request.max_tokens < 1)
    throw Error(ErrorKind::kUsage, "max_tokens: expected at least 1, found " + std::to_string(request.max_tokens));
  validate(request.rules, stepper.vocab_size());
  SeededRandomness randomness(request.seed);
  KController controller(controller_options(request.speculation), costs);
  SuffixDraft suffix{{}, KController(suffix_controller_options(request.speculation), costs)};
  LogitState rules(request.rules, request.prompt);
  Sequence s;
  s.tokens = request.prompt;
  s.sampling = request.sampling;
  s.rules = request.rules.any() ? &rules : nullptr;
  s.verify = request.speculation.verify;
  s.randomness = &randomness;
  s.controller = request.speculation.k == 0 ? nullptr : &controller;
  s.suffix = request.speculation.suffix && request.speculation.k != 0 ? &suffix : nullptr;
  s.remaining = request.max_tokens;

  struct Finish {
    Stepper& stepper;
    Sequence& sequence;
    ~Finish() { stepper.finish(sequence); }
  } finish{stepper, s};
  GenerateResult result;
  const double asked = clock.seconds();
  stepper.start(s);
  const double started = clock.seconds();
  result.prompt_seconds = started - asked;
  Sequence* const batch[] = {&s};
  while (s.remaining > 0 && result.finish_reason.empty()) {
    stepper.step(batch);
    // Accepted tokens were counted whole; what follows EOS is cut from the answer and from `emitted` only.
    int64_t taken = 0;
    for (const int32_t token : s.emitted) {
      ++taken;
      result.tokens.push_back(token);
      const bool ended = std::find(request.eos_ids.begin(), request.eos_ids.end(), token) != request.eos_ids.end();
      const bool stopped = on_token && !on_token(token);
      if (ended || stopped) {
        result.finish_reason = "stop";
        break;
      }
    }
    s.counts.emitted -= static_cast<int64_t>(s.emitted.size()) - taken;
  }
  if (result.finish_reason.empty()) result.finish_reason = "length";
  result.seconds = clock.seconds() - started;
  result.counts = s.counts;
  return result;
}

}  // namespace specdec::decode
