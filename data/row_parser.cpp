#include "data/row_parser.h"

#include <chrono>
#include <cmath>
#include <cstdio>

#include "data/record_reader.h"

namespace specdec::data {

namespace {

constexpr int64_t kMillisecondsFrom = 100'000'000'000;  // as seconds this is the year 5138
constexpr size_t kMaxTagBytes = 128;

// Thrown inside this file only: the row is refused.
struct Refusal {
  Rejected why;
};
[[noreturn]] void refuse(const char* reason, const std::string& detail) { throw Refusal{{reason, detail}}; }

const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}
const Json* find_any(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const Json* value = find(object, key)) return value;
  return nullptr;
}

// An id as text: strings and whole numbers; anything else counts as absent.
std::string id_text(const Json* value) {
  if (value && value->is_string()) return value->get<std::string>();
  if (value && value->is_number_integer()) return value->dump();
  return {};
}

std::string string_field(const Json& row, const char* key) {
  const Json* value = find(row, key);
  if (!value) return {};
  if (!value->is_string()) refuse("bad_field", std::string(key) + ": expected a string");
  return value->get<std::string>();
}

bool blank(const std::string& s) { return s.find_first_not_of(" \t\r\n") == std::string::npos; }

std::string text_of_content(const Json* content, const std::string& where) {
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse("bad_field", where + ".content: expected a string or an array of parts");
  std::string text;
  for (const Json& part : *content) {
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    const Json* type = part.is_object() ? find(part, "type") : nullptr;
    const Json* value = part.is_object() ? find(part, "text") : nullptr;
    const bool is_text = type && (*type == "text" || *type == "input_text" || *type == "output_text");
    if (!is_text || !value || !value->is_string()) refuse("unsupported_content", where + ".content: a part that is not text");
    text += value->get_ref<const std::string&>();
  }
  return text;
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

ChatMessage parse_message(const Json& message, const std::string& where) {
  if (!message.is_object()) refuse("bad_field", where + ": expected an object");
  const bool sharegpt = message.contains("from");
  const Json* role = find(message, sharegpt ? "from" : "role");
  if (!role || !role->is_string()) refuse("bad_field", where + ": role is missing");
  for (const char* key : {"tool_calls", "function_call"})
    if (const Json* calls = find(message, key); calls && !calls->empty()) refuse("unsupported_tool_calls", where);
  return {canonical_role(role->get<std::string>(), where), text_of_content(find(message, sharegpt ? "value" : "content"), where)};
}

void append_messages(const Json& list, const char* key, std::vector<ChatMessage>& out) {
  if (!list.is_array()) refuse("bad_field", std::string(key) + ": expected an array");
  for (size_t i = 0; i < list.size(); ++i) out.push_back(parse_message(list[i], std::string(key) + "[" + std::to_string(i) + "]"));
}

// The answer beside the request, as gateways log it: a string, a message, or a whole completion object.
void append_answer(const Json& row, std::vector<ChatMessage>& messages) {
  const Json* answer = find_any(row, {"response", "completion"});
  if (!answer || (!messages.empty() && messages.back().role == "assistant")) return;
  if (answer->is_string()) {
    messages.push_back({"assistant", answer->get<std::string>()});
    return;
  }
  const Json* choices = answer->is_object() ? find(*answer, "choices") : nullptr;
  const bool has_choice = choices && choices->is_array() && !choices->empty() && (*choices)[0].is_object();
  const Json* message = has_choice ? find((*choices)[0], "message") : answer->is_object() && answer->contains("role") ? answer : nullptr;
  if (!message) refuse("bad_field", "response: expected a string, a message or choices[0].message");
  messages.push_back(parse_message(*message, "response"));
}

void finish_chat(TrafficRecord& record) {
  auto& messages = record.messages;
  while (!messages.empty() && messages.back().role != "assistant") messages.pop_back();
  if (messages.empty()) refuse("no_answer", "no assistant message");
  if (blank(messages.back().content)) refuse("no_answer", "the last assistant message is empty");
}

void parse_instruction(const Json& row, bool as_chat, TrafficRecord& record) {
  std::string prompt = string_field(row, "instruction");
  const std::string input = string_field(row, "input");
  std::string answer = string_field(row, row.contains("output") ? "output" : row.contains("response") ? "response" : "completion");
  if (blank(answer)) refuse("no_answer", "the output is empty");
  if (!input.empty()) prompt += (as_chat ? "\n\n" : "\n") + input;
  if (as_chat) {
    record.messages = {{"user", std::move(prompt)}, {"assistant", std::move(answer)}};
  } else {
    record.prompt = std::move(prompt) + "\n";
    record.response = std::move(answer);
  }
}

RowFormat detect(const Json& row) {
  if (const Json* schema = find(row, "schema"); schema && schema->is_string() && schema->get_ref<const std::string&>().starts_with("specdec."))
    return RowFormat::kTraffic;
  if (find_any(row, {"messages", "conversations"})) return RowFormat::kChat;
  if (find(row, "instruction") || (find(row, "prompt") && find_any(row, {"completion", "response"}))) return RowFormat::kPrompt;
  if (find(row, "text")) return RowFormat::kText;
  return RowFormat::kAuto;
}

void parse_prompt(const Json& row, const RowOptions& options, TrafficRecord& record) {
  const Json* prompt = find(row, "prompt");
  const Json* answer = find_any(row, {"completion", "response"});
  if (!prompt && find(row, "instruction")) return parse_instruction(row, options.instructions_as_chat, record);
  if (!prompt) refuse("bad_field", "prompt: missing");
  if (!answer) refuse("bad_field", "completion: missing");
  if (prompt->is_array()) {
    append_messages(*prompt, "prompt", record.messages);
    if (answer->is_array()) append_messages(*answer, "completion", record.messages);
    else append_answer(row, record.messages);
    return finish_chat(record);
  }
  record.prompt = string_field(row, "prompt");
  record.response = string_field(row, find(row, "completion") ? "completion" : "response");
  if (blank(record.response)) refuse("no_answer", "the completion is empty");
}

int64_t time_of(const Json& row) {
  const Json* value = find_any(row, {"time", "timestamp", "created", "created_at"});
  if (!value) return 0;
  if (value->is_string()) return std::max<int64_t>(0, parse_time(value->get_ref<const std::string&>()));
  if (!value->is_number()) return 0;
  const double seconds = value->get<double>() >= static_cast<double>(kMillisecondsFrom) ? value->get<double>() / 1000 : value->get<double>();
  return seconds > 0 && seconds < static_cast<double>(kMillisecondsFrom) ? static_cast<int64_t>(seconds) : 0;
}

// Values outside our ranges (OpenAI allows temperature 2, ours end at 10; top_k -1 means off elsewhere) fall back to "off".
std::optional<SamplingOptions> sampling_of(const Json& row) {
  SamplingOptions s;
  bool any = false;
  const auto number = [&](const char* key, double low, double high) -> std::optional<double> {
    const Json* value = find(row, key);
    if (!value || !value->is_number()) return {};
    const double x = value->get<double>();
    if (!(x >= low && x <= high)) return {};
    any = true;
    return x;
  };
  if (const auto x = number("temperature", 0, 10)) s.temperature = *x;
  if (const auto x = number("top_k", 0, INT32_MAX)) s.top_k = static_cast<int64_t>(*x);
  if (const auto x = number("top_p", 1e-6, 1)) s.top_p = *x;
  if (const auto x = number("min_p", 0, 0.999999)) s.min_p = *x;
  return any ? std::optional(s) : std::nullopt;
}

void parse_metadata(const Json& row, const RowOptions& options, TrafficRecord& record) {
  record.id = id_text(find_any(row, {"id", "custom_id", "request_id"}));
  record.conversation = id_text(find_any(row, {"conversation", "conversation_id", "thread_id", "thread", "session_id"}));
  record.time = time_of(row);
  record.writer = id_text(find(row, "model"));
  record.sampling = sampling_of(row);
}

TrafficRecord parse_object(const Json& row, const RowOptions& options) {
  if (const Json* out = find(row, "opt_out"); out && *out == true) refuse("opted_out", "opt_out is true");
  const RowFormat format = options.format == RowFormat::kAuto ? detect(row) : options.format;
  TrafficRecord record;
  if (format == RowFormat::kTraffic) {
    record = traffic_record_from_json(row, "row");
    if (!record.messages.empty()) finish_chat(record);
    record.validate("row");
  } else {
    parse_metadata(row, options, record);
    if (format == RowFormat::kChat) {
      const Json* list = find_any(row, {"messages", "conversations"});
      if (!list) refuse("bad_field", "messages: missing");
      if (const std::string system = list->is_array() && row.contains("conversations") ? string_field(row, "system") : ""; !system.empty())
        record.messages.push_back({"system", system});
      append_messages(*list, row.contains("messages") ? "messages" : "conversations", record.messages);
      append_answer(row, record.messages);
      finish_chat(record);
    } else if (format == RowFormat::kPrompt) {
      parse_prompt(row, options, record);
    } else if (format == RowFormat::kText) {
      if (!find(row, "text")) refuse("bad_field", "text: missing");
      record.text = string_field(row, "text");
      if (blank(record.text)) refuse("empty", "text");
    } else {
      refuse("unknown_format", "none of messages, conversations, prompt + completion, instruction + output, text");
    }
  }
  const std::string tag = id_text(find(row, options.domain_field.empty() ? "domain" : options.domain_field.c_str()));
  if (!tag.empty()) record.domain = tag;
  if (record.domain.size() > kMaxTagBytes) refuse("bad_field", "domain: longer than " + std::to_string(kMaxTagBytes) + " bytes");
  return record;
}

// What an Error says up to the value it found, which may be content.
std::string without_values(const std::string& message) { return message.substr(0, std::min(message.find(", found"), size_t{160})); }

}  // namespace

RowFormat parse_row_format(const std::string& name) {
  if (name == "auto") return RowFormat::kAuto;
  if (name == "chat") return RowFormat::kChat;
  if (name == "prompt") return RowFormat::kPrompt;
  if (name == "text") return RowFormat::kText;
  if (name == "traffic") return RowFormat::kTraffic;
  throw Error(ErrorKind::kUsage, "--format: expected auto, chat, prompt, text, plain or traffic, found '" + name + "'");
}

ParsedRow parse_row(std::string_view text, const RowOptions& options) {
  if (!is_valid_utf8(text)) return Rejected{"invalid_utf8", ""};
  Json row;
  try {
    row = parse_json(text, "row", ErrorKind::kData, {text.size(), 64});
  } catch (const Error& e) {
    // The parser's message quotes the row: only the position is safe to keep.
    const std::string message = e.what();
    const size_t byte = message.rfind("(byte ");
    return Rejected{"invalid_json", byte == std::string::npos ? "" : message.substr(byte + 1, message.size() - byte - 2)};
  }
  if (!row.is_object()) return Rejected{"not_an_object", ""};
  try {
    return parse_object(row, options);
  } catch (const Refusal& refusal) {
    return refusal.why;
  } catch (const Error& e) {
    return Rejected{"bad_field", without_values(e.what())};
  }
}

ParsedRow parse_document(std::string_view text) {
  if (!is_valid_utf8(text)) return Rejected{"invalid_utf8", ""};
  TrafficRecord record;
  record.text = std::string(text);
  if (blank(record.text)) return Rejected{"empty", ""};
  return record;
}

int64_t content_characters(const TrafficRecord& record) {
  int64_t n = count_characters(record.prompt) + count_characters(record.response) + count_characters(record.text);
  for (const ChatMessage& m : record.messages) n += count_characters(m.content);
  return n;
}

int64_t parse_time(std::string_view text) {
  int year, month, day, hour, minute, second, used = 0;
  const std::string s(text.substr(0, 64));
  if (std::sscanf(s.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%2d%n", &year, &month, &day, &hour, &minute, &second, &used) != 6 || used == 0) return -1;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60) return -1;
  size_t i = static_cast<size_t>(used);
  if (i < s.size() && s[i] == '.')
    while (++i < s.size() && s[i] >= '0' && s[i] <= '9') {
    }
  int64_t offset = 0;
  if (i < s.size() && (s[i] == '+' || s[i] == '-')) {
    int oh = 0, om = 0;
    if (std::sscanf(s.c_str() + i + 1, "%2d:%2d", &oh, &om) < 1) return -1;
    offset = (s[i] == '+' ? 1 : -1) * (oh * 3600 + om * 60);
  } else if (i < s.size() && s[i] != 'Z') {
    return -1;
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return int64_t{days} * 86400 + hour * 3600 + minute * 60 + second - offset;
}

}  // namespace specdec::data
