// Parses the request bodies of /v1/chat/completions, /v1/completions, /tokenize and /detokenize into native types. All
// client input is typed here, and its size is limited. Only tool schemas and chat_template_kwargs stay JSON. The
// functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/run_options.h"
#include "deploy/serve/request/api_error.h"
#include "deploy/serve/request/chat_request.h"
#include "deploy/serve/request/grammar_fields.h"
#include "deploy/serve/request/limits.h"
#include "deploy/serve/request/request_numbers.h"
#include "engine/decode/request.h"

namespace specdec::deploy {

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                             // "" = the served model
  ChatFields chat;                               // chat: the fields that only chat requests have
  std::vector<std::string> prompts;              // completions: the prompts, if they were sent as texts
  std::vector<std::vector<int32_t>> prompt_ids;  // completions: the prompts, if sent as token ids; ids are >= 0
  std::optional<int64_t> max_tokens;
  std::string max_tokens_param = "max_tokens";  // the field that contained max_tokens
  // Sampling (OpenAI's defaults: temperature 1, top_p 1), log-probabilities, the field "speculative", and whether the
  // request has a seed.
  decode::RequestOptions options;
  // Penalties, logit_bias, allowed_token_ids, min_tokens. Ids are >= 0; the vocabulary is checked later.
  decode::LogitsProcessors rules;
  std::vector<std::string> bad_words;       // the words as texts, not yet as tokens
  std::optional<RequestedGrammar> grammar;  // from response_format, guided_* or structured_outputs
  bool echo = false;                        // completions: the answer begins with the prompt; max_tokens may then be 0
  std::optional<int64_t> seed;
  int64_t n = 1;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // each >= 0; the vocabulary is checked later
  bool include_stop_str_in_output = false;
  std::optional<int64_t> truncate_prompt_tokens;  // number of the prompt's last tokens to keep; -1: as many as fit
  bool stream = false, include_usage = false;
  bool return_token_ids = false, tokens_as_ids = false, include_metrics = false, ignore_eos = false;
  std::string domain, conversation;  // metadata.domain, metadata.conversation_id: [A-Za-z0-9._-], else ""
};

// A request for the tokens of a prompt, or of a conversation rendered by the chat template.
struct TokenizeRequest {
  std::string model;                  // "" = the served model
  std::optional<std::string> prompt;  // none: messages are given
  ChatFields chat;
  bool add_generation_prompt = true, add_special_tokens = true, return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;            // "" = the served model
  std::vector<int32_t> tokens;  // each >= 0; the vocabulary is checked later
};

// Unknown fields are ignored, and null means absent. A known field of the wrong type or range, or one of
// unsupported_fields.h, gives a 400 that names the field.
std::variant<ApiRequest, ApiError> parse_request(Endpoint endpoint, std::string_view body, const ServeLimits& limits);
std::variant<TokenizeRequest, ApiError> parse_tokenize(std::string_view body, const ServeLimits& limits);
std::variant<DetokenizeRequest, ApiError> parse_detokenize(std::string_view body, const ServeLimits& limits);

}  // namespace specdec::deploy
