// Reads the fields that exist only in chat requests: messages, tools, tool_choice, parallel_tool_calls and
// chat_template_kwargs. Pure functions, which throw Rejected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/schema/traffic_record.h"
#include "deploy/serve/request/limits.h"

namespace specdec::deploy {

enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

// A function that the model may call.
struct OfferedTool {
  std::string name;
  nlohmann::ordered_json parameters;  // JSON schema of its arguments
};

struct OfferedTools {
  std::vector<OfferedTool> list;
  std::string text;  // the whole list as JSON, for the chat template; "" = none
  ToolChoice choice = ToolChoice::kNone;
  std::string named;     // kNamed: the function to call
  bool parallel = true;  // false: at most one call per answer is returned

  bool forced() const { return choice == ToolChoice::kRequired || choice == ToolChoice::kNamed; }
};

struct ChatFields {
  std::vector<ChatMessage> messages;
  OfferedTools tools;
  Json template_variables = Json::object();  // chat_template_kwargs
};

// Reads the chat fields. `body` is the text from which `fields` was parsed. Tools are read from `body`, because the
// template prints the keys of their objects in the order in which the client sent them.
ChatFields read_chat_fields(std::string_view body, const Json& fields, const ServeLimits& limits);

}  // namespace specdec::deploy
