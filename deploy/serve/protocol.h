// Parses the request bodies of /v1/chat/completions and /v1/completions into native types. All client input is bounded
// and typed here; no later code sees JSON. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/run_options.h"
#include "deploy/serve/api_error.h"
#include "deploy/serve/chat/chat_request.h"
#include "deploy/serve/grammar_fields.h"
#include "deploy/serve/limits.h"
#include "deploy/serve/request_numbers.h"
#include "engine/decode/request.h"

namespace specdec::deploy {

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                             // "" = the served model
  ChatFields chat;                               // chat: the messages, and what else only chat has
  std::vector<std::string> prompts;              // completions: texts, or
  std::vector<std::vector<int32_t>> prompt_ids;  // … token ids (each >= 0; the vocabulary is checked later)
  std::optional<int64_t> max_tokens;
  std::string max_tokens_param = "max_tokens";  // the field that gave max_tokens
  // Sampling (the defaults are OpenAI's: temperature 1, top_p 1), log-probabilities, "speculative", and whether there
  // is a seed.
  decode::RequestOptions options;
  decode::LogitsProcessors rules;           // penalties and bias (ids >= 0; the vocabulary is checked later)
  std::vector<std::string> bad_words;       // texts
  std::optional<RequestedGrammar> grammar;  // response_format, guided_*, structured_outputs
  bool echo = false;                        // completions: the answer begins with the prompt, and max_tokens may be 0
  std::optional<int64_t> seed;
  int64_t n = 1;
  std::vector<std::string> stop;
  bool stream = false, include_usage = false;
  bool return_token_ids = false, include_metrics = false, ignore_eos = false;
  std::string domain, conversation;  // metadata.domain, metadata.conversation_id: [A-Za-z0-9._-], else ""
};

// Accepts unknown fields and treats null as absent. A known field of the wrong type or range is a 400 that names it.
std::variant<ApiRequest, ApiError> parse_request(Endpoint endpoint, std::string_view body, const ServeLimits& limits);

}  // namespace specdec::deploy
