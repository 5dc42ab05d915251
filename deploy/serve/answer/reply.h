// Writes answers as OpenAI response bodies: whole (chat.completion, text_completion) or as server-sent events. The
// fields for speculation figures have vLLM's names. The functions depend on their arguments only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deploy/serve/answer/answer_parser.h"
#include "deploy/serve/queue/queue.h"
#include "deploy/serve/request/protocol.h"

namespace specdec::deploy {

// Fields that are the same in every body or event of one request.
struct ReplyFrame {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-…" | "cmpl-…"
  std::string model, system_fingerprint;
  int64_t created = 0;
  bool include_usage = false, return_token_ids = false, include_metrics = false;
  bool tokens_as_ids = false;   // tokens in lists of log-probabilities are shown as "token_id:7" instead of their texts
  int logprobs = -1;            // >= 0: log-probabilities of each token and of this many likeliest tokens; -1: none
  int64_t prompt_tokens = 0;    // number of tokens of all prompts together
  bool short_call_ids = false;  // calls get ids of nine letters and digits, which Mistral's templates demand
};

// One token's entry in a list of log-probabilities.
struct TokenEntry {
  std::string bytes;                               // the token's bytes, which may end or begin inside a character
  size_t offset = 0;                               // number of characters in the text before this token
  std::optional<float> logprob;                    // none for the first token of an echoed prompt
  std::vector<std::pair<std::string, float>> top;  // the likeliest tokens here, descending: bytes and log-probability
};

// Log-probabilities as JSON text. They are converted as they arrive, so that an answer that is not streamed needs no
// more memory than its reply.
class LogprobsText {
 public:
  void add(const ReplyFrame& frame, const std::vector<TokenEntry>& entries);
  std::string text(const ReplyFrame& frame) const;  // all log-probabilities as one JSON value
  size_t bytes() const { return tokens_.size() + logprobs_.size() + top_.size() + offsets_.size(); }

 private:
  std::string tokens_, logprobs_, top_, offsets_;  // items of the JSON lists, separated by commas
};

// An answer as collected so far or, in a stream, its next piece.
struct Answer {
  AnswerPiece text;
  std::vector<int32_t> token_ids;
  LogprobsText written;
  std::vector<TokenEntry> logprobs;  // entries that are not in `written` yet; only if requested
  std::optional<ChoiceResult> result;
};

std::string full_reply(const ReplyFrame& frame, std::vector<Answer> answers);

// Estimates the bytes of one token in a whole reply; the token belongs to the answer, or to an echoed prompt with
// log-probabilities.
size_t reply_bytes_per_token(const ReplyFrame& frame);
inline constexpr size_t kReplyBytesPerAnswer = 256;  // estimated bytes of a reply around one answer's text

size_t characters(std::string_view bytes);  // code points that begin in these bytes

// Events of a stream, each "data: {…}\n\n". The first event of a chat choice carries the role.
std::string first_event(const ReplyFrame& frame, size_t choice);
std::string delta_event(const ReplyFrame& frame, size_t choice, const Answer& piece);
// `calls`: the answer contains a function call.
std::string finish_event(const ReplyFrame& frame, size_t choice, FinishReason reason, bool calls);
std::string usage_event(const ReplyFrame& frame,
                        const std::vector<Answer>& answers);  // returns "" unless usage or metrics were asked for
std::string error_event(const ApiError& error, const std::string& request_id);
std::string done_event();

// The description of a model that GET /v1/models and /v1/models/{id} return.
struct ModelCard {
  std::vector<std::string> names;      // requests may use any of these; replies contain the first
  std::string target, draft, package;  // fingerprints and package digest, "" = none
  int64_t created = 0, max_context = 0;
  bool has(const std::string& name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
};
std::string model_list(const ModelCard& card);
std::string model_object(const ModelCard& card, const std::string& name);

}  // namespace specdec::deploy
