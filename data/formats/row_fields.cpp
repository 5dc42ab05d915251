#include "data/formats/row_fields.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/sampling_ranges.h"
#include "data/formats/row_json.h"

namespace specdec::data {

namespace {

std::string read_output_items(const Json& items, const std::string& where) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string at = where + ".output[" + std::to_string(i) + "]";
    const std::string type = id_text(find(items[i], "type"));
    if (type == "function_call") refuse("unsupported_tool_calls", at);
    if (type != "message") refuse("unsupported_content", at);
    text += read_content(find(items[i], "content"), at);
  }
  return text;
}

constexpr const char *kToolCalls = "unsupported_tool_calls", *kTemplateKwargs = "chat_template_kwargs";

// Parses a list of tools or tool calls, which parse_row_json() keeps as JSON text in rows up to 1 MiB. Returns null if
// `value` is neither text nor an array.
nlohmann::ordered_json read_list(const Json& value, const std::string& where) {
  if (value.is_array()) refuse(kToolCalls, where + ": expected JSON text, or a row of at most 1 MiB");
  if (!value.is_string()) return nullptr;
  try {
    return parse_ordered_json(value.get_ref<const std::string&>(), where);
  } catch (const Error&) {  // not passed on, because the parser's message would quote the row
  }
  refuse(kToolCalls, where + ": expected a JSON array of at most 1 MiB with at most 4096 keys in an object");
}

// Returns the arguments of a tool call as JSON, or as the text itself if the text is not JSON.
nlohmann::ordered_json read_arguments(const std::string& text, const std::string& where) {
  try {
    return tool_arguments(text, {kMaxOrderedBytes, kMaxRowDepth / 2}).value_or(text);
  } catch (const Error&) {  // not passed on, because the parser's message would quote the row
  }
  refuse(kToolCalls, where +
                         ".function.arguments: JSON with a key twice, a lone surrogate or a number past a double, " +
                         "of more than 1 MiB, 4096 keys in an object or 32 levels");
}

// Returns the list [{…, "function": {"name": …}}] as JSON text, "" if it is empty. Arguments given as text are parsed
// if the text is JSON.
std::string tool_list(nlohmann::ordered_json list, const std::string& where) {
  if (!list.is_array()) refuse(kToolCalls, where + ": expected an array");
  for (auto& item : list) {
    if (!item.is_object() || !item.contains("function") || !item["function"].is_object() ||
        !item["function"].contains("name") || !item["function"]["name"].is_string())
      refuse(kToolCalls, where + ": expected function.name in each");
    auto& function = item["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    function["arguments"] = read_arguments(function["arguments"].get<std::string>(), where);
  }
  return list.empty() ? "" : list.dump();
}

// Refuses a list of more than 1 MiB. The list may be longer than it was in the log, because its numbers are formatted
// again.
std::string bounded(std::string list, const std::string& where) {
  if (list.size() > kMaxOrderedBytes) refuse(kToolCalls, where + ": of more than 1 MiB");
  return list;
}

bool has_items(const Json* value) {
  return value && !value->empty() &&
         !(value->is_string() && (value->get_ref<const std::string&>().empty() || *value == "[]"));
}

// Returns the assistant's thought (reasoning) before its answer. Servers use three names for the field.
std::string read_thought(const Json& message, const std::string& where) {
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    const Json* thought = find(message, key);
    if (!thought || thought->is_boolean() || thought->empty()) continue;
    if (!thought->is_string()) refuse("unsupported_content", where + "." + key + ": a thought that is not text");
    if (std::string text = thought->get<std::string>(); !is_blank(text)) return text;
  }
  return {};
}

// Returns whether the log says that a draft must not learn this message: OpenAI's weight: 0, or trainable: false.
bool is_unlearnt(const Json& message) {
  const Json *weight = find(message, "weight"), *trainable = find(message, "trainable");
  return (weight && weight->is_number() && *weight == 0) || (trainable && *trainable == false);
}

constexpr std::pair<const char*, const char*> kFinishReasons[] = {
    {"stop", "stop"},
    {"end_turn", "stop"},
    {"eos", "stop"},
    {"eos_token", "stop"},
    {"completed", "stop"},
    {"complete", "stop"},
    {"tool_call", "stop"},
    {"tool_calls", "stop"},
    {"tool_use", "stop"},
    {"function_call", "stop"},
    {"length", "length"},
    {"max_length", "length"},
    {"max_tokens", "length"},
    {"max_output_tokens", "length"},
    {"model_length", "length"},
    {"model_context_window_exceeded", "length"},
    {"stop_string", "stop_string"},
    {"stop_sequence", "stop_string"},
    {"content_filter", "content_filter"},
    {"safety", "content_filter"},
    {"refusal", "content_filter"},
};

}  // namespace

void refuse(const char* reason, const std::string& detail) { throw Refusal{{reason, detail}}; }

const Json* find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json* find_any(const Json& object, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys)
    if (const Json* value = find(object, key)) return value;
  return nullptr;
}

const Json* find_path(const Json& object, std::string_view path) {
  if (const Json* value = find(object, path)) return value;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
    if (const Json* inner = find(object, path.substr(0, dot)))
      if (const Json* value = find_path(*inner, path.substr(dot + 1))) return value;
  return nullptr;
}

const Json* find_object(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  return value && value->is_object() ? value : nullptr;
}

bool has_object(const Json& object, std::string_view key) { return find_object(object, key) != nullptr; }

std::string id_text(const Json* value) {
  if (value && value->is_string()) return value->get<std::string>();
  if (value && value->is_number_integer()) return value->dump();
  return {};
}

bool is_true(const Json* value) {
  if (value && value->is_boolean()) return value->get<bool>();
  std::string text = id_text(value);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text == "1" || text == "true";
}

std::string string_field(const Json& row, const char* key) {
  const Json* value = find(row, key);
  if (!value) return {};
  if (!value->is_string()) refuse("bad_field", std::string(key) + ": expected a string");
  return value->get<std::string>();
}

Json unpacked(const Json& value) {
  if (!value.is_string()) return value;
  const std::string& text = value.get_ref<const std::string&>();
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string::npos || (text[first] != '{' && text[first] != '[')) return value;
  try {
    return parse_row_json(text);
  } catch (const Error&) {
    return value;  // ordinary text that begins with a bracket
  }
}

std::string read_content(const Json* content, const std::string& where) {
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse("bad_field", where + ".content: expected a string or an array of parts");
  std::string text;
  for (const Json& part : *content) {
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    const Json* type = find(part, "type");
    const Json* value = find(part, "text");
    const bool is_text = type && (*type == "text" || *type == "input_text" || *type == "output_text");
    if (!is_text || !value || !value->is_string())
      refuse("unsupported_content", where + ".content: a part that is not text");
    text += value->get_ref<const std::string&>();
  }
  return text;
}

std::string read_content_of(const std::string& role, const Json* content, const std::string& where) {
  if (role != "assistant" && (!content || (content->is_array() && content->empty())))
    refuse("bad_field", where + ".content: missing");
  return read_content(content, where);
}

std::string canonical_role(const std::string& role, const std::string& where) {
  for (const char* known : {"system", "developer", "user", "assistant", "tool"})
    if (role == known) return role;
  if (role == "human") return "user";
  if (role == "gpt" || role == "model" || role == "bot" || role == "chatgpt") return "assistant";
  if (role == "observation" || role == "function") return "tool";
  if (role == "function_call") refuse("unsupported_tool_calls", where);
  refuse("bad_field", where + ": unknown role");
}

ChatMessage read_message(const Json& message, const std::string& where) {
  if (!message.is_object()) refuse("bad_field", where + ": expected an object");
  const bool sharegpt = message.contains("from");
  const Json* role = find(message, sharegpt ? "from" : "role");
  if (!role || !role->is_string()) refuse("bad_field", where + ": role is missing");
  if (has_items(find(message, "function_call"))) refuse(kToolCalls, where + ".function_call: expected tool_calls");
  ChatMessage read{.role = canonical_role(role->get<std::string>(), where), .content = {}};
  read.content = read_content_of(read.role, find(message, sharegpt ? "value" : "content"), where);
  if (const Json* calls = find(message, "tool_calls"); has_items(calls)) {
    const std::string at = where + ".tool_calls";
    read.tool_calls = bounded(tool_list(read_list(*calls, at), at), at);
  }
  if (!read.tool_calls.empty() && read.role != "assistant")
    refuse(kToolCalls, where + ": tool_calls in a message that is not the assistant's");
  if (read.role == "assistant") {
    read.reasoning_content = read_thought(message, where);
    read.unlearnt = is_unlearnt(message);
  }
  if (read.role == "tool")
    read.tool_call_id = id_text(find(message, "tool_call_id")), read.name = id_text(find(message, "name"));
  return read;
}

void append_messages(const Json& list, const std::string& where, std::vector<ChatMessage>& out) {
  if (!list.is_array()) refuse("bad_field", where + ": expected an array");
  for (size_t i = 0; i < list.size(); ++i) out.push_back(read_message(list[i], where + "[" + std::to_string(i) + "]"));
}

std::string read_tools(const Json& request) {
  if (has_items(find(request, "functions"))) refuse(kToolCalls, "functions: expected tools");
  const Json* tools = find(request, "tools");
  if (!has_items(tools)) return "";
  return bounded(tool_list(read_list(*tools, "tools"), "tools"), "tools");
}

std::string read_template_kwargs(const Json& request) {
  const Json* extra = find_object(request, "extra_body");
  const Json* kwargs = find(request, kTemplateKwargs);
  if (!kwargs && extra) kwargs = find(*extra, kTemplateKwargs);
  if (!kwargs) return "";
  const Json read = unpacked(*kwargs);
  if (!read.is_object()) refuse("bad_field", std::string(kTemplateKwargs) + ": expected an object");
  std::string text = read.empty() ? "" : read.dump();
  try {
    if (!text.empty()) parse_ordered_json(text, kTemplateKwargs);
  } catch (const Error&) {  // not passed on, because the parser's message would quote the row
    refuse("bad_field", std::string(kTemplateKwargs) + ": of more than 1 MiB or 4096 keys in an object");
  }
  return text;
}

std::string canonical_finish_reason(std::string word) {
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [theirs, ours] : kFinishReasons)
    if (word == theirs) return ours;
  return word.empty() ? "" : "other";
}

std::string read_finish_reason(const Json& object) {
  const Json* choices = find(object, "choices");
  const Json& choice = choices && choices->is_array() && !choices->empty() ? (*choices)[0] : object;
  const Json* reason = find_any(choice, {"finish_reason", "finishReason", "done_reason"});
  const Json* stop = find_any(choice, {"stop_reason", "matched_stop"});
  if (reason && reason->is_object()) {  // SGLang's {"type": "stop", "matched": …}
    stop = find(*reason, "matched");
    reason = find(*reason, "type");
  }
  // If a stop string ended the answer, engines also say "stop" and give the stop string in another field. If that field
  // holds a token id, the model ended the answer itself.
  if (reason && *reason == "stop" && stop && stop->is_string()) return "stop_string";
  if (!reason) reason = stop;  // Anthropic has only stop_reason
  const Json* output = find(object, "output");
  const Json* status = output && output->is_array() ? find(object, "status") : nullptr;
  if (!reason && status) {  // OpenAI's Responses API
    const Json* details = find(object, "incomplete_details");
    reason = details && find(*details, "reason") ? find(*details, "reason") : status;
  }
  return reason && reason->is_string() ? canonical_finish_reason(reason->get<std::string>()) : "";
}

ChatMessage read_answer(const Json& answer, const std::string& where, TrafficRecord& record) {
  if (answer.is_string()) return {"assistant", answer.get<std::string>()};
  if (std::string reason = read_finish_reason(answer); !reason.empty()) record.finish_reason = std::move(reason);
  const Json* message = nullptr;
  if (answer.is_array()) {
    message = answer.empty() ? nullptr : &answer.back();
  } else if (const Json* choices = find(answer, "choices"); choices && choices->is_array() && !choices->empty()) {
    message = find((*choices)[0], "message");
    if (const Json* text = find((*choices)[0], "text"); !message && text && text->is_string())
      return {"assistant", text->get<std::string>()};
  } else if (const Json* output = find(answer, "output"); output && output->is_array()) {
    return {"assistant", read_output_items(*output, where)};
  } else if (find(answer, "role")) {
    message = &answer;
  }
  if (!message) refuse("bad_field", where + ": expected a string, a message or choices[0].message");
  if (record.finish_reason.empty()) record.finish_reason = read_finish_reason(*message);
  ChatMessage read = read_message(*message, where);
  if (read.role != "assistant") refuse("no_answer", where + ": a message that is not the assistant's");
  return read;
}

std::string read_text_answer(const Json& answer, const std::string& where, TrafficRecord& record) {
  ChatMessage read = read_answer(answer, where, record);
  if (!read.tool_calls.empty()) refuse(kToolCalls, where + ": beside a prompt without roles");
  if (!read.reasoning_content.empty())
    refuse("unsupported_content", where + ": a thought beside a prompt without roles");
  return std::move(read.content);
}

void read_request(const Json& request, TrafficRecord& record) {
  const Json* list = find_any(request, {"messages", "input", "prompt"});
  if (!list) refuse("bad_field", "request: none of messages, prompt and input");
  if (const Json* system = find_any(request, {"system", "instructions"}))
    record.messages.push_back({"system", read_content(system, "system")});
  if (list->is_string() && list != find(request, "prompt")) {
    record.messages.push_back({"user", list->get<std::string>()});
  } else if (list->is_string() || (list->is_array() && list->size() == 1 && (*list)[0].is_string())) {
    record.messages.clear();
    record.prompt = list->is_string() ? list->get<std::string>() : (*list)[0].get<std::string>();
  } else if (list->is_array() && !list->empty() && (*list)[0].is_number()) {
    refuse("unsupported_content", "prompt: token ids instead of text");
  } else {
    append_messages(*list, "messages", record.messages);
  }
  if (record.messages.empty()) return;
  record.tools = read_tools(request);
  record.template_kwargs = read_template_kwargs(request);
}

void read_parameters(const Json* packed, Json& request, TrafficRecord& record) {
  const Json parameters = packed ? unpacked(*packed) : Json();
  if (!parameters.is_object()) return;
  record.sampling = read_sampling(parameters);
  for (const char* key : {"tools", "functions", kTemplateKwargs, "extra_body"})
    if (const Json* value = find(parameters, key); value && !find(request, key)) request[key] = *value;
}

void read_exchange(const Json& request, const Json& answer, TrafficRecord& record) {
  read_request(request, record);
  if (!record.messages.empty())
    record.messages.push_back(read_answer(answer, "response", record));
  else
    record.response = read_text_answer(answer, "response", record);
  if (record.writer.empty()) record.writer = id_text(find(answer, "model"));
  if (record.writer.empty()) record.writer = id_text(find(request, "model"));
  if (record.time == 0) record.time = read_time(find_any(answer, {"created", "created_at"}));
  if (!record.sampling) record.sampling = read_sampling(request);
  finish_exchange(record);
}

void finish_chat(TrafficRecord& record) {
  auto& messages = record.messages;
  while (!messages.empty() && messages.back().role != "assistant") messages.pop_back();
  if (messages.empty()) refuse("no_answer", "no assistant message");
  if (is_blank(messages.back().content) && messages.back().tool_calls.empty())
    refuse("no_answer", "the last assistant message is empty");
}

void finish_exchange(TrafficRecord& record) {
  if (!record.messages.empty()) return finish_chat(record);
  if (is_blank(record.response)) refuse("no_answer", "the completion is empty");
}

std::optional<SamplingOptions> read_sampling(const Json& object, const std::string& prefix) {
  SamplingOptions s;
  bool any = false;
  const auto number = [&](const char* key, const NumberRange& range) -> std::optional<double> {
    const Json* value = find(object, prefix.empty() ? key : prefix + key);
    double x = NAN;
    if (value && value->is_number()) x = value->get<double>();
    // Langfuse and some gateways write numbers as strings.
    if (value && value->is_string() && !value->get_ref<const std::string&>().empty() &&
        value->get_ref<const std::string&>().size() < 32) {
      char* end = nullptr;
      x = std::strtod(value->get_ref<const std::string&>().c_str(), &end);
      if (*end != '\0') x = NAN;
    }
    if (!range.contains(x)) return {};
    any = true;
    return x;
  };
  if (const auto x = number("temperature", kTemperatures)) s.temperature = *x;
  if (const auto x = number("top_k", {.low = 0, .high = INT32_MAX})) s.top_k = static_cast<int64_t>(*x);
  if (const auto x = number("top_p", {.low = 1e-6, .high = 1})) s.top_p = *x;
  if (const auto x = number("min_p", {.low = 0, .high = 0.999999})) s.min_p = *x;
  return any ? std::optional(s) : std::nullopt;
}

}  // namespace specdec::data
