#include "base/schema/traffic_record.h"

#include <algorithm>
#include <set>

#include "base/json_text.h"

namespace specdec {

namespace {

constexpr int kMaxToolDepth = 64;
constexpr const char* kFinishReasons[] = {"stop", "length", "stop_string", "content_filter", "other"};

Json to_json(const SamplingOptions& s) {
  return {{"temperature", s.temperature}, {"top_k", s.top_k}, {"top_p", s.top_p}, {"min_p", s.min_p}};
}

SamplingOptions sampling_from_json(const Json& object, const std::string& where) {
  const SamplingOptions fallback;
  SamplingOptions s;
  s.temperature = json_double(object, "temperature", {.low = 0, .high = 10, .fallback = fallback.temperature}, where,
                              ErrorKind::kData);
  s.top_k =
      json_int(object, "top_k", {.low = 0, .high = INT64_MAX, .fallback = fallback.top_k}, where, ErrorKind::kData);
  s.top_p = json_double(object, "top_p", {.low = 0, .high = 1, .fallback = fallback.top_p}, where, ErrorKind::kData);
  s.min_p = json_double(object, "min_p", {.low = 0, .high = 1, .fallback = fallback.min_p}, where, ErrorKind::kData);
  return s;
}

std::vector<int32_t> ids_from_json(const Json& object, const char* key, const std::string& where) {
  constexpr size_t kMaxIds = size_t{1} << 24;
  std::vector<int32_t> ids;
  if (!object.contains(key)) return ids;
  for (const Json& id : json_array(object, key, kMaxIds, where, ErrorKind::kData)) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      throw Error(ErrorKind::kData, where + ": " + key + ": expected integers from 0 to 2147483647");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

std::optional<nlohmann::ordered_json> tool_arguments(const std::string& text, JsonLimits limits) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return nlohmann::ordered_json::object();
  if (!is_json_text(text)) return std::nullopt;
  return parse_ordered_json(text, "arguments", ErrorKind::kData, limits);
}

void TrafficRecord::validate(const std::string& where) const {
  const auto refuse = [&](const std::string& text) { throw Error(ErrorKind::kData, where + ": " + text); };
  static const std::set<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (id.empty()) refuse("id: missing");
  if (conversation.empty()) refuse("conversation: missing");
  if (time < 0) refuse("time: expected unix seconds >= 0, found " + std::to_string(time));
  const int forms = !messages.empty() + (!prompt.empty() || !response.empty()) + !text.empty();
  if (forms != 1)
    refuse("expected exactly one of messages, prompt + response and text, found " + std::to_string(forms));
  const bool chat = !messages.empty();
  if (prompt_token_ids.empty() != (chat || token_ids.empty()) || (!token_ids.empty() && !text.empty()))
    refuse("token_ids: expected beside prompt_token_ids, prompt and response, or beside messages");
  if (chat && !token_ids.empty() && messages.back().role != "assistant")
    refuse("token_ids: expected an assistant's message at the end of messages");
  for (size_t i = 0; i < messages.size(); ++i)
    if (!kRoles.count(messages[i].role))
      refuse("messages[" + std::to_string(i) + "].role: expected system, developer, user, assistant or tool, found '" +
             messages[i].role.substr(0, 40) + "'");
  const auto is_list = [&](const std::string& text, const std::string& key) {
    if (text.empty()) return;
    Json list;
    try {
      list = parse_json(text, key, ErrorKind::kData, {text.size(), kMaxToolDepth});
    } catch (const Error&) {  // its message would quote the record
    }
    if (!list.is_array() || list.empty()) refuse(key + ": expected a JSON array with items, as text");
  };
  is_list(tools, "tools");
  if (!tools.empty() && messages.empty()) refuse("tools: expected messages beside them");
  for (const ChatMessage& m : messages) {
    is_list(m.tool_calls, "tool_calls");
    if (!m.tool_calls.empty() && m.role != "assistant") refuse("tool_calls: expected in an assistant's message only");
  }
  if (!template_kwargs.empty()) {
    Json kwargs;
    try {
      kwargs =
          parse_json(template_kwargs, "template_kwargs", ErrorKind::kData, {template_kwargs.size(), kMaxToolDepth});
    } catch (const Error&) {  // its message would quote the record
    }
    if (!kwargs.is_object()) refuse("template_kwargs: expected a JSON object, as text");
    if (messages.empty()) refuse("template_kwargs: expected messages beside them");
  }
  if (!finish_reason.empty() &&
      std::find(std::begin(kFinishReasons), std::end(kFinishReasons), finish_reason) == std::end(kFinishReasons))
    refuse("finish_reason: expected stop, length, stop_string, content_filter or other, found '" +
           finish_reason.substr(0, 40) + "'");
  if (!sampling) return;
  try {
    specdec::validate(*sampling);
  } catch (const Error& e) {
    refuse(std::string("sampling: ") + e.what());
  }
}

Json to_json(const TrafficRecord& record) {
  Json root = {{"schema", "specdec.traffic/" + std::to_string(TrafficRecord::kVersion)},
               {"id", record.id},
               {"conversation", record.conversation},
               {"time", record.time},
               {"domain", record.domain},
               {"writer", record.writer}};
  if (!record.messages.empty()) {
    Json& list = root["messages"] = Json::array();
    for (const ChatMessage& m : record.messages) {
      list.push_back({{"role", m.role}, {"content", m.content}});
      for (const auto& [key, text] :
           {std::pair("tool_calls", &m.tool_calls), std::pair("tool_call_id", &m.tool_call_id),
            std::pair("name", &m.name), std::pair("reasoning_content", &m.reasoning_content)})
        if (!text->empty()) list.back()[key] = *text;
      if (m.unlearnt) list.back()["weight"] = 0;
    }
    if (!record.token_ids.empty()) root["token_ids"] = record.token_ids;
    if (!record.tools.empty()) root["tools"] = record.tools;
    if (!record.template_kwargs.empty()) root["template_kwargs"] = record.template_kwargs;
  } else if (!record.text.empty()) {
    root["text"] = record.text;
  } else {
    root["prompt"] = record.prompt;
    root["response"] = record.response;
    if (!record.token_ids.empty()) {
      root["prompt_token_ids"] = record.prompt_token_ids;
      root["token_ids"] = record.token_ids;
    }
  }
  if (record.sampling) root["sampling"] = to_json(*record.sampling);
  if (!record.finish_reason.empty()) root["finish_reason"] = record.finish_reason;
  return root;
}

TrafficRecord traffic_record_from_json(const Json& object, const std::string& where) {
  require_schema(object, "traffic", TrafficRecord::kVersion, where);
  TrafficRecord r;
  r.id = json_string(object, "id", where, ErrorKind::kData);
  r.conversation = json_string(object, "conversation", r.id, where, ErrorKind::kData);
  if (r.conversation.empty()) r.conversation = r.id;
  r.time = json_int(object, "time", {.low = 0, .high = INT64_MAX, .fallback = 0}, where, ErrorKind::kData);
  r.domain = json_string(object, "domain", "", where, ErrorKind::kData);
  r.writer = json_string(object, "writer", "", where, ErrorKind::kData);
  r.prompt = json_string(object, "prompt", "", where, ErrorKind::kData);
  r.response = json_string(object, "response", "", where, ErrorKind::kData);
  r.prompt_token_ids = ids_from_json(object, "prompt_token_ids", where);
  r.token_ids = ids_from_json(object, "token_ids", where);
  r.text = json_string(object, "text", "", where, ErrorKind::kData);
  r.tools = json_string(object, "tools", "", where, ErrorKind::kData);
  r.template_kwargs = json_string(object, "template_kwargs", "", where, ErrorKind::kData);
  r.finish_reason = json_string(object, "finish_reason", "", where, ErrorKind::kData);
  if (object.contains("messages")) {
    for (const Json& m : json_array(object, "messages", 65536, where, ErrorKind::kData)) {
      const std::string at = where + ": messages[" + std::to_string(r.messages.size()) + "]";
      r.messages.push_back(
          {json_string(m, "role", at, ErrorKind::kData), json_string(m, "content", at, ErrorKind::kData),
           json_string(m, "tool_calls", "", at, ErrorKind::kData),
           json_string(m, "tool_call_id", "", at, ErrorKind::kData), json_string(m, "name", "", at, ErrorKind::kData),
           json_string(m, "reasoning_content", "", at, ErrorKind::kData),
           json_int(m, "weight", {.low = 0, .high = 1, .fallback = 1}, at, ErrorKind::kData) == 0});
    }
  }
  if (object.contains("sampling"))
    r.sampling = sampling_from_json(json_object(object, "sampling", 64, where, ErrorKind::kData), where + ": sampling");
  r.validate(where);
  return r;
}

}  // namespace specdec
