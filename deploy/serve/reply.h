// Answers → OpenAI response bodies: whole (chat.completion, text_completion) and as server-sent events, with vLLM's
// names for the speculation figures. Pure functions over what the channel delivered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deploy/serve/protocol.h"
#include "deploy/serve/queue.h"

namespace specdec::deploy {

// What every body of one request repeats.
struct ReplyFrame {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-…" | "cmpl-…"
  std::string model, system_fingerprint;
  int64_t created = 0;
  bool include_usage = false, return_token_ids = false, include_metrics = false;
  int logprobs = -1;          // >= 0: every token's, with so many likeliest ones
  int64_t prompt_tokens = 0;  // all prompts together
};

// A token in a list of log-probabilities.
struct TokenEntry {
  std::string bytes;                               // not always whole characters
  size_t characters = 0;                           // that it adds to the text: special tokens add none
  std::optional<float> logprob;                    // none for the first token of an echoed prompt
  std::vector<std::pair<std::string, float>> top;  // the likeliest here, falling: bytes and log-probability
};

// Log-probabilities as the reply spells them, written as they come: an answer that waits for its end holds no more than
// its reply will.
class LogprobsText {
 public:
  // `offset`: characters of the answer before the first of them.
  void add(const ReplyFrame& frame, const std::vector<TokenEntry>& entries, size_t offset);
  std::string text(const ReplyFrame& frame) const;  // one JSON value
  size_t bytes() const { return tokens_.size() + logprobs_.size() + top_.size() + offsets_.size(); }

 private:
  std::string tokens_, logprobs_, top_, offsets_;  // items, with commas between them
};

// One answer as collected so far, or the next piece of it.
struct Answer {
  std::string text;
  std::vector<int32_t> token_ids;
  LogprobsText written;
  std::vector<TokenEntry> logprobs;  // behind `written`; only where asked for
  size_t logprobs_offset = 0;        // characters of the answer before logprobs[0]
  std::optional<ChoiceResult> result;
};

std::string full_reply(const ReplyFrame& frame, std::vector<Answer> answers);

// About how many bytes of a whole reply a token is, of the answer or of an echoed prompt whose log-probabilities are
// asked for.
size_t reply_bytes_per_token(const ReplyFrame& frame);
inline constexpr size_t kReplyBytesPerAnswer = 256;  // beside its tokens

size_t characters(const std::string& bytes);  // code points that begin in it

// Events of a stream, each "data: {…}\n\n". The first of a chat choice carries the role.
std::string first_event(const ReplyFrame& frame, size_t choice);
std::string delta_event(const ReplyFrame& frame, size_t choice, const Answer& piece);
std::string finish_event(const ReplyFrame& frame, size_t choice, FinishReason reason);
std::string usage_event(const ReplyFrame& frame,
                        const std::vector<Answer>& answers);  // "" unless usage or metrics were asked for
std::string error_event(const ApiError& error, const std::string& request_id);
std::string done_event();

// GET /v1/models and /v1/models/{id}.
struct ModelCard {
  std::string name, target, draft, package;  // fingerprints and package digest, "" = none
  int64_t created = 0, max_context = 0;
};
std::string model_list(const ModelCard& card);
std::string model_object(const ModelCard& card);

}  // namespace specdec::deploy
