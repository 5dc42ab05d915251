#include "deploy/serve/request/protocol.h"

#include <charconv>
#include <limits>

#include "base/json.h"
#include "deploy/serve/request/request_fields.h"
#include "deploy/serve/request/unsupported_fields.h"

namespace specdec::deploy {

namespace {

// Reads the numeric fields of a request body and checks each against its row in request_numbers.cpp.
class Numbers {
 public:
  Numbers(const Json& body, Endpoint endpoint) : body_(body), endpoint_(endpoint) {}

  std::optional<int64_t> integer(const char* name) const {
    const RequestNumber& row = request_number(endpoint_, name);
    const Json* value = find_field(body_, name);
    if (value) return read_integer(*value, std::get<IntegerRange>(row.range), name);
    return row.fallback ? std::optional(static_cast<int64_t>(*row.fallback)) : std::nullopt;
  }
  double number(const char* name) const {
    const RequestNumber& row = request_number(endpoint_, name);
    const Json* value = find_field(body_, name);
    if (!value) return row.fallback.value();
    const auto& range = std::get<NumberRange>(row.range);
    if (!value->is_number() || !range.contains(value->get<double>())) reject(name, range.text());
    return value->get<double>();
  }

 private:
  const Json& body_;
  Endpoint endpoint_;
};

// Returns whether any array or object has more than `limit` items, so that such a body is refused before the parser
// builds values. Ignores strings, and leaves malformed text to the parser.
bool too_many_items(std::string_view body, size_t limit, int depth) {
  std::vector<size_t> items{0};
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (items.size() > static_cast<size_t>(depth)) return false;
      items.push_back(0);
    } else if (c == ']' || c == '}') {
      if (items.size() > 1) items.pop_back();
    } else if (c == ',' && ++items.back() >= limit) {
      return true;
    }
  }
  return false;
}

// Reads a list of token ids from the field NAME. The row "NAME[]" in request_numbers.cpp has the range of the ids.
std::vector<int32_t> read_ids(const Json& list, const RequestNumber& row, const char* name) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list)
    ids.push_back(static_cast<int32_t>(read_integer(id, std::get<IntegerRange>(row.range), name)));
  return ids;
}

void parse_sampling(const Numbers& numbers, ApiRequest& out) {
  out.options.sampling.temperature = numbers.number("temperature");
  out.options.sampling.top_p = numbers.number("top_p");
  out.options.sampling.min_p = numbers.number("min_p");
  out.options.sampling.top_k = std::max<int64_t>(0, *numbers.integer("top_k"));
  out.seed = numbers.integer("seed");
  out.options.seeded = out.seed.has_value();
}

void parse_bias(const Json& body, const ServeLimits& limits, ApiRequest& out) {
  const Json* bias = find_field(body, "logit_bias");
  if (!bias) return;
  const auto& range = std::get<NumberRange>(request_number(out.endpoint, "logit_bias{}").range);
  const std::string expected =
      "an object of at most " + std::to_string(limits.logit_biases) + " token ids, each with " + range.text();
  if (!bias->is_object() || bias->size() > limits.logit_biases) reject("logit_bias", expected);
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const double added = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (error != std::errc() || id < 0 || key != std::to_string(id) || !range.contains(added))
      reject("logit_bias", expected);
    out.rules.bias.emplace_back(id, static_cast<float>(added));
  }
}

void parse_rules(const Json& body, const Numbers& numbers, const ServeLimits& limits, ApiRequest& out) {
  out.rules.presence_penalty = numbers.number("presence_penalty");
  out.rules.frequency_penalty = numbers.number("frequency_penalty");
  out.rules.repetition_penalty = numbers.number("repetition_penalty");
  out.rules.min_tokens = *numbers.integer("min_tokens");
  parse_bias(body, limits, out);
  if (const Json* allowed = find_field(body, "allowed_token_ids")) {
    if (!allowed->is_array() || allowed->empty())
      reject("allowed_token_ids", "1 to " + std::to_string(limits.array_items) + " token ids");
    out.rules.allowed_ids =
        read_ids(*allowed, request_number(out.endpoint, "allowed_token_ids[]"), "allowed_token_ids");
  }
  if (const Json* words = find_field(body, "bad_words")) {
    const std::string expected = "at most " + std::to_string(limits.bad_words) + " strings of 1 to " +
                                 std::to_string(limits.bad_word_bytes) + " bytes";
    if (!words->is_array() || words->size() > limits.bad_words) reject("bad_words", expected);
    for (const Json& word : *words) {
      if (!word.is_string()) reject("bad_words", expected);
      const std::string s = read_text(word, "bad_words");
      if (s.empty() || s.size() > limits.bad_word_bytes) reject("bad_words", expected);
      out.bad_words.push_back(s);
    }
  }
}

// Reads a request for the n likeliest log-probabilities: in chat {"logprobs": true, "top_logprobs": n}, in completions
// {"logprobs": n}.
void parse_logprobs(const Json& body, const Numbers& numbers, ApiRequest& out) {
  const bool chat = out.endpoint == Endpoint::kChat;
  if (chat && read_boolean(body, "logprobs", "logprobs")) out.options.logprobs = 0;
  const std::optional<int64_t> count = numbers.integer(chat ? "top_logprobs" : "logprobs");
  if (!count) return;
  if (chat && out.options.logprobs < 0 && *count != 0) reject("top_logprobs", "logprobs: true with it");
  if (!chat || out.options.logprobs >= 0) out.options.logprobs = static_cast<int>(*count);
}

// Reads the answer's maximum length. max_completion_tokens replaces max_tokens, which is the deprecated name of the
// same field. A default value is applied later, because it depends on the space left in the context.
void parse_length(const Json& body, const Numbers& numbers, ApiRequest& out) {
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (!find_field(body, key)) continue;
    const int64_t tokens = *numbers.integer(key);
    if (tokens == 0 && !out.echo) reject(key, "at least 1 without echo");
    out.max_tokens = tokens;
    out.max_tokens_param = key;
  }
  out.truncate_prompt_tokens = numbers.integer("truncate_prompt_tokens");
  if (out.truncate_prompt_tokens == 0) reject("truncate_prompt_tokens", "-1, or at least 1");
}

void parse_stop(const Json& body, const ServeLimits& limits, ApiRequest& out) {
  out.include_stop_str_in_output = read_boolean(body, "include_stop_str_in_output", "include_stop_str_in_output");
  if (const Json* ids = find_field(body, "stop_token_ids")) {
    if (!ids->is_array() || ids->size() > limits.stop_tokens)
      reject("stop_token_ids", "at most " + std::to_string(limits.stop_tokens) + " token ids");
    out.stop_token_ids = read_ids(*ids, request_number(out.endpoint, "stop_token_ids[]"), "stop_token_ids");
  }
  const Json* value = find_field(body, "stop");
  if (!value) return;
  const std::string expected = "a string or at most " + std::to_string(limits.stop_strings) + " strings of 1 to " +
                               std::to_string(limits.stop_bytes) + " bytes";
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > limits.stop_strings) reject("stop", expected);
  for (const Json& item : list) {
    if (!item.is_string()) reject("stop", expected);
    const std::string s = read_text(item, "stop");
    if (s.empty() || s.size() > limits.stop_bytes) reject("stop", expected);
    out.stop.push_back(s);
  }
}

void parse_stream(const Json& body, ApiRequest& out) {
  out.stream = read_boolean(body, "stream", "stream");
  if (const Json* options = find_field(body, "stream_options")) {
    if (!options->is_object() || !out.stream) reject("stream_options", "an object, only with stream: true");
    out.include_usage = read_boolean(*options, "include_usage", "stream_options.include_usage");
  }
}

// Reads a label from the metadata. An invalid label is ignored instead of refused, because labels do not affect the
// answer.
std::string label(const Json* metadata, const char* key, size_t max_bytes) {
  if (!metadata || !metadata->is_object()) return {};
  const Json* value = find_field(*metadata, key);
  if (!value || !value->is_string()) return {};
  const std::string& s = value->get_ref<const std::string&>();
  const char* kNameBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return s.size() <= max_bytes && s.find_first_not_of(kNameBytes) == std::string::npos ? s : std::string();
}

std::vector<int32_t> prompt_ids(const Json& list) {
  if (list.empty()) reject("prompt", "at least one token id");
  return read_ids(list, request_number(Endpoint::kCompletions, "prompt[]"), "prompt");
}

void parse_prompt(const Json& body, const ServeLimits& limits, ApiRequest& out) {
  const std::string expected = "a string, 1 to " + std::to_string(limits.prompts) + " strings, token ids, or 1 to " +
                               std::to_string(limits.prompts) + " lists of token ids";
  const Json* prompt = find_field(body, "prompt");
  if (!prompt) reject("prompt", expected);
  if (prompt->is_string()) {
    out.prompts.push_back(read_text(*prompt, "prompt"));
    return;
  }
  if (!prompt->is_array() || prompt->empty()) reject("prompt", expected);
  if (prompt->front().is_number()) {
    out.prompt_ids.push_back(prompt_ids(*prompt));
    return;
  }
  if (prompt->size() > limits.prompts) reject("prompt", expected);
  const bool strings = prompt->front().is_string();
  for (const Json& item : *prompt) {
    if (strings ? !item.is_string() : !item.is_array()) reject("prompt", expected);
    if (strings)
      out.prompts.push_back(read_text(item, "prompt"));
    else
      out.prompt_ids.push_back(prompt_ids(item));
  }
}

std::string served_model(const Json& body) {
  const Json* model = find_field(body, "model");
  return model ? read_text(*model, "model") : "";
}

ApiRequest parse(Endpoint endpoint, std::string_view text, const Json& body, const ServeLimits& limits) {
  const Numbers numbers(body, endpoint);
  ApiRequest out;
  out.endpoint = endpoint;
  out.model = served_model(body);
  if (endpoint == Endpoint::kChat)
    out.chat = read_chat_fields(text, body, limits);
  else
    parse_prompt(body, limits, out);
  parse_sampling(numbers, out);
  parse_rules(body, numbers, limits, out);
  parse_logprobs(body, numbers, out);
  if (endpoint == Endpoint::kCompletions) out.echo = read_boolean(body, "echo", "echo");
  out.options.speculate = read_boolean(body, "speculative", "speculative", true);
  parse_length(body, numbers, out);
  if (const Json* n = find_field(body, "n")) out.n = read_integer(*n, {1, limits.n}, "n");
  const size_t prompts = std::max<size_t>(1, out.prompts.size() + out.prompt_ids.size());
  if (prompts * static_cast<size_t>(out.n) > limits.choices)
    reject("n", "at most " + std::to_string(limits.choices) + " answers per request, over all prompts");
  parse_stop(body, limits, out);
  parse_stream(body, out);
  refuse_unsupported(body, endpoint, out.n);
  out.grammar = read_grammar(text, body, limits);
  if (out.grammar && out.chat.tools.choice != ToolChoice::kNone)
    reject(out.grammar->param, "no tools with it, or tool_choice none");
  out.return_token_ids = read_boolean(body, "return_token_ids", "return_token_ids");
  out.tokens_as_ids = read_boolean(body, "return_tokens_as_token_ids", "return_tokens_as_token_ids");
  out.include_metrics = read_boolean(body, "include_metrics", "include_metrics");
  out.ignore_eos = read_boolean(body, "ignore_eos", "ignore_eos");
  if (const Json* user = find_field(body, "user"); user && !user->is_string()) reject("user", "a string");
  const Json* metadata = find_field(body, "metadata");
  if (metadata && !metadata->is_object()) reject("metadata", "an object");
  out.domain = label(metadata, "domain", limits.domain_bytes);
  out.conversation = label(metadata, "conversation_id", limits.conversation_bytes);
  return out;
}

// Parses the body as one JSON object and passes it to `read`, which may throw Rejected.
template <class Request, class Read>
std::variant<Request, ApiError> parse_body(std::string_view body, const ServeLimits& limits, const Read& read) {
  if (body.size() > limits.body_bytes) return body_too_large();
  if (too_many_items(body, limits.array_items, limits.json_depth)) return invalid_body();
  try {
    const Json value = parse_json(body, "body", ErrorKind::kUsage, {limits.body_bytes, limits.json_depth});
    if (!value.is_object()) return invalid_body();
    return read(value);
  } catch (const Rejected& rejected) {
    return rejected.error;
  } catch (const Error&) {
    return invalid_body();
  }
}

}  // namespace

std::variant<ApiRequest, ApiError> parse_request(Endpoint endpoint, std::string_view body, const ServeLimits& limits) {
  return parse_body<ApiRequest>(body, limits, [&](const Json& value) { return parse(endpoint, body, value, limits); });
}

std::variant<TokenizeRequest, ApiError> parse_tokenize(std::string_view body, const ServeLimits& limits) {
  return parse_body<TokenizeRequest>(body, limits, [&](const Json& value) {
    TokenizeRequest out;
    out.model = served_model(value);
    const Json* const prompt = find_field(value, "prompt");
    const bool chat = !prompt && find_field(value, "messages");
    if (chat) {
      out.chat = read_chat_fields(body, value, limits);
      refuse_unsupported_in_prompt(value, Endpoint::kChat);
    } else {
      if (!prompt) reject("prompt", "a string; or give messages");
      out.prompt = read_text(*prompt, "prompt");
      refuse_unsupported_in_prompt(value, Endpoint::kCompletions);
    }
    out.add_generation_prompt = read_boolean(value, "add_generation_prompt", "add_generation_prompt", true);
    out.add_special_tokens = read_boolean(value, "add_special_tokens", "add_special_tokens", !chat);
    out.return_token_strs = read_boolean(value, "return_token_strs", "return_token_strs");
    return out;
  });
}

std::variant<DetokenizeRequest, ApiError> parse_detokenize(std::string_view body, const ServeLimits& limits) {
  return parse_body<DetokenizeRequest>(body, limits, [&](const Json& value) {
    const Json* const tokens = find_field(value, "tokens");
    if (!tokens || !tokens->is_array()) reject("tokens", "a list of token ids");
    const RequestNumber& row = request_number(Endpoint::kCompletions, "prompt[]");
    return DetokenizeRequest{served_model(value), read_ids(*tokens, row, "tokens")};
  });
}

}  // namespace specdec::deploy
