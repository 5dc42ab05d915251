#include "deploy/serve/request/chat_request.h"

#include <algorithm>
#include <set>

#include "deploy/serve/request/request_fields.h"

namespace specdec::deploy {

namespace {

constexpr char kNameBytes[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/";
constexpr size_t kMaxNameBytes = 128;
const std::string kNameRule = "a name of 1 to " + std::to_string(kMaxNameBytes) + " letters, digits, _ - . : or /";

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.find_first_not_of(kNameBytes) == std::string::npos;
}

const Json* member(const Json& object, const char* key) {
  return object.is_object() ? find_field(object, key) : nullptr;
}

// Returns whether a string or key in the value contains NUL. Such text is never passed to tokenizers and templates.
template <class J>
bool has_nul(const J& value) {
  const auto nul = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  if (value.is_string()) return nul(value.template get_ref<const std::string&>());
  if (!value.is_structured()) return false;
  if (value.is_object())
    for (const auto& member : value.items())
      if (nul(member.key())) return true;
  return std::any_of(value.begin(), value.end(), [](const J& item) { return has_nul(item); });
}

constexpr char kNoNul[] = "text without NUL characters";

// Refuses NUL in any member of the object. The error names the member only if it is in `known`, because unknown names
// may be long.
void require_no_nul(const OrderedJson& object, const std::string& param, const std::set<std::string>& known = {}) {
  for (const auto& member : object.items())
    if (has_nul(OrderedJson(member.key())) || has_nul(member.value()))
      reject(known.contains(member.key()) ? param + "." + member.key() : param, kNoNul);
}

std::string message_content(const Json& message, const std::string& param) {
  const Json* content = find_field(message, "content");
  if (!content) reject(param + ".content", "a string or text parts");
  if (content->is_string()) return read_text(*content, param + ".content");
  if (!content->is_array()) reject(param + ".content", "a string or text parts");
  std::string joined;
  for (const Json& part : *content) {
    const Json* type = member(part, "type");
    const Json* piece = member(part, "text");
    if (!type || *type != "text" || !piece)
      reject(param + ".content", "parts of type 'text': this server takes no images, audio, video or files");
    joined += read_text(*piece, param + ".content");
  }
  return joined;
}

// Reads the arguments of a call in an earlier answer. Text that is not valid JSON, for example because max_tokens cut
// it off, becomes {}. Otherwise most templates would fail in every later request of the conversation. JSON that cannot
// be represented exactly is refused.
OrderedJson call_arguments(const std::string& text, const std::string& param) {
  std::optional<OrderedJson> given;
  try {
    given = tool_arguments(text);
  } catch (const Error&) {  // the error's message would quote the request
    reject(param,
           "JSON without a key twice, a lone surrogate or a number past a double, of at most 1 MiB, 4096 keys in "
           "an object and 64 levels");
  }
  if (has_nul(given.value_or(text))) reject(param, kNoNul);
  if (given && given->is_string()) reject(param, "an object as JSON text, and not a string as JSON text");
  return given.value_or(OrderedJson::object());
}

// Reads the calls of an earlier answer into the form that chat templates expect.
std::string tool_calls(const Json& calls, const std::string& param, const ServeLimits& limits) {
  if (!calls.is_array() || calls.size() > limits.tools)
    reject(param, "an array of at most " + std::to_string(limits.tools) + " calls");
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = param + "[" + std::to_string(i) + "]";
    const Json* type = member(calls[i], "type");
    const Json* function = member(calls[i], "function");
    const Json* name = function ? member(*function, "name") : nullptr;
    const Json* arguments = function ? member(*function, "arguments") : nullptr;
    if (type && *type != "function") reject(at + ".type", "function");
    if (!name || !name->is_string() || !is_tool_name(name->get_ref<const std::string&>()))
      reject(at + ".function.name", kNameRule);
    if (arguments && !arguments->is_string()) reject(at + ".function.arguments", "the arguments as JSON text");
    OrderedJson call = OrderedJson::object();
    if (const Json* id = member(calls[i], "id")) call["id"] = read_text(*id, at + ".id");
    call["type"] = "function";
    call["function"] = {
        {"name", name->get<std::string>()},
        {"arguments", call_arguments(arguments ? arguments->get<std::string>() : "{}", at + ".function.arguments")}};
    list.push_back(std::move(call));
  }
  return list.empty() ? "" : list.dump();
}

ChatMessage read_message(const Json& message, const std::string& param, const ServeLimits& limits) {
  if (!message.is_object()) reject(param, "an object with role and content");
  const Json* role = find_field(message, "role");
  bool known = false;
  for (const char* name : {"system", "developer", "user", "assistant", "tool"}) known |= role && *role == name;
  if (!known) reject(param + ".role", "system, developer, user, assistant or tool");
  ChatMessage read;
  read.role = role->get<std::string>();
  const bool assistant = read.role == "assistant";
  for (const char* key : {"function_call", "audio"})
    if (find_field(message, key)) refuse(param + "." + key);
  if (const Json* calls = find_field(message, "tool_calls")) {
    if (!assistant) reject(param + ".tool_calls", "calls in messages of the assistant only");
    read.tool_calls = tool_calls(*calls, param + ".tool_calls", limits);
  }
  if (const Json* thoughts = find_field(message, "reasoning_content"); thoughts && assistant)
    read.reasoning_content = read_text(*thoughts, param + ".reasoning_content");
  if (read.role == "tool") {
    for (const auto& [key, value] : {std::pair("tool_call_id", &read.tool_call_id), std::pair("name", &read.name)})
      if (const Json* text = find_field(message, key)) *value = read_text(*text, param + "." + key);
  }
  // The content of an assistant or tool message may be empty, which clients write as null or omit.
  const bool may_be_empty = assistant || read.role == "tool";
  if (!may_be_empty || find_field(message, "content")) read.content = message_content(message, param);
  return read;
}

void read_tools(std::string_view body, const ServeLimits& limits, OfferedTools& out) {
  const OrderedJson list = ordered_member(body, "tools");
  if (!list.is_array() || list.size() > limits.tools)
    reject("tools", "an array of at most " + std::to_string(limits.tools) + " functions");
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = "tools[" + std::to_string(i) + "]";
    const OrderedJson& tool = list[i];
    if (!tool.is_object() || tool.value("type", OrderedJson()) != "function") reject(at + ".type", "function");
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object())
      reject(at + ".function", "an object with name and parameters");
    const OrderedJson name = function->value("name", OrderedJson());
    if (!name.is_string() || !is_tool_name(name.get<std::string>())) reject(at + ".function.name", kNameRule);
    if (!names.insert(name.get<std::string>()).second) reject(at + ".function.name", "names that differ");
    require_no_nul(*function, at + ".function", {"description", "parameters"});
    require_no_nul(tool, at);
    OrderedJson parameters = function->value("parameters", OrderedJson());
    if (parameters.is_null())
      parameters = {{"type", "object"}, {"properties", OrderedJson::object()}, {"additionalProperties", false}};
    if (!parameters.is_object()) reject(at + ".function.parameters", "a JSON schema");
    out.list.push_back({name.get<std::string>(), std::move(parameters)});
  }
  if (!list.empty()) out.text = list.dump();
  if (out.text.size() > limits.tool_bytes)
    reject("tools", "at most " + std::to_string(limits.tool_bytes) + " bytes, all functions together");
  out.choice = list.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
}

void read_tool_choice(const Json& fields, OfferedTools& out) {
  const Json* choice = find_field(fields, "tool_choice");
  if (!choice || *choice == "auto") return;
  if (*choice == "none") {
    out.choice = ToolChoice::kNone;
    return;
  }
  const Json* type = member(*choice, "type");
  const Json* function = member(*choice, "function");
  const Json* name = function ? member(*function, "name") : nullptr;
  const bool named = type && *type == "function" && name && name->is_string();
  if (!named && *choice != "required")
    reject("tool_choice", "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}");
  if (out.list.empty()) reject("tool_choice", "tools with it");
  out.choice = named ? ToolChoice::kNamed : ToolChoice::kRequired;
  if (!named) return;
  out.named = name->get<std::string>();
  if (std::none_of(out.list.begin(), out.list.end(), [&](const OfferedTool& t) { return t.name == out.named; }))
    reject("tool_choice.function.name", "the name of one of the tools");
}

// Requires that the schema of each tool that a forced call may use describes an object, because clients parse the
// arguments of a call as an object.
void require_objects(OfferedTools& out) {
  for (OfferedTool& tool : out.list) {
    if (!out.named.empty() && tool.name != out.named) continue;
    if (OrderedJson& type = tool.parameters["type"]; type.is_null())
      type = "object";
    else if (type != "object")
      reject("tools", "parameters of type object, because a call is forced");
  }
}

Json read_template_variables(const Json& fields, const ServeLimits& limits) {
  const Json* variables = find_field(fields, "chat_template_kwargs");
  if (!variables) return Json::object();
  const std::string expected = "an object of at most " + std::to_string(limits.template_bytes) + " bytes";
  if (!variables->is_object() || variables->dump().size() > limits.template_bytes)
    reject("chat_template_kwargs", expected);
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"})
    if (variables->contains(name))
      reject("chat_template_kwargs", std::string("no '") + name + "', which the server sets");
  if (has_nul(*variables)) reject("chat_template_kwargs", kNoNul);
  return *variables;
}

}  // namespace

ChatFields read_chat_fields(std::string_view body, const Json& fields, const ServeLimits& limits) {
  ChatFields out;
  const Json* list = find_field(fields, "messages");
  if (!list || !list->is_array() || list->empty() || list->size() > limits.messages)
    reject("messages", "1 to " + std::to_string(limits.messages) + " messages");
  for (size_t i = 0; i < list->size(); ++i)
    out.messages.push_back(read_message((*list)[i], "messages[" + std::to_string(i) + "]", limits));
  if (find_field(fields, "tools")) read_tools(body, limits, out.tools);
  read_tool_choice(fields, out.tools);
  if (out.tools.forced()) require_objects(out.tools);
  out.tools.parallel = read_boolean(fields, "parallel_tool_calls", "parallel_tool_calls", true);
  out.template_variables = read_template_variables(fields, limits);
  return out;
}

}  // namespace specdec::deploy
