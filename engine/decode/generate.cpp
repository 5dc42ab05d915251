#include "engine/decode/generate.h"

#include "base/error.h"
#include "engine/decode/answer.h"

namespace specdec::decode {

GenerateResult generate(Stepper& stepper, const Request& request, const Drafting& drafting, const Clock& clock,
                        const std::function<bool(int32_t)>& on_token) {
  const RequestOptions& options = request.options;
  if (options.max_tokens < 1)
    throw Error(ErrorKind::kUsage, "max_tokens: expected at least 1, found " + std::to_string(options.max_tokens));
  if (options.rules) validate(*options.rules, stepper.vocab_size());
  Sequence sequence(stepper, request, drafting);
  GenerateResult result;
  const double asked = clock.seconds();
  stepper.start(sequence);
  const double started = clock.seconds();
  result.prompt_seconds = started - asked;
  Sequence* const batch[] = {&sequence};
  AnswerCut cut(options);
  AnswerEnd end = AnswerEnd::kNone;
  while (end == AnswerEnd::kNone && sequence.remaining() > 0) {
    stepper.step(batch);
    end = cut.add(sequence.outcome().emitted, [&](int32_t token, bool) {
      result.tokens.push_back(token);
      return !on_token || on_token(token);
    });
  }
  result.finish_reason = end == AnswerEnd::kStop ? "stop" : "length";
  result.seconds = clock.seconds() - started;
  result.counts = sequence.counts();
  // Counts only the answer's tokens as emitted. `accepted` may include drafted tokens after the end of the answer.
  result.counts.emitted = cut.tokens();
  return result;
}

}  // namespace specdec::decode
