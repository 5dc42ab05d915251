#include "base/schema/traffic_record.h"

#include <algorithm>
#include <set>

#include "base/json_text.h"

namespace specdec {

namespace {

constexpr int kMaxToolDepth = 64;
constexpr const char* kFinishReasons[] = {"stop", "length", "stop_string", "content_filter", "other"};

constexpr size_t kMaxIds = size_t{1} << 24, kMaxMessages = 65536;
constexpr JsonInts kTokenId{0, INT32_MAX, {}};

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
    } catch (const Error&) {  // not passed on, because its message would quote the record
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
    } catch (const Error&) {  // not passed on, because its message would quote the record
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

void visit_fields(Fields& f, SamplingOptions& s) {
  f(defaulted("temperature"), s.temperature, {0, 10});
  f(defaulted("top_k"), s.top_k, {0, INT64_MAX});
  f(defaulted("top_p"), s.top_p, {0, 1});
  f(defaulted("min_p"), s.min_p, {0, 1});
}

void visit_fields(Fields& f, ChatMessage& m) {
  f("role", m.role);
  f("content", m.content);
  f(if_any("tool_calls"), m.tool_calls);
  f(if_any("tool_call_id"), m.tool_call_id);
  f(if_any("name"), m.name);
  f(if_any("reasoning_content"), m.reasoning_content);
  std::optional<int64_t> weight;
  if (m.unlearnt) weight = 0;
  f(if_any("weight"), weight, {0, 1});
  if (f.reads()) m.unlearnt = weight == 0;
}

void visit_fields(Fields& f, TrafficRecord& r) {
  f.schema("traffic", TrafficRecord::kVersion);
  f("id", r.id);
  f(defaulted("conversation"), r.conversation);
  if (f.reads() && r.conversation.empty()) r.conversation = r.id;
  f(defaulted("time"), r.time, {0, INT64_MAX});
  f(defaulted("domain"), r.domain);
  f(defaulted("writer"), r.writer);
  // A record made of a prompt and a response has both keys, even if one of the texts is empty.
  const Presence both = r.messages.empty() && r.text.empty() ? Presence::kDefaulted : Presence::kIfAny;
  f({"prompt", "", both}, r.prompt);
  f({"response", "", both}, r.response);
  f(if_any("prompt_token_ids"), r.prompt_token_ids, kTokenId, kMaxIds);
  f(if_any("token_ids"), r.token_ids, kTokenId, kMaxIds);
  f(if_any("text"), r.text);
  f(if_any("tools"), r.tools);
  f(if_any("template_kwargs"), r.template_kwargs);
  f(if_any("finish_reason"), r.finish_reason);
  f(if_any("messages"), r.messages, {kMaxMessages, true});
  f(if_any("sampling"), r.sampling);
}

Json to_json(const TrafficRecord& record) { return json_of(record); }

TrafficRecord traffic_record_from_json(const Json& object, const std::string& where) {
  TrafficRecord r = read_fields<TrafficRecord>(object, where);
  r.validate(where);
  return r;
}

}  // namespace specdec
