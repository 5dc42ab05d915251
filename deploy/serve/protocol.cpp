#include "deploy/serve/protocol.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/json.h"

namespace specdec::deploy {

namespace {

// Thrown to leave parse_request with the refusal that it carries; never leaves this file.
struct Rejected {
  ApiError error;
};

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void reject(const std::string& param, const std::string& expected) {
  throw Rejected{invalid_parameter(param, expected)};
}
[[noreturn]] void refuse(const std::string& param) { throw Rejected{unsupported_parameter(param)}; }

// Returns null if the key is absent or its value is null.
const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

bool is_int64(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() &&
           value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

int64_t checked(const Json& value, const IntegerRange& range, const char* param) {
  if (!is_int64(value) || !range.contains(value.get<int64_t>())) reject(param, range.text());
  return value.get<int64_t>();
}

// Reads the numeric fields of a request body, each by its row in request_numbers.cpp.
class Numbers {
 public:
  Numbers(const Json& body, Endpoint endpoint) : body_(body), endpoint_(endpoint) {}

  std::optional<int64_t> integer(const char* name) const {
    const RequestNumber& row = request_number(endpoint_, name);
    const Json* value = find(body_, name);
    if (value) return checked(*value, std::get<IntegerRange>(row.range), name);
    return row.fallback ? std::optional(static_cast<int64_t>(*row.fallback)) : std::nullopt;
  }
  double number(const char* name) const {
    const RequestNumber& row = request_number(endpoint_, name);
    const Json* value = find(body_, name);
    if (!value) return row.fallback.value();
    const auto& range = std::get<NumberRange>(row.range);
    if (!value->is_number() || !range.contains(value->get<double>())) reject(name, range.text());
    return value->get<double>();
  }

 private:
  const Json& body_;
  Endpoint endpoint_;
};

bool boolean(const Json& object, const char* key, const std::string& param, bool fallback = false) {
  const Json* value = find(object, key);
  if (!value) return fallback;
  if (!value->is_boolean()) reject(param, "true or false");
  return value->get<bool>();
}

// Reads text for the tokenizer or the template; NUL is refused everywhere.
std::string text(const Json& value, const std::string& param) {
  if (!value.is_string()) reject(param, "a string");
  const std::string& s = value.get_ref<const std::string&>();
  if (s.find('\0') != std::string::npos) reject(param, "text without NUL characters");
  return s;
}

// Returns whether any array or object has more than `limit` items. Counts them before the parser builds values. Skips
// strings and leaves malformed text to the parser.
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

// Refuses the field unless it is absent or one of the values that the server applies anyway.
void require_default(const Json& object, const char* key, const std::vector<Json>& defaults) {
  const Json* value = find(object, key);
  if (!value) return;
  for (const Json& allowed : defaults)
    if (*value == allowed) return;
  refuse(key);
}

void parse_unsupported(const Json& body, Endpoint endpoint, int64_t n) {
  require_default(body, "best_of", {n});
  if (endpoint == Endpoint::kChat) {
    require_default(body, "tools", {Json::array()});
    require_default(body, "tool_choice", {"none", "auto"});
    require_default(body, "functions", {Json::array()});
    require_default(body, "function_call", {"none", "auto"});
    require_default(body, "modalities", {Json::array({"text"})});
    require_default(body, "audio", {});
    require_default(body, "prediction", {});
  } else {
    require_default(body, "suffix", {""});
  }
  for (const char* key : {"guided_grammar", "chat_template", "chat_template_kwargs"})
    require_default(body, key, {Json::object()});
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
  const Json* bias = find(body, "logit_bias");
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
  parse_bias(body, limits, out);
  if (const Json* words = find(body, "bad_words")) {
    const std::string expected = "at most " + std::to_string(limits.bad_words) + " strings of 1 to " +
                                 std::to_string(limits.bad_word_bytes) + " bytes";
    if (!words->is_array() || words->size() > limits.bad_words) reject("bad_words", expected);
    for (const Json& word : *words) {
      if (!word.is_string()) reject("bad_words", expected);
      const std::string s = text(word, "bad_words");
      if (s.empty() || s.size() > limits.bad_word_bytes) reject("bad_words", expected);
      out.bad_words.push_back(s);
    }
  }
}

// Reads OpenAI's two forms: chat uses logprobs: true and top_logprobs: n, completions use logprobs: n.
void parse_logprobs(const Json& body, const Numbers& numbers, ApiRequest& out) {
  const bool chat = out.endpoint == Endpoint::kChat;
  if (chat && boolean(body, "logprobs", "logprobs")) out.options.logprobs = 0;
  const std::optional<int64_t> count = numbers.integer(chat ? "top_logprobs" : "logprobs");
  if (!count) return;
  if (chat && out.options.logprobs < 0 && *count != 0) reject("top_logprobs", "logprobs: true with it");
  if (!chat || out.options.logprobs >= 0) out.options.logprobs = static_cast<int>(*count);
}

// Returns a regular expression that matches exactly these texts, none of which is empty.
std::string one_of(const std::vector<std::string>& texts) {
  std::string all;
  char escape[8];
  for (const std::string& text : texts) {
    all += all.empty() ? "(" : "|";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      // '<' and '>' need no escape; "\<" would even mean a word boundary
      const bool plain = byte >= 0x80 || std::isalnum(byte) || c == ' ' || c == '<' || c == '>';
      if (plain) {
        all += c;
      } else {
        std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(byte));
        all += escape;
      }
    }
  }
  return all + ")";
}

// Collects the one grammar of a request from the fields that may hold one: OpenAI's, and vLLM's older and newer names.
class GrammarFields {
 public:
  // `ordered` is the same body with object keys in the order sent, because the answer follows the schema's order.
  GrammarFields(const OrderedJson& ordered, const ServeLimits& limits, ApiRequest& out)
      : body_(ordered), limits_(limits), out_(out) {}

  void read() {
    if (const OrderedJson* format = find_in(body_, "response_format")) response_format(*format);
    kinds(body_, "guided_", "");
    if (const OrderedJson* outputs = find_in(body_, "structured_outputs")) {
      if (!outputs->is_object()) reject("structured_outputs", "an object with json, json_object, regex or choice");
      for (const char* unknown : {"grammar", "structural_tag"})
        if (find_in(*outputs, unknown)) refuse(std::string("structured_outputs.") + unknown);
      kinds(*outputs, "", "structured_outputs.");
      if (const OrderedJson* any = find_in(*outputs, "json_object")) {
        if (!any->is_boolean()) reject("structured_outputs.json_object", "true or false");
        if (*any == true) set("structured_outputs.json_object", kSchema, kAnyObject);
      }
    }
  }

 private:
  static constexpr auto kSchema = text::GrammarKind::kJsonSchema, kRegex = text::GrammarKind::kRegex;
  static constexpr char kAnyObject[] = R"({"type":"object"})";

  static const OrderedJson* find_in(const OrderedJson& object, const std::string& key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }

  void response_format(const OrderedJson& format) {
    const OrderedJson* type = format.is_object() ? find_in(format, "type") : nullptr;
    if (type && *type == "text") return;
    if (type && *type == "json_object") return set("response_format", kSchema, kAnyObject);
    if (!type || *type != "json_schema") reject("response_format.type", "text, json_object or json_schema");
    const OrderedJson* wrapper = find_in(format, "json_schema");
    const OrderedJson* schema = wrapper && wrapper->is_object() ? find_in(*wrapper, "schema") : nullptr;
    if (!schema || !(schema->is_object() || schema->is_boolean()))
      reject("response_format.json_schema", "an object with the schema under 'schema'");
    set("response_format.json_schema", kSchema, schema->dump());
  }

  void kinds(const OrderedJson& object, const std::string& prefix, const std::string& path) {
    if (const OrderedJson* schema = find_in(object, prefix + "json")) {
      if (!schema->is_object() && !schema->is_string())
        reject(path + prefix + "json", "a JSON schema, as an object or as text");
      if (!schema->empty())
        set(path + prefix + "json", kSchema, schema->is_string() ? schema->get<std::string>() : schema->dump());
    }
    if (const OrderedJson* regex = find_in(object, prefix + "regex")) {
      if (!regex->is_string()) reject(path + prefix + "regex", "a regular expression");
      set(path + prefix + "regex", kRegex, regex->get<std::string>());
    }
    if (const OrderedJson* choice = find_in(object, prefix + "choice")) {
      std::vector<std::string> texts;
      if (choice->is_array())
        for (const OrderedJson& item : *choice)
          if (item.is_string() && !item.get_ref<const std::string&>().empty()) texts.push_back(item.get<std::string>());
      if (!choice->is_array() || texts.size() != choice->size())
        reject(path + prefix + "choice", "texts to choose from, none of them empty");
      if (!texts.empty()) set(path + prefix + "choice", kRegex, one_of(texts));
    }
  }

  void set(const std::string& param, text::GrammarKind kind, std::string source) {
    if (out_.grammar) reject(param, "one grammar per request, and " + out_.grammar->param + " gives one already");
    if (source.empty() || source.size() > limits_.grammar_bytes)
      reject(param, "1 to " + std::to_string(limits_.grammar_bytes) + " bytes");
    out_.grammar = {kind, std::move(source), param};
  }

  const OrderedJson& body_;
  const ServeLimits& limits_;
  ApiRequest& out_;
};

bool asks_for_grammar(const Json& body) {
  for (const char* key : {"response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs"})
    if (find(body, key)) return true;
  return false;
}

// Reads the answer's length. The default in request_numbers.cpp is applied later, because it depends on the space left
// in the context.
void parse_length(const Json& body, const Numbers& numbers, ApiRequest& out) {
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (!find(body, key)) continue;
    const int64_t tokens = *numbers.integer(key);
    if (tokens == 0 && !out.echo) reject(key, "at least 1 without echo");
    if (out.max_tokens && *out.max_tokens != tokens) reject(key, "the same value as max_tokens");
    out.max_tokens = tokens;
    out.max_tokens_param = key;
  }
}

void parse_stop(const Json& body, const ServeLimits& limits, ApiRequest& out) {
  const Json* value = find(body, "stop");
  if (!value) return;
  const std::string expected = "a string or at most " + std::to_string(limits.stop_strings) + " strings of 1 to " +
                               std::to_string(limits.stop_bytes) + " bytes";
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > limits.stop_strings) reject("stop", expected);
  for (const Json& item : list) {
    if (!item.is_string()) reject("stop", expected);
    const std::string s = text(item, "stop");
    if (s.empty() || s.size() > limits.stop_bytes) reject("stop", expected);
    out.stop.push_back(s);
  }
}

void parse_stream(const Json& body, ApiRequest& out) {
  out.stream = boolean(body, "stream", "stream");
  if (const Json* options = find(body, "stream_options")) {
    if (!options->is_object() || !out.stream) reject("stream_options", "an object, only with stream: true");
    out.include_usage = boolean(*options, "include_usage", "stream_options.include_usage");
  }
}

// Reads a label of the metadata. A label is not an instruction: an invalid one is dropped, never refused.
std::string label(const Json* metadata, const char* key, size_t max_bytes) {
  if (!metadata || !metadata->is_object()) return {};
  const Json* value = find(*metadata, key);
  if (!value || !value->is_string()) return {};
  const std::string& s = value->get_ref<const std::string&>();
  const char* kNameBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return s.size() <= max_bytes && s.find_first_not_of(kNameBytes) == std::string::npos ? s : std::string();
}

std::string message_content(const Json& message, const std::string& param) {
  const Json* content = find(message, "content");
  if (!content) reject(param + ".content", "a string or text parts");
  if (content->is_string()) return text(*content, param + ".content");
  if (!content->is_array()) reject(param + ".content", "a string or text parts");
  std::string joined;
  for (const Json& part : *content) {
    const Json* type = part.is_object() ? find(part, "type") : nullptr;
    const Json* piece = part.is_object() ? find(part, "text") : nullptr;
    if (!type || *type != "text" || !piece)
      reject(param + ".content", "parts of type 'text': this server takes no images, audio, video or files");
    joined += text(*piece, param + ".content");
  }
  return joined;
}

void parse_messages(const Json& body, const ServeLimits& limits, ApiRequest& out) {
  const Json* list = find(body, "messages");
  if (!list || !list->is_array() || list->empty() || list->size() > limits.messages)
    reject("messages", "1 to " + std::to_string(limits.messages) + " messages");
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string param = "messages[" + std::to_string(i) + "]";
    if (!message.is_object()) reject(param, "an object with role and content");
    const Json* role = find(message, "role");
    bool known = false;
    for (const char* name : {"system", "developer", "user", "assistant", "tool"}) known |= role && *role == name;
    if (!known) reject(param + ".role", "system, developer, user, assistant or tool");
    if (const Json* calls = find(message, "tool_calls"); calls && !(calls->is_array() && calls->empty()))
      refuse(param + ".tool_calls");
    if (find(message, "function_call")) refuse(param + ".function_call");
    if (find(message, "audio")) refuse(param + ".audio");
    out.messages.push_back({role->get<std::string>(), message_content(message, param)});
  }
}

std::vector<int32_t> token_ids(const Json& list) {
  const auto& range = std::get<IntegerRange>(request_number(Endpoint::kCompletions, "prompt[]").range);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) ids.push_back(static_cast<int32_t>(checked(id, range, "prompt")));
  if (ids.empty()) reject("prompt", "at least one token id");
  return ids;
}

void parse_prompt(const Json& body, const ServeLimits& limits, ApiRequest& out) {
  const std::string expected = "a string, 1 to " + std::to_string(limits.prompts) + " strings, token ids, or 1 to " +
                               std::to_string(limits.prompts) + " lists of token ids";
  const Json* prompt = find(body, "prompt");
  if (!prompt) reject("prompt", expected);
  if (prompt->is_string()) {
    out.prompts.push_back(text(*prompt, "prompt"));
    return;
  }
  if (!prompt->is_array() || prompt->empty()) reject("prompt", expected);
  if (prompt->front().is_number()) {
    out.prompt_ids.push_back(token_ids(*prompt));
    return;
  }
  if (prompt->size() > limits.prompts) reject("prompt", expected);
  const bool strings = prompt->front().is_string();
  for (const Json& item : *prompt) {
    if (strings ? !item.is_string() : !item.is_array()) reject("prompt", expected);
    if (strings)
      out.prompts.push_back(text(item, "prompt"));
    else
      out.prompt_ids.push_back(token_ids(item));
  }
}

ApiRequest parse(Endpoint endpoint, const Json& body, const ServeLimits& limits) {
  const Numbers numbers(body, endpoint);
  ApiRequest out;
  out.endpoint = endpoint;
  if (const Json* model = find(body, "model")) out.model = text(*model, "model");
  if (endpoint == Endpoint::kChat)
    parse_messages(body, limits, out);
  else
    parse_prompt(body, limits, out);
  parse_sampling(numbers, out);
  parse_rules(body, numbers, limits, out);
  parse_logprobs(body, numbers, out);
  if (endpoint == Endpoint::kCompletions) out.echo = boolean(body, "echo", "echo");
  out.options.speculate = boolean(body, "speculative", "speculative", true);
  parse_length(body, numbers, out);
  if (const Json* n = find(body, "n")) out.n = checked(*n, {1, limits.n}, "n");
  const size_t prompts = std::max<size_t>(1, out.prompts.size() + out.prompt_ids.size());
  if (prompts * static_cast<size_t>(out.n) > limits.choices)
    reject("n", "at most " + std::to_string(limits.choices) + " answers per request, over all prompts");
  parse_stop(body, limits, out);
  parse_stream(body, out);
  parse_unsupported(body, endpoint, out.n);
  out.return_token_ids = boolean(body, "return_token_ids", "return_token_ids");
  out.include_metrics = boolean(body, "include_metrics", "include_metrics");
  out.ignore_eos = boolean(body, "ignore_eos", "ignore_eos");
  if (const Json* user = find(body, "user"); user && !user->is_string()) reject("user", "a string");
  const Json* metadata = find(body, "metadata");
  if (metadata && !metadata->is_object()) reject("metadata", "an object");
  out.domain = label(metadata, "domain", limits.domain_bytes);
  out.conversation = label(metadata, "conversation_id", limits.conversation_bytes);
  return out;
}

}  // namespace

std::variant<ApiRequest, ApiError> parse_request(Endpoint endpoint, std::string_view body, const ServeLimits& limits) {
  if (body.size() > limits.body_bytes) return body_too_large();
  if (too_many_items(body, limits.array_items, limits.json_depth)) return invalid_body();
  try {
    const Json value = parse_json(body, "body", ErrorKind::kUsage, {limits.body_bytes, limits.json_depth});
    if (!value.is_object()) return invalid_body();
    ApiRequest request = parse(endpoint, value, limits);
    if (asks_for_grammar(value)) GrammarFields(OrderedJson::parse(body), limits, request).read();
    return request;
  } catch (const Rejected& rejected) {
    return rejected.error;
  } catch (const Error&) {
    return invalid_body();
  }
}

}  // namespace specdec::deploy
