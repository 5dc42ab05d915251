// Fuzzes requests as they come from the network. Beast's request parser reads the request under the server's limits.
// Then its body is parsed as chat, as completion, and for /tokenize and /detokenize. A refused request must give a
// valid error reply. The whole input is also tried as a body.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "base/json.h"
#include "deploy/serve/answer/stop.h"
#include "deploy/serve/api/api_keys.h"
#include "deploy/serve/request/protocol.h"
#include "deploy/serve/request/tool_format.h"

namespace {

using specdec::Json;
using namespace specdec::deploy;

bool within(Endpoint endpoint, const char* name, double x) {
  return std::get<specdec::NumberRange>(request_number(endpoint, name).range).contains(x);
}

// Aborts unless the refusal has a status from 400 to 499 and a body that is JSON.
void check_refusal(const ApiError& error) {
  if (error.status < 400 || error.status > 499 ||
      Json::parse(error_body(error, "req-0"), nullptr, false).is_discarded())
    std::abort();
}

bool all_ids(const std::vector<int32_t>& ids, size_t most) {
  return ids.size() <= most && std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; });
}

void try_token_routes(std::string_view body, const ServeLimits& limits) {
  const auto text = parse_tokenize(body, limits);
  if (const auto* error = std::get_if<ApiError>(&text))
    check_refusal(*error);
  else if (std::get<TokenizeRequest>(text).prompt.has_value() == !std::get<TokenizeRequest>(text).chat.messages.empty())
    std::abort();
  const auto tokens = parse_detokenize(body, limits);
  if (const auto* error = std::get_if<ApiError>(&tokens))
    check_refusal(*error);
  else if (!all_ids(std::get<DetokenizeRequest>(tokens).tokens, limits.array_items))
    std::abort();
}

// Parses the body for each route. An accepted request must be within the limits; a refusal must have a JSON body.
void try_body(std::string_view body) {
  static const ServeLimits limits;
  try_token_routes(body, limits);
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    const auto result = parse_request(endpoint, body, limits);
    if (const auto* error = std::get_if<ApiError>(&result)) {
      check_refusal(*error);
      continue;
    }
    const auto& request = std::get<ApiRequest>(result);
    const size_t prompts = request.prompts.size() + request.prompt_ids.size();
    if (request.n < 1 || request.n > limits.n || prompts > limits.prompts ||
        request.chat.messages.size() > limits.messages || request.stop.size() > limits.stop_strings ||
        !within(endpoint, "temperature", request.options.sampling.temperature) ||
        !within(endpoint, "top_p", request.options.sampling.top_p) ||
        !within(endpoint, "min_p", request.options.sampling.min_p) ||
        (endpoint == Endpoint::kChat) != !request.chat.messages.empty())
      std::abort();
    const specdec::decode::LogitsProcessors& rules = request.rules;
    if (rules.bias.size() > limits.logit_biases || request.bad_words.size() > limits.bad_words ||
        request.options.logprobs < -1 || request.options.logprobs > 20 ||
        !within(endpoint, "repetition_penalty", rules.repetition_penalty) ||
        !within(endpoint, "presence_penalty", rules.presence_penalty) ||
        !within(endpoint, "frequency_penalty", rules.frequency_penalty) ||
        (request.grammar && (request.grammar->source.empty() || request.grammar->source.size() > limits.grammar_bytes)))
      std::abort();
    for (const auto& [id, value] : rules.bias)
      if (id < 0 || !within(endpoint, "logit_bias{}", value)) std::abort();
    if (request.chat.tools.list.size() > limits.tools || request.chat.tools.text.size() > limits.tool_bytes ||
        request.chat.tools.list.empty() != request.chat.tools.text.empty())
      std::abort();
    if (request.chat.tools.forced() &&
        !Json::parse(forced_schema(ToolFormat::kHermes, request.chat.tools), nullptr, false).is_object())
      std::abort();
    if (!all_ids(request.stop_token_ids, limits.stop_tokens) || !all_ids(rules.allowed_ids, limits.array_items) ||
        rules.min_tokens < 0 || request.truncate_prompt_tokens.value_or(1) < -1 || request.truncate_prompt_tokens == 0)
      std::abort();
    StopMatcher matcher(request.stop, request.include_stop_str_in_output);
    matcher.push(body.substr(0, body.size() / 2), false);
    matcher.push(body.substr(body.size() / 2));
    matcher.finish();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace http = boost::beast::http;
  const ServeLimits limits;
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(limits.header_bytes));
  parser.body_limit(limits.body_bytes);
  parser.eager(true);
  boost::system::error_code ec;
  for (size_t at = 0; at < size && !ec && !parser.is_done();) {
    const size_t used = parser.put(boost::asio::const_buffer(data + at, size - at), ec);
    if (used == 0) break;
    at += used;
  }
  if (!ec && parser.is_header_done()) {
    ApiKeys().accepts(std::string(parser.get()[http::field::authorization]));
    try_body(parser.get().body());
  }
  try_body({reinterpret_cast<const char*>(data), size});
  return 0;
}
