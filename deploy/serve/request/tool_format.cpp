#include "deploy/serve/request/tool_format.h"

#include <iterator>

#include "base/error.h"

namespace specdec::deploy {

namespace {

using OrderedJson = nlohmann::ordered_json;

struct FormatName {
  ToolFormat format;
  const char* name;
};
constexpr FormatName kNames[] = {{ToolFormat::kNone, "none"},
                                 {ToolFormat::kHermes, "hermes"},
                                 {ToolFormat::kQwen3Coder, "qwen3_coder"},
                                 {ToolFormat::kLlama3Json, "llama3_json"},
                                 {ToolFormat::kMistral, "mistral"}};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Adapts the references ($ref) in a schema that was the root and is now part of a larger schema, at the JSON pointer
// `place`. Values of const, enum, default and examples are data and stay unchanged. `keys_are_names`: the object's keys
// are names of properties or definitions, so a key such as "enum" has no special meaning.
void move_references(OrderedJson& schema, const std::string& place, bool keys_are_names = false) {
  if (schema.is_array())
    for (OrderedJson& item : schema) move_references(item, place);
  if (!schema.is_object()) return;
  for (auto& [key, value] : schema.items()) {
    if (keys_are_names) {
      move_references(value, place);
      continue;
    }
    if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;
    const bool reference = key == "$ref" && value.is_string() && value.get_ref<const std::string&>().rfind('#', 0) == 0;
    if (reference)
      value = place + value.get<std::string>().substr(1);
    else
      move_references(value, place,
                      key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions");
  }
}

// Returns the schema of one call. `place` is a JSON pointer to the schema of the tool's parameters within the whole
// schema, for example "#/$defs/0".
OrderedJson call_schema(const OfferedTool& tool, const char* arguments_key, const std::string& place) {
  return {{"type", "object"},
          {"properties", {{"name", {{"const", tool.name}}}, {arguments_key, {{"$ref", place}}}}},
          {"required", {"name", arguments_key}},
          {"additionalProperties", false}};
}

}  // namespace

const char* to_string(ToolFormat format) {
  for (const FormatName& known : kNames)
    if (known.format == format) return known.name;
  return "";
}

ToolFormat parse_tool_format(const std::string& name) {
  std::string names;
  for (const FormatName& known : kNames) {
    if (name == known.name) return known.format;
    names.append(names.empty() ? "" : ", ").append(known.name);
  }
  throw Error(ErrorKind::kUsage, "tool-call-parser: expected auto, " + names + ", found '" + name + "'");
}

ToolFormat tool_format_of(std::string_view chat_template) {
  if (!contains(chat_template, "tools")) return ToolFormat::kNone;
  if (contains(chat_template, "[TOOL_CALLS]")) return ToolFormat::kMistral;
  if (contains(chat_template, "<function=")) return ToolFormat::kQwen3Coder;
  if (contains(chat_template, "<tool_call>")) return ToolFormat::kHermes;
  if (contains(chat_template, "<|python_tag|>") || contains(chat_template, "\"parameters\""))
    return ToolFormat::kLlama3Json;
  return ToolFormat::kNone;
}

ReasoningMarkers reasoning_markers_of(std::string_view chat_template) {
  if (contains(chat_template, "</think>")) return {"<think>", "</think>"};
  if (contains(chat_template, "[/THINK]")) return {"[THINK]", "[/THINK]"};
  return {};
}

std::vector<std::string> marker_tokens(ToolFormat format, const ReasoningMarkers& reasoning) {
  std::vector<std::string> markers;
  if (!reasoning.begin.empty()) markers = {reasoning.begin, reasoning.end};
  if (format == ToolFormat::kHermes || format == ToolFormat::kQwen3Coder)
    markers.insert(markers.end(), {"<tool_call>", "</tool_call>"});
  if (format == ToolFormat::kLlama3Json) markers.push_back("<|python_tag|>");
  if (format == ToolFormat::kMistral) markers.insert(markers.end(), {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});
  return markers;
}

// Qwen3-Coder's own syntax is not JSON, so a forced call of such a model uses the Hermes syntax.
std::string forced_prefix(ToolFormat format) {
  if (format == ToolFormat::kHermes || format == ToolFormat::kQwen3Coder) return "<tool_call>\n";
  return format == ToolFormat::kMistral ? "[TOOL_CALLS]" : "";
}

std::string forced_schema(ToolFormat format, const OfferedTools& tools) {
  const char* const arguments = format == ToolFormat::kLlama3Json ? "parameters" : "arguments";
  OrderedJson definitions = OrderedJson::object(), calls = OrderedJson::array();
  for (const OfferedTool& tool : tools.list) {
    if (tools.choice == ToolChoice::kNamed && tool.name != tools.named) continue;
    const std::string number = std::to_string(calls.size()), place = "#/$defs/" + number;
    OrderedJson parameters = tool.parameters;
    // The arguments must be an object, even if the schema does not say so.
    const bool says = parameters.contains("type") || parameters.contains("$ref") || parameters.contains("anyOf") ||
                      parameters.contains("oneOf") || parameters.contains("allOf");
    if (!says) parameters["type"] = "object";
    move_references(parameters, place);
    definitions[number] = std::move(parameters);
    calls.push_back(call_schema(tool, arguments, place));
  }
  OrderedJson call = calls.size() == 1 ? calls[0] : OrderedJson{{"anyOf", calls}};
  OrderedJson schema = std::move(call);
  if (format == ToolFormat::kMistral) {
    schema = {{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}};
    if (tools.choice == ToolChoice::kNamed || !tools.parallel) schema["maxItems"] = 1;
  }
  schema["$defs"] = std::move(definitions);
  return schema.dump();
}

}  // namespace specdec::deploy
