#include "data/formats/gateway_formats.h"

namespace specdec::data {

namespace {

constexpr int64_t kHttpOk = 200;

void require_status(const Json* status, const std::string& where) {
  if (!status) return;
  const std::string text = id_text(status);
  if (text != std::to_string(kHttpOk))
    refuse("failed_request", where + (text.size() <= 3 ? ": status " + text : ": a status other than 200"));
}

const Json& body_of(const Json* half, const char* where) {
  const Json* body = half ? find(*half, "body") : nullptr;
  if (!body) refuse("bad_field", std::string(where) + ".body: missing");
  return *body;
}

}  // namespace

bool is_batch(const Json& row) {
  return find(row, "custom_id") && (has_object(row, "body") || has_object(row, "response") || has_object(row, "error"));
}

void parse_batch(const Json& row, const RowOptions&, std::vector<ParsedRow>& out) {
  const std::string id = id_text(find(row, "custom_id"));
  if (id.empty()) refuse("bad_field", "custom_id: expected a string");
  const bool is_request = has_object(row, "body");
  if (!is_request) {
    if (has_object(row, "error")) refuse("failed_request", "error");
    if (!has_object(row, "response")) refuse("bad_field", "response: missing");
    require_status(find(*find(row, "response"), "status_code"), "response");
  }
  out.push_back(BatchHalf{id, is_request});
}

ParsedRecord join_batch(const Json& request, const Json& response) {
  ParsedRecord parsed;
  parsed.record.id = id_text(find(response, "custom_id"));
  const Json& body = body_of(&request, "request");
  read_exchange(body, body_of(find(response, "response"), "response"), parsed.record);
  parsed.tenant = id_text(find(body, "user"));
  return parsed;
}

bool is_litellm(const Json& row) {
  return find(row, "call_type") && find_any(row, {"model_parameters", "model_group", "startTime", "litellm_call_id"}) &&
         find_any(row, {"messages", "response", "status"});
}

void parse_litellm(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const std::string call = string_field(row, "call_type");
  if (call.find("completion") == std::string::npos && call.find("responses") == std::string::npos &&
      call != "anthropic_messages")
    refuse("other_event", "call_type: no completion");
  if (string_field(row, "status") == "failure") refuse("failed_request", "status: failure");
  ParsedRecord parsed;
  TrafficRecord& record = parsed.record;
  record.id = id_text(find(row, "id"));
  record.conversation = id_text(find_any(row, {"session_id", "trace_id"}));
  record.time = read_time(find(row, "startTime"));
  record.writer = id_text(find_any(row, {"model_group", "model"}));
  const Json* messages = find(row, "messages");
  const Json* answer = find(row, "response");
  if (!messages) refuse("bad_field", "messages: missing (LiteLLM writes none with turn_off_message_logging)");
  if (!answer) refuse("no_answer", "response");
  const bool text_call = call.find("text_completion") != std::string::npos;
  const Json read = unpacked(*messages);
  Json request = read.is_object() ? read
                                  : Json::object({{read.is_string() && text_call ? "prompt"
                                                   : read.is_string()            ? "input"
                                                                                 : "messages",
                                                   read}});
  read_parameters(find(row, "model_parameters"), request, record);
  read_exchange(request, unpacked(*answer), record);
  const Json* metadata = find_object(row, "metadata");
  if (metadata) parsed.tenant = id_text(find_any(*metadata, {"user_api_key_team_id", "user_api_key_org_id"}));
  if (parsed.tenant.empty()) parsed.tenant = id_text(find(row, "end_user"));
  append_record(std::move(parsed), row, metadata, options, out);
}

bool is_helicone(const Json& row) {
  if (find(row, "request_body") && (find(row, "response_body") || find(row, "response_status"))) return true;
  const Json *request = find_object(row, "request"), *response = find_object(row, "response");
  return request && response && find(*request, "body") && find(*response, "body") && !find(*request, "url") &&
         !find(row, "ai_model");
}

void parse_helicone(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const Json none = Json::object();
  const Json *request = find_object(row, "request"), *response = find_object(row, "response");
  const Json& q = request ? *request : none;
  const Json& r = response ? *response : none;
  require_status(find(row, "response_status") ? find(row, "response_status") : find(r, "status"), "response");
  const Json* asked = find(row, "request_body") ? find(row, "request_body") : find(q, "body");
  const Json* answered = find(row, "response_body") ? find(row, "response_body") : find(r, "body");
  if (!asked) refuse("bad_field", "request_body: missing (export with --include-body)");
  if (!answered) refuse("no_answer", "response_body");
  ParsedRecord parsed;
  TrafficRecord& record = parsed.record;
  record.id = id_text(find(row, "request_id") ? find(row, "request_id") : find(q, "id"));
  record.time = read_time(find(row, "request_created_at") ? find(row, "request_created_at") : find(q, "created_at"));
  const Json* properties =
      find_object(row, "request_properties") ? find_object(row, "request_properties") : find_object(q, "properties");
  if (properties) record.conversation = id_text(find_any(*properties, {"Helicone-Session-Id", "helicone-session-id"}));
  parsed.tenant = id_text(find(row, "request_user_id") ? find(row, "request_user_id") : find(q, "user_id"));
  read_exchange(unpacked(*asked), unpacked(*answered), record);
  append_record(std::move(parsed), row, properties, options, out);
}

bool is_portkey(const Json& row) {
  if (find_any(row, {"ai_model", "ai_org", "portkey_trace_id"}) && find(row, "request")) return true;
  const Json *request = find_object(row, "request"), *response = find_object(row, "response");
  return request && response && find(*request, "url") && find(*request, "body") && find(*response, "body");
}

void parse_portkey(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  if (const Json* ok = find(row, "is_success"); ok && !is_true(ok)) refuse("failed_request", "is_success");
  require_status(find(row, "response_status_code"), "response");
  const Json* asked = find(row, "request");
  const Json* answered = find(row, "response");
  if (!asked) refuse("bad_field", "request: missing");
  if (!answered) refuse("no_answer", "response");
  Json request = unpacked(*asked), response = unpacked(*answered);
  require_status(find(response, "status"), "response");
  // In Portkey's log object, request and response are objects that contain the bodies. In Portkey's export, request and
  // response are the bodies themselves.
  if (const Json* body = find(request, "body")) request = unpacked(Json(*body));
  if (const Json* body = find(response, "body")) response = unpacked(Json(*body));
  ParsedRecord parsed;
  TrafficRecord& record = parsed.record;
  record.id = id_text(find(row, "id"));
  record.conversation = id_text(find_any(row, {"trace_id", "portkey_trace_id"}));
  record.time = read_time(find_any(row, {"created_at", "time_of_generation"}));
  const Json metadata = find(row, "metadata") ? unpacked(*find(row, "metadata")) : Json();
  if (record.conversation.empty()) record.conversation = id_text(find_any(metadata, {"traceId", "trace_id"}));
  parsed.tenant = id_text(find_any(metadata, {"_user", "user_id", "user", "organization"}));
  read_exchange(request, response, record);
  append_record(std::move(parsed), row, &metadata, options, out);
}

bool is_exchange(const Json& row) {
  const Json *asked = find(row, "request"), *answered = find(row, "response");
  if (!asked || !answered) return false;
  if (asked->is_object()) return find_any(*asked, {"messages", "prompt", "input"});
  return asked->is_string() && find_any(unpacked(*asked), {"messages", "prompt", "input"});
}

void parse_exchange(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const Json *asked = find(row, "request"), *answered = find(row, "response");
  if (!asked) refuse("bad_field", "request: missing");
  if (!answered) refuse("no_answer", "response");
  const Json request = unpacked(*asked), response = unpacked(*answered);
  if (find(response, "error")) refuse("failed_request", "response.error");
  ParsedRecord parsed = read_metadata(row);
  read_exchange(request, response, parsed.record);
  if (parsed.tenant.empty()) parsed.tenant = id_text(find(request, "user"));
  append_record(std::move(parsed), row, &request, options, out);
}

bool is_sglang(const Json& row) {
  return find(row, "request_parameters") &&
         find_any(row, {"prompt_tokens", "completion_tokens", "e2e_latency", "finish_reason", "id"});
}

void parse_sglang(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out) {
  const Json* parameters = find(row, "request_parameters");
  const Json request = parameters ? unpacked(*parameters) : Json();
  if (!request.is_object()) refuse("bad_field", "request_parameters: expected a JSON object");
  const Json* wrapped = find_object(row, "out");
  const Json* answer = wrapped ? find(*wrapped, "text") : find_any(row, {"text", "output_text", "response"});
  if (!answer) refuse("no_answer", "SGLang's metrics file holds no answers");
  ParsedRecord parsed;
  TrafficRecord& record = parsed.record;
  record.id = id_text(find(row, "id") ? find(row, "id") : find(request, "rid"));
  record.conversation = id_text(find(request, "session_id"));
  record.time = read_time(find_any(row, {"request_received_ts", "received_ts", "timestamp"}));
  record.writer = id_text(find_any(row, {"model", "served_model_name"}));
  if (const Json* sampling = find_object(request, "sampling_params")) record.sampling = read_sampling(*sampling);
  const Json* meta = wrapped ? find_object(*wrapped, "meta_info") : nullptr;
  record.finish_reason = read_finish_reason(meta ? *meta : row);
  if (find(request, "messages")) {
    read_exchange(request, *answer, record);
  } else {
    const Json* prompt = find(request, "text");
    if (!prompt || !prompt->is_string())
      refuse("unsupported_content", "request_parameters.text: no single prompt as text");
    record.prompt = prompt->get<std::string>();
    record.response = read_text_answer(*answer, "text", record);
    finish_exchange(record);
  }
  parsed.tenant = id_text(find(request, "user"));
  append_record(std::move(parsed), row, &request, options, out);
}

}  // namespace specdec::data
