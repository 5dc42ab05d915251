#include "data/formats/trace_formats.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace specdec::data {

namespace {

constexpr size_t kMaxIndexedMessages = 4096;

// Converts OTLP's AnyValue {"stringValue": …} to plain JSON; other values are returned unchanged.
Json plain_value(const Json& any) {
  if (!any.is_object() || any.size() != 1) return any;
  const std::string& type = any.begin().key();
  const Json& value = any.begin().value();
  if (type == "stringValue" || type == "boolValue" || type == "doubleValue" || type == "bytesValue") return value;
  if (type == "intValue") {  // 64-bit numbers are strings in OTLP JSON
    const std::string text = id_text(&value);
    return text.empty() || text.size() > 18 || text.find_first_not_of("-0123456789") != std::string::npos
               ? value
               : Json(std::strtoll(text.c_str(), nullptr, 10));
  }
  Json plain;
  if (type == "arrayValue") {
    plain = Json::array();
    if (const Json* values = find(value, "values"); values && values->is_array())
      for (const Json& v : *values) plain.push_back(plain_value(v));
    return plain;
  }
  if (type != "kvlistValue") return any;
  plain = Json::object();
  if (const Json* values = find(value, "values"); values && values->is_array())
    for (const Json& pair : *values)
      if (const std::string key = id_text(find(pair, "key")); !key.empty())
        plain[key] = pair.contains("value") ? plain_value(pair["value"]) : Json();
  return plain;
}

// Returns the attributes as a JSON object, from an object or from OTLP's key-value list.
Json attributes_of(const Json& object) {
  const Json* attributes = find(object, "attributes");
  if (!attributes) return Json::object();
  if (attributes->is_object()) return *attributes;
  return plain_value(Json::object({{"kvlistValue", Json::object({{"values", *attributes}})}}));
}

constexpr const char* kPartTypes[] = {"text",  "input_text",  "output_text", "image_url",
                                      "image", "input_image", "input_audio", "audio",
                                      "file",  "tool_result", "tool_use"};

// Returns the content of a message from an attribute. Attributes hold strings, so exporters write an array of content
// parts as JSON text. Any other JSON in the string is content that somebody wrote and stays a string.
Json attribute_content(const Json* value) {
  if (!value) return nullptr;
  Json content = unpacked(*value);
  const auto is_part = [](const Json& item) {
    const std::string type = id_text(find(item, "type"));
    return std::find(std::begin(kPartTypes), std::end(kPartTypes), type) != std::end(kPartTypes);
  };
  const bool parts = content.is_array() && !content.empty() && std::all_of(content.begin(), content.end(), is_part);
  return parts ? content : *value;
}

std::string read_attribute(const std::string& role, const Json* value, const std::string& where) {
  const Json content = attribute_content(value);
  return read_content_of(role, content.is_null() ? nullptr : &content, where);
}

// Reads {role, parts: [{type: "text", content}]} of OpenTelemetry's GenAI conventions, or a message in the usual shape.
ChatMessage read_part_message(const Json& message, const std::string& where) {
  const Json* parts = find(message, "parts");
  if (!parts) return read_message(message, where);
  if (!parts->is_array()) refuse("bad_field", where + ".parts: expected an array");
  ChatMessage read{canonical_role(id_text(find(message, "role")), where), ""};
  if (parts->empty() && read.role != "assistant") refuse("bad_field", where + ".parts: empty");
  for (const Json& part : *parts) {
    const std::string type = id_text(find(part, "type"));
    if (type == "tool_call") refuse("unsupported_tool_calls", where);
    if (const Json* thought = find(part, "content");
        type == "reasoning" && read.role == "assistant" && thought && thought->is_string()) {
      read.reasoning_content += thought->get_ref<const std::string&>();
      continue;
    }
    const Json* content =
        find_any(part, {"content", type == "tool_call_response" ? std::string_view("result") : "text", "response"});
    if ((type != "text" && type != "tool_call_response") || !content || !content->is_string())
      refuse("unsupported_content", where + ".parts: a part that is not text");
    read.content += content->get_ref<const std::string&>();
  }
  return read;
}

void append_part_messages(const Json& packed, const std::string& where, std::vector<ChatMessage>& out) {
  const Json list = unpacked(packed);
  if (list.is_string())
    return out.push_back({where.find("output") == std::string::npos ? "user" : "assistant", list.get<std::string>()});
  if (list.is_object()) return out.push_back(read_part_message(list, where));
  if (!list.is_array()) refuse("bad_field", where + ": expected an array of messages");
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(read_part_message(list[i], where + "[" + std::to_string(i) + "]"));
}

std::string system_text(const Json& packed) {
  const Json parts = unpacked(packed);
  if (parts.is_string()) return parts.get<std::string>();
  std::string text;
  if (parts.is_array())
    for (const Json& part : parts) {
      const Json* content = find_any(part, {"content", "text"});
      if (!content || !content->is_string())
        refuse("unsupported_content", "system_instructions: a part that is not text");
      text += content->get_ref<const std::string&>();
    }
  return text;
}

// Reads gen_ai.prompt.0.role, gen_ai.prompt.0.content, … as OpenLLMetry writes them.
void append_indexed(const Json& attributes, const std::string& prefix, const char* default_role,
                    std::vector<ChatMessage>& out) {
  for (size_t i = 0; i < kMaxIndexedMessages; ++i) {
    const std::string at = prefix + "." + std::to_string(i);
    const Json *role = find(attributes, at + ".role"), *content = find(attributes, at + ".content");
    if (find(attributes, at + ".tool_calls.0.name")) refuse("unsupported_tool_calls", at);
    if (!role && !content) return;
    ChatMessage read{role ? canonical_role(id_text(role), at) : default_role, ""};
    read.content = read_attribute(read.role, content, at);
    if (const Json* thought = find_any(attributes, {at + ".reasoning", at + ".reasoning_content"}))
      read.reasoning_content = id_text(thought);
    out.push_back(std::move(read));
  }
}

// Reads the messages in the events of a span: gen_ai.content.prompt and gen_ai.content.completion, and events that hold
// one message each (gen_ai.user.message, …, gen_ai.choice).
void append_events(const Json& span, std::vector<ChatMessage>& out) {
  const Json* events = find(span, "events");
  if (!events || !events->is_array()) return;
  for (const Json& event : *events) {
    const std::string name = id_text(find_any(event, {"name", "eventName"}));
    const Json attributes = attributes_of(event);
    const Json* body = find(event, "body") ? find(event, "body") : &attributes;
    if (const Json* prompt = find(attributes, "gen_ai.prompt")) append_part_messages(*prompt, "gen_ai.prompt", out);
    if (const Json* answer = find(attributes, "gen_ai.completion"))
      append_part_messages(*answer, "gen_ai.completion output", out);
    if (const Json* input = find(attributes, "gen_ai.input.messages"))
      append_part_messages(*input, "gen_ai.input.messages", out);
    if (const Json* output = find(attributes, "gen_ai.output.messages"))
      append_part_messages(*output, "gen_ai.output.messages", out);
    for (const char* role : {"system", "user", "assistant", "tool"})
      if (name == "gen_ai." + std::string(role) + ".message")
        out.push_back({role, read_attribute(role, find(*body, "content"), name)});
    if (name == "gen_ai.choice") {
      const Json message = find(*body, "message") ? unpacked(*find(*body, "message")) : *body;
      out.push_back({"assistant", message.is_string() ? message.get<std::string>()
                                                      : read_attribute("assistant", find(message, "content"), name)});
    }
  }
}

// Returns why the answer of a span ended, from the attributes that the conventions and OpenLLMetry have used for it; ""
// if there is none.
std::string span_finish_reason(const Json& attributes, const Json& span) {
  if (const Json* packed = find(attributes, "gen_ai.output.messages"))
    if (const Json list = unpacked(*packed); list.is_array() && !list.empty())
      if (std::string reason = read_finish_reason(list.back()); !reason.empty()) return reason;
  if (const Json* packed = find(attributes, "gen_ai.response.finish_reasons")) {
    const Json list = unpacked(*packed);
    return canonical_finish_reason(id_text(list.is_array() && !list.empty() ? &list.back() : &list));
  }
  if (const Json* reason = find_any(attributes, {"gen_ai.completion.0.finish_reason", "gen_ai.response.finish_reason"}))
    return canonical_finish_reason(id_text(reason));
  const Json* events = find(span, "events");
  if (!events || !events->is_array()) return "";
  for (const Json& event : *events) {
    const Json event_attributes = attributes_of(event);
    for (const Json* from : {find(event, "body"), &event_attributes})
      if (std::string reason = from ? read_finish_reason(*from) : ""; !reason.empty()) return reason;
  }
  return "";
}

void read_content_attributes(const Json& attributes, const Json& span, TrafficRecord& record) {
  auto& messages = record.messages;
  if (const Json* system = find(attributes, "gen_ai.system_instructions"))
    if (std::string text = system_text(*system); !text.empty()) messages.push_back({"system", std::move(text)});
  if (const Json* input = find(attributes, "gen_ai.input.messages"))
    append_part_messages(*input, "gen_ai.input.messages", messages);
  if (const Json* output = find(attributes, "gen_ai.output.messages"))
    append_part_messages(*output, "gen_ai.output.messages", messages);
  if (const Json* prompt = find(attributes, "gen_ai.prompt")) append_part_messages(*prompt, "gen_ai.prompt", messages);
  if (const Json* answer = find(attributes, "gen_ai.completion"))
    append_part_messages(*answer, "gen_ai.completion output", messages);
  if (messages.empty()) {
    append_indexed(attributes, "gen_ai.prompt", "user", messages);
    append_indexed(attributes, "gen_ai.completion", "assistant", messages);
  }
  if (messages.empty()) append_events(span, messages);
  if (messages.empty()) refuse("no_answer", "no content: it is written only where the instrumentation was told to");
}

void parse_span(const Json& span, const Json& resource, const RowOptions& options, std::vector<ParsedRow>& out) {
  const Json attributes = attributes_of(span);
  const std::string operation = id_text(find_any(attributes, {"gen_ai.operation.name", "llm.request.type"}));
  if (operation.empty() && !find_any(attributes, {"gen_ai.input.messages", "gen_ai.prompt", "gen_ai.prompt.0.content"}))
    refuse("other_event", "no gen_ai.operation.name");
  if (!operation.empty() && operation != "chat" && operation != "text_completion" && operation != "completion" &&
      operation != "generate_content")
    refuse("other_event", "gen_ai.operation.name: no chat or completion");
  if (find(attributes, "error.type")) refuse("failed_request", "error.type");
  ParsedRecord parsed;
  TrafficRecord& record = parsed.record;
  const Json* context = find_object(span, "context");
  const Json& ids = context ? *context : span;
  record.id = id_text(find_any(attributes, {"gen_ai.response.id"}));
  if (record.id.empty()) record.id = id_text(find_any(ids, {"spanId", "span_id"}));
  record.conversation = id_text(find_any(attributes, {"gen_ai.conversation.id", "session.id"}));
  if (record.conversation.empty()) record.conversation = id_text(find_any(ids, {"traceId", "trace_id"}));
  record.time = read_time(find_any(span, {"startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime",
                                          "timeUnixNano", "timestamp", "time"}));
  record.writer = id_text(find_any(attributes, {"gen_ai.response.model", "gen_ai.request.model"}));
  record.sampling = read_sampling(attributes, "gen_ai.request.");
  parsed.tenant = id_text(find_any(attributes, {"tenant.id", "user.id", "enduser.id"}));
  if (parsed.tenant.empty()) parsed.tenant = id_text(find(resource, "tenant.id"));
  read_content_attributes(attributes, span, record);
  if (const Json* tools = find(attributes, "gen_ai.tool.definitions")) record.tools = read_tools({{"tools", *tools}});
  if (find(attributes, "llm.request.functions.0.name")) refuse("unsupported_tool_calls", "llm.request.functions");
  record.finish_reason = span_finish_reason(attributes, span);
  if (operation == "text_completion" && record.messages.size() == 2 && record.messages[0].role == "user") {
    record.prompt = std::move(record.messages[0].content);
    record.response = std::move(record.messages[1].content);
    if (!record.tools.empty())
      refuse("unsupported_tool_calls", "gen_ai.tool.definitions: beside a prompt without roles");
    record.messages.clear();
  }
  finish_exchange(record);
  append_record(std::move(parsed), attributes, &resource, options, out);
}

// Calls f(span, attributes of its resource) for each span or log record in a line of OTLP JSON.
template <class F>
void for_each_span(const Json& row, F&& f) {
  for (const auto& [group, scope, item] :
       {std::tuple("resourceSpans", "scopeSpans", "spans"), std::tuple("resourceLogs", "scopeLogs", "logRecords")}) {
    const Json* resources = find(row, group);
    if (!resources || !resources->is_array()) continue;
    for (const Json& resource : *resources) {
      const Json attributes =
          has_object(resource, "resource") ? attributes_of(*find(resource, "resource")) : Json::object();
      const Json* scopes = find(resource, scope);
      if (!scopes || !scopes->is_array()) continue;
      for (const Json& inside : *scopes)
        if (const Json* items = find(inside, item); items && items->is_array())
          for (const Json& span : *items) f(span, attributes);
    }
  }
}

Json or_null(const Json* value) { return value ? unpacked(*value) : Json(); }

}  // namespace

bool is_langfuse(const Json& row) {
  const std::string type = id_text(find(row, "type"));
  const bool observation = type == "GENERATION" || type == "SPAN" || type == "EVENT" || type == "AGENT" ||
                           type == "TOOL" || type == "CHAIN" || type == "RETRIEVER" || type == "EVALUATOR" ||
                           type == "EMBEDDING" || type == "GUARDRAIL";
  return observation && find_any(row, {"trace_id", "traceId", "provided_model_name", "start_time", "startTime"});
}

void parse_langfuse(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  if (id_text(find(row, "type")) != "GENERATION") refuse("other_event", "type: no GENERATION");
  if (id_text(find(row, "level")) == "ERROR") refuse("failed_request", "level: ERROR");
  ParsedRecord parsed;
  TrafficRecord& record = parsed.record;
  record.id = id_text(find(row, "id"));
  record.conversation = id_text(find_any(row, {"session_id", "sessionId"}));
  if (record.conversation.empty()) record.conversation = id_text(find_any(row, {"trace_id", "traceId"}));
  record.time = read_time(find_any(row, {"start_time", "startTime"}));
  record.writer = id_text(find_any(row, {"provided_model_name", "providedModelName", "model"}));
  const Json input = or_null(find(row, "input")), output = or_null(find(row, "output"));
  if (input.is_null()) refuse("bad_field", "input: missing");
  if (output.is_null() || (output.is_string() && is_blank(output.get_ref<const std::string&>())))
    refuse("no_answer", "output");
  Json request = Json::object();
  if (input.is_object() && !find(input, "role"))
    request = input;
  else if (input.is_string())
    request["prompt"] = input;
  else if (input.is_object())
    request["messages"].push_back(input);
  else
    request["messages"] = input;
  read_parameters(find_any(row, {"model_parameters", "modelParameters"}), request, record);
  read_exchange(request, output, record);
  parsed.tenant = id_text(find_any(row, {"user_id", "userId"}));
  const Json metadata = or_null(find(row, "metadata"));
  append_record(std::move(parsed), row, &metadata, options, out);
}

bool is_otel(const Json& row) {
  if (find_any(row, {"resourceSpans", "resourceLogs"})) return true;
  const Json* attributes = find(row, "attributes");
  if (!attributes) return false;
  const auto generative = [](const std::string& key) { return key.starts_with("gen_ai.") || key.starts_with("llm."); };
  if (attributes->is_object()) {
    const auto& map = attributes->get_ref<const Json::object_t&>();
    const auto at = map.lower_bound("gen_ai.");
    return (at != map.end() && generative(at->first)) || attributes->contains("llm.request.type");
  }
  if (attributes->is_array())
    for (const Json& pair : *attributes)
      if (generative(id_text(find(pair, "key")))) return true;
  return false;
}

void parse_otel(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  if (!find_any(row, {"resourceSpans", "resourceLogs"})) {
    const Json resource = has_object(row, "resource") ? attributes_of(*find(row, "resource")) : Json::object();
    return parse_span(row, resource, options, out);
  }
  size_t spans = 0;
  for_each_span(row, [&](const Json& span, const Json& resource) {
    ++spans;
    try {
      parse_span(span, resource, options, out);
    } catch (const Refusal& refusal) {  // refuses this span only
      out.push_back(Rejected{refusal.why.reason, "span " + std::to_string(spans) + ": " + refusal.why.detail});
    }
  });
  if (spans == 0) refuse("empty", "no spans and no log records");
}

}  // namespace specdec::data
