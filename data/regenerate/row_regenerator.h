// Lets an endpoint rewrite the answers of one row, each after the new answers before it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/options.h"
#include "data/regenerate/answer_log.h"
#include "data/regenerate/openai_client.h"
#include "data/tokenise.h"

namespace specdec::data {

// Thrown if an endpoint gave a row no valid answer and did not refuse it: the endpoint is down or sends invalid
// replies.
class NoAnswer : public Error {
 public:
  NoAnswer(AnswerProblem what, const std::string& message)
      : Error(ErrorKind::kNetwork, message), problem(std::move(what)) {}
  AnswerProblem problem;
};

// Const methods are thread-safe.
class RowRegenerator {
 public:
  // `tokeniser` may be null if the endpoint returns token ids. `options`, `model` and `index` must outlive the object.
  RowRegenerator(const RegenerateOptions& options, const std::string& model, const ShardIndex& index,
                 const RowTokeniser* tokeniser)
      : options_(options), model_(model), index_(index), tokeniser_(tokeniser) {}

  // Returns the row with new answers; what lies between the answers stays. The row ends before its last answer, for the
  // reason in Answer::ended, if
  // * the endpoint refuses the longer prompt (http_400, http_413, http_422),
  // * no tokens are left for an answer (no_room), or an answer is empty (empty_answer),
  // * an answer was cut and the row does not show how turns end (length),
  // * an answer does not call the functions whose recorded results come next (tool_calls).
  // If the row would end before its first answer, it is rejected for the same reason. Throws NoAnswer; Error(kUsage)
  // for status 401, 403 and 404; Error(kData) if the endpoint returns no token ids and there is no tokeniser;
  // Error(kNetwork), the kind that means "try again", when a signal stops the run.
  Answer answer(OpenAiClient& client, const TokenRow& row) const;

 private:
  struct Work;
  bool ask(OpenAiClient& client, Work& work) const;
  bool go_on(Work& work) const;
  Json request_body(const Work& work, int64_t max_tokens) const;
  int64_t room(const Work& work) const;
  void append(const Json& choice, int64_t max_tokens, const std::string& where, Work& work) const;
  void append_text(const std::string& text, Work& work) const;
  int32_t closing_token(const Work& work) const;
  std::string text_of(const std::vector<int32_t>& tokens, int64_t begin, int64_t end) const;
  std::string prompt_text(std::vector<int32_t> prompt) const;

  const RegenerateOptions& options_;
  const std::string& model_;
  const ShardIndex& index_;
  const RowTokeniser* tokeniser_;
};

}  // namespace specdec::data
