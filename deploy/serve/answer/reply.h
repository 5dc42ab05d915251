// Writes answers as OpenAI response bodies: whole (chat.completion, text_completion) or as server-sent events, with
// vLLM's names for the speculation figures. Pure functions of the channel's events.
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

// The fields that every body of one request repeats.
struct ReplyFrame {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-…" | "cmpl-…"
  std::string model, system_fingerprint;
  int64_t created = 0;
  bool include_usage = false, return_token_ids = false, include_metrics = false;
  bool tokens_as_ids = false;   // tokens in lists of log-probabilities are "token_id:7" instead of their texts
  int logprobs = -1;            // >= 0: log-probabilities of every token, with this many likeliest ones; -1: none
  int64_t prompt_tokens = 0;    // of all prompts together
  bool short_call_ids = false;  // calls are named by nine letters and digits, as Mistral's templates demand
};

// A token in a list of log-probabilities.
struct TokenEntry {
  std::string bytes;                               // not always whole characters
  size_t offset = 0;                               // characters of the text before it
  std::optional<float> logprob;                    // none for the first token of an echoed prompt
  std::vector<std::pair<std::string, float>> top;  // the likeliest tokens here, descending: bytes and log-probability
};

// Holds log-probabilities as text of the reply. They are converted as they arrive, so that an answer that waits for its
// end holds no more memory than its reply will.
class LogprobsText {
 public:
  void add(const ReplyFrame& frame, const std::vector<TokenEntry>& entries);
  std::string text(const ReplyFrame& frame) const;  // one JSON value
  size_t bytes() const { return tokens_.size() + logprobs_.size() + top_.size() + offsets_.size(); }

 private:
  std::string tokens_, logprobs_, top_, offsets_;  // items, separated by commas
};

// An answer as collected so far, or its next piece.
struct Answer {
  AnswerPiece text;
  std::vector<int32_t> token_ids;
  LogprobsText written;
  std::vector<TokenEntry> logprobs;  // the entries after `written`; only if requested
  std::optional<ChoiceResult> result;
};

std::string full_reply(const ReplyFrame& frame, std::vector<Answer> answers);

// Estimates the bytes that one token takes in a whole reply, whether it belongs to the answer or to an echoed prompt
// with log-probabilities.
size_t reply_bytes_per_token(const ReplyFrame& frame);
inline constexpr size_t kReplyBytesPerAnswer = 256;  // without its tokens

size_t characters(std::string_view bytes);  // code points that begin in these bytes

// Events of a stream, each "data: {…}\n\n". The first event of a chat choice carries the role.
std::string first_event(const ReplyFrame& frame, size_t choice);
std::string delta_event(const ReplyFrame& frame, size_t choice, const Answer& piece);
// `calls`: the answer has called a function.
std::string finish_event(const ReplyFrame& frame, size_t choice, FinishReason reason, bool calls);
std::string usage_event(const ReplyFrame& frame,
                        const std::vector<Answer>& answers);  // "" unless usage or metrics were asked for
std::string error_event(const ApiError& error, const std::string& request_id);
std::string done_event();

// A model as GET /v1/models and /v1/models/{id} return it.
struct ModelCard {
  std::vector<std::string> names;      // replies carry the first one, requests may have any
  std::string target, draft, package;  // fingerprints and package digest, "" = none
  int64_t created = 0, max_context = 0;
  bool has(const std::string& name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
};
std::string model_list(const ModelCard& card);
std::string model_object(const ModelCard& card, const std::string& name);

}  // namespace specdec::deploy
