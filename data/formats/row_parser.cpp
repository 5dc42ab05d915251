#include "data/formats/row_parser.h"

#include "base/shell.h"
#include "base/utf8.h"
#include "data/formats/gateway_formats.h"
#include "data/formats/row_json.h"
#include "data/formats/trace_formats.h"

namespace specdec::data {

namespace {

constexpr size_t kMaxTagBytes = 128;

// The placeholders that LiteLLM logs instead of content: the first when logging of messages is turned off, the second
// for a request without messages.
constexpr std::string_view kPlaceholders[] = {"redacted-by-litellm", "default-message-value"};

// Refuses a record in which a gateway has replaced a text by a placeholder. Other tools may re-export a gateway's
// records, so this is checked for all formats.
void refuse_placeholders(const TrafficRecord& record) {
  const auto check = [](std::string_view text, const char* where) {
    for (const std::string_view placeholder : kPlaceholders)
      if (text == placeholder) refuse("replaced_content", std::string(where) + ": " + std::string(placeholder));
  };
  for (const ChatMessage& m : record.messages) {
    check(m.content, "messages");
    check(m.reasoning_content, "messages");
  }
  check(record.prompt, "prompt");
  check(record.response, "response");
}

bool is_traffic(const Json& row) {
  const Json* schema = find(row, "schema");
  return schema && schema->is_string() && schema->get_ref<const std::string&>().starts_with("specdec.");
}
bool is_sharegpt(const Json& row) { return find(row, "conversations"); }
bool is_chat(const Json& row) { return find(row, "messages"); }
bool is_alpaca(const Json& row) { return find(row, "instruction"); }
bool is_prompt(const Json& row) { return find(row, "prompt") && find_any(row, {"completion", "response", "choices"}); }
bool is_text(const Json& row) { return find(row, "text"); }

void parse_traffic(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  if (id_text(find(row, "schema")).starts_with("specdec.rejects/"))
    refuse("other_event", "specdec.rejects: what a draft got wrong, beside the traffic record of the same id");
  ParsedRecord parsed{traffic_record_from_json(row, "row"), id_text(find(row, "tenant"))};
  if (!parsed.record.messages.empty()) finish_chat(parsed.record);
  append_record(std::move(parsed), row, nullptr, options, out);
}

// Returns the answer in the first of `fields` that the row has, else the row itself if it has the choices of a
// completion, else null.
const Json* answer_beside(const Json& row, std::initializer_list<std::string_view> fields) {
  const Json* answer = find_any(row, fields);
  return !answer && find(row, "choices") ? &row : answer;
}

// Parses OpenAI's `messages` or ShareGPT's `conversations`; the answer may be in a separate field of the row.
void parse_chat(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const bool sharegpt = !find(row, "messages");
  const Json* list = find(row, sharegpt ? "conversations" : "messages");
  if (!list) refuse("bad_field", "messages: missing");
  ParsedRecord parsed = read_metadata(row);
  auto& messages = parsed.record.messages;
  if (const std::string system = sharegpt ? string_field(row, "system") : ""; !system.empty())
    messages.push_back({"system", system});
  append_messages(list->is_string() ? unpacked(*list) : *list, sharegpt ? "conversations" : "messages", messages);
  const Json* answer = answer_beside(row, {"response", "completion"});
  if (answer && (messages.empty() || messages.back().role != "assistant"))
    messages.push_back(read_answer(*answer, "response", parsed.record));
  parsed.record.tools = read_tools(row);
  parsed.record.template_kwargs = read_template_kwargs(row);
  finish_chat(parsed.record);
  append_record(std::move(parsed), row, nullptr, options, out);
}

// Reads the earlier turns of an instruction row, [[question, answer], …], in the layout of LLaMA-Factory.
std::vector<ChatMessage> read_history(const Json& row) {
  const Json* packed = find(row, "history");
  const Json history = packed ? unpacked(*packed) : Json();
  std::vector<ChatMessage> turns;
  if (history.is_null() || history == "") return turns;
  if (!history.is_array()) refuse("bad_field", "history: expected an array of [question, answer]");
  for (const Json& pair : history) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      refuse("bad_field", "history: expected [question, answer] in each");
    turns.push_back({"user", pair[0].get<std::string>()});
    turns.push_back({"assistant", pair[1].get<std::string>()});
  }
  return turns;
}

void parse_alpaca(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  std::string prompt = string_field(row, "instruction");
  if (prompt.empty()) refuse("bad_field", "instruction: missing");
  const std::string input = string_field(row, "input");
  std::string answer = string_field(row, row.contains("output")     ? "output"
                                         : row.contains("response") ? "response"
                                                                    : "completion");
  if (!input.empty()) prompt += (options.instructions_as_chat ? "\n\n" : "\n") + input;
  const std::string system = string_field(row, "system");
  std::vector<ChatMessage> turns = read_history(row);
  ParsedRecord parsed = read_metadata(row);
  if (options.instructions_as_chat) {
    if (!system.empty()) parsed.record.messages.push_back({"system", system});
    for (ChatMessage& turn : turns) parsed.record.messages.push_back(std::move(turn));
    parsed.record.messages.push_back({"user", std::move(prompt)});
    parsed.record.messages.push_back({"assistant", std::move(answer)});
  } else {
    if (!system.empty() || !turns.empty())
      refuse("unsupported_content", "system or history: the target has no chat template that renders them");
    parsed.record.prompt = std::move(prompt) + "\n";
    parsed.record.response = std::move(answer);
  }
  finish_exchange(parsed.record);
  append_record(std::move(parsed), row, nullptr, options, out);
}

void parse_prompt(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const Json* prompt = find(row, "prompt");
  const Json* answer = answer_beside(row, {"completion", "response"});
  if (!prompt && find(row, "instruction")) return parse_alpaca(row, options, out);
  if (!prompt) refuse("bad_field", "prompt: missing");
  if (!answer) refuse("bad_field", "completion: missing");
  ParsedRecord parsed = read_metadata(row);
  if (prompt->is_array()) {
    append_messages(*prompt, "prompt", parsed.record.messages);
    if (answer->is_array())
      append_messages(*answer, "completion", parsed.record.messages);
    else
      parsed.record.messages.push_back(read_answer(*answer, "completion", parsed.record));
    parsed.record.tools = read_tools(row);
    parsed.record.template_kwargs = read_template_kwargs(row);
  } else {
    parsed.record.prompt = string_field(row, "prompt");
    parsed.record.response = answer == &row ? read_text_answer(row, "choices", parsed.record)
                                            : string_field(row, find(row, "completion") ? "completion" : "response");
  }
  finish_exchange(parsed.record);
  append_record(std::move(parsed), row, nullptr, options, out);
}

// Returns the value at a field named in --map, or null if the map names no field for this part.
const Json* find_mapped(const Json& row, const std::string& field) {
  return field.empty() ? nullptr : find_path(row, field);
}

// Returns the string at a field named in --map. Refuses a missing field and values of other types: bad_field.
std::string mapped_text(const Json& row, const std::string& field) {
  const Json* value = find_mapped(row, field);
  if (!value) refuse("bad_field", field + ": missing");
  if (!value->is_string()) refuse("bad_field", field + ": expected a string");
  return value->get<std::string>();
}

// Returns the row without its content, and with the mapped metadata under the names that read_metadata and
// append_record read. The content is removed because its field may have one of these names, for example "user".
Json renamed_metadata(const Json& row, const FieldMap& map) {
  Json renamed = Json::object();
  for (const auto& [key, value] : row.items())
    if (!map.holds_content(key)) renamed[key] = value;
  const std::pair<const char*, const std::string&> fields[] = {
      {"model", map.model},   {"domain", map.domain},          {"time", map.time}, {"conversation", map.conversation},
      {"tenant", map.tenant}, {"temperature", map.temperature}};
  for (const auto& [name, field] : fields)
    if (const Json* value = find_mapped(row, field)) renamed[name] = *value;
  return renamed;
}

// Reads the prompt and the answer into a chat, or into prompt and response if the record has no messages yet and the
// target has no chat template.
void read_mapped_exchange(const Json& row, const RowOptions& options, TrafficRecord& record) {
  std::string prompt = mapped_text(row, options.map.prompt), answer = mapped_text(row, options.map.answer);
  if (is_blank(prompt)) refuse("empty", options.map.prompt);
  if (options.instructions_as_chat || !record.messages.empty()) {
    record.messages.push_back({"user", std::move(prompt)});
    record.messages.push_back({"assistant", std::move(answer)});
  } else {
    record.prompt = std::move(prompt);
    record.response = std::move(answer);
  }
}

void read_mapped_messages(const Json& row, const std::string& field, std::vector<ChatMessage>& messages) {
  const Json* list = find_mapped(row, field);
  if (!list) refuse("bad_field", field + ": missing");
  append_messages(list->is_string() ? unpacked(*list) : *list, field, messages);
}

// Parses a row by the fields that --map names.
void parse_mapped(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const FieldMap& map = options.map;
  const Json metadata = renamed_metadata(row, map);
  ParsedRecord parsed = read_metadata(metadata);
  TrafficRecord& record = parsed.record;
  if (find_mapped(row, map.system))
    if (std::string system = mapped_text(row, map.system); !system.empty())
      record.messages.push_back({"system", std::move(system)});
  if (map.messages.empty()) {
    read_mapped_exchange(row, options, record);
  } else {
    read_mapped_messages(row, map.messages, record.messages);
    record.tools = read_tools(metadata);
    record.template_kwargs = read_template_kwargs(metadata);
  }
  finish_exchange(record);
  append_record(std::move(parsed), metadata, nullptr, options, out);
}

void parse_text(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  if (!find(row, "text")) refuse("bad_field", "text: missing");
  ParsedRecord parsed = read_metadata(row);
  parsed.record.text = string_field(row, "text");
  if (is_blank(parsed.record.text)) refuse("empty", "text");
  append_record(std::move(parsed), row, nullptr, options, out);
}

constexpr TrafficFormat kFormats[] = {
    {"traffic", "\"schema\": \"specdec.traffic/1\"", is_traffic, parse_traffic},
    {"openai-batch", "custom_id with body (requests) or response (results)", is_batch, parse_batch},
    {"litellm", "call_type with model_parameters, model_group or startTime", is_litellm, parse_litellm},
    {"langfuse", "type (GENERATION, SPAN, …) with trace_id or start_time", is_langfuse, parse_langfuse},
    {"otel", "attributes gen_ai.*, resourceSpans, resourceLogs", is_otel, parse_otel},
    {"portkey", "request with ai_model or ai_org; request.url, request.body and response.body", is_portkey,
     parse_portkey},
    {"helicone", "request_body with response_body; request.body and response.body", is_helicone, parse_helicone},
    {"sglang", "request_parameters with SGLang's meta_info", is_sglang, parse_sglang},
    {"exchange", "request with messages, prompt or input, and response", is_exchange, parse_exchange},
    {"chat", "messages, with the answer in it or in response / completion / choices", is_chat, parse_chat},
    {"sharegpt", "conversations", is_sharegpt, parse_chat},
    {"alpaca", "instruction [+ input] with output or response", is_alpaca, parse_alpaca},
    {"prompt", "prompt with completion, response or choices", is_prompt, parse_prompt},
    {"text", "text", is_text, parse_text},
};

constexpr TrafficFormat kMapped = {"mapped", "the fields that --map names", [](const Json&) { return false; },
                                   parse_mapped};

const TrafficFormat* recognise(const Json& row) {
  for (const TrafficFormat& f : kFormats)
    if (f.matches(row)) return &f;
  return nullptr;
}

// Returns an error message without the value that was found, because the value may be content.
std::string without_values(const std::string& message) {
  return message.substr(0, std::min(message.find(", found"), size_t{160}));
}

Rejected not_json(std::string_view text, const Error& e) {
  if (!is_valid_utf8(text)) return {"invalid_utf8", ""};
  // The parser's message quotes the row, so only the byte position is kept.
  const std::string message = e.what();
  const size_t byte = message.rfind("(byte ");
  return {"invalid_json", byte == std::string::npos ? "" : message.substr(byte + 1, message.size() - byte - 2)};
}

}  // namespace

std::span<const TrafficFormat> traffic_formats() { return kFormats; }

const TrafficFormat& mapped_format() { return kMapped; }

std::string format_names() {
  std::string names = "auto";
  for (const TrafficFormat& f : kFormats) names += std::string(" | ") + f.name;
  return names + " | plain";
}

const TrafficFormat* parse_format_name(const std::string& name) {
  if (name == "auto") return nullptr;
  for (const TrafficFormat& f : kFormats)
    if (name == f.name) return &f;
  throw Error(ErrorKind::kUsage, "--format: expected " + format_names() + ", found '" + name + "'");
}

ParsedRecord read_metadata(const Json& row) {
  ParsedRecord parsed;
  parsed.record.id = id_text(find_any(row, {"id", "custom_id", "request_id"}));
  parsed.record.conversation =
      id_text(find_any(row, {"conversation", "conversation_id", "thread_id", "thread", "session_id"}));
  parsed.record.time = read_time(find_any(row, {"time", "timestamp", "created", "created_at"}));
  parsed.record.writer = id_text(find(row, "model"));
  parsed.record.sampling = read_sampling(row);
  parsed.record.finish_reason = read_finish_reason(row);
  parsed.tenant = id_text(find_any(row, {"tenant", "tenant_id", "team_id", "organization", "user_id", "user"}));
  return parsed;
}

void append_record(ParsedRecord&& parsed, const Json& row, const Json* inner, const RowOptions& options,
                   std::vector<ParsedRow>& out) {
  const auto tag = [&](const std::string& path) {
    std::string text = id_text(find_path(row, path));
    return text.empty() && inner ? id_text(find_path(*inner, path)) : text;
  };
  if (std::string domain = tag(options.domain_field.empty() ? "domain" : options.domain_field); !domain.empty())
    parsed.record.domain = std::move(domain);
  // The domain is made one line, because reports and terminals show it.
  parsed.record.domain = one_line(std::move(parsed.record.domain));
  if (!options.tenant_field.empty()) parsed.tenant = tag(options.tenant_field);
  if (parsed.record.domain.size() > kMaxTagBytes)
    refuse("bad_field", "domain: longer than " + std::to_string(kMaxTagBytes) + " bytes");
  if (parsed.tenant.size() > kMaxTagBytes)
    refuse("bad_field", "tenant: longer than " + std::to_string(kMaxTagBytes) + " bytes");
  refuse_placeholders(parsed.record);
  out.push_back(std::move(parsed));
}

ParsedLine parse_line(std::string_view text, const RowOptions& options) {
  ParsedLine line;
  Json row;
  try {
    row = parse_row_json(text);
  } catch (const Error& e) {
    line.rows.push_back(not_json(text, e));
    return line;
  }
  try {
    if (!row.is_object()) refuse("not_an_object", "");
    line.format = options.format ? options.format : recognise(row);
    if (!line.format) refuse("unknown_format", describe_unknown_row(row));
    if (is_true(find(row, "opt_out"))) refuse("opted_out", "opt_out is true");
    line.format->parse(row, options, line.rows);
  } catch (const Refusal& refusal) {
    line.rows.push_back(refusal.why);
  } catch (const Error& e) {
    line.rows.push_back(Rejected{"bad_field", without_values(e.what())});
  }
  return line;
}

ParsedRow parse_batch_pair(std::string_view request, std::string_view response, const RowOptions& options) {
  std::vector<ParsedRow> rows;
  try {
    const Json asked = parse_row_json(request), answered = parse_row_json(response);
    append_record(join_batch(asked, answered), asked, find(asked, "body"), options, rows);
    return std::move(rows.front());
  } catch (const Refusal& refusal) {
    return refusal.why;
  } catch (const Error& e) {
    return Rejected{"bad_field", without_values(e.what())};
  }
}

ParsedRow parse_document(std::string_view text) {
  if (!is_valid_utf8(text)) return Rejected{"invalid_utf8", ""};
  ParsedRecord parsed;
  parsed.record.text = std::string(text);
  if (is_blank(parsed.record.text)) return Rejected{"empty", ""};
  return parsed;
}

void each_text(const TrafficRecord& record, const std::function<void(const std::string&)>& take) {
  for (const std::string* text : {&record.prompt, &record.response, &record.text}) take(*text);
  for (const ChatMessage& m : record.messages)
    for (const std::string* text : {&m.content, &m.tool_calls, &m.reasoning_content}) take(*text);
}

int64_t content_characters(const TrafficRecord& record) {
  int64_t n = 0;
  each_text(record, [&n](const std::string& text) { n += count_characters(text); });
  return n;
}

}  // namespace specdec::data
