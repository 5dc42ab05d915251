// Defines the syntaxes in which models write function calls and thoughts, and detects a model's syntax from its chat
// template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/request/chat_request.h"

namespace specdec::deploy {

// Syntaxes of function calls, named as in vLLM's --tool-call-parser.
enum class ToolFormat {
  kNone,        // function calls are not recognised
  kHermes,      // <tool_call>{"name": …, "arguments": {…}}</tool_call> (Hermes 2 and later, Qwen2.5, Qwen3)
  kQwen3Coder,  // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
  kLlama3Json,  // {"name": …, "parameters": {…}} as the whole answer, optionally after <|python_tag|>
  kMistral,     // [TOOL_CALLS][{"name": …, "arguments": {…}}, …] or, from v11 on, [TOOL_CALLS]name[ARGS]{…}
};
const char* to_string(ToolFormat format);
// Returns the format with this name. Throws Error(kUsage) for an unknown name; "auto" is unknown, too.
ToolFormat parse_tool_format(const std::string& name);

// Returns the call syntax that a chat template shows to the model; kNone if it shows none or an unknown one.
ToolFormat tool_format_of(std::string_view chat_template);

// The texts before and after a model's thoughts.
struct ReasoningMarkers {
  std::string begin, end;  // "" = thoughts are not separated from the content
};
ReasoningMarkers reasoning_markers_of(std::string_view chat_template);

// Returns the marker texts of a format that may be special tokens. Their text is part of the answer; the text of other
// special tokens is not.
std::vector<std::string> marker_tokens(ToolFormat format, const ReasoningMarkers& reasoning);

// Returns the text with which a forced call begins. It is appended to the prompt, so that the generated answer is plain
// JSON.
std::string forced_prefix(ToolFormat format);

// Returns a JSON schema for the text of a forced call: of the named function, or of any of the tools. References ($ref)
// within a tool's parameters are resolved within these parameters.
std::string forced_schema(ToolFormat format, const OfferedTools& tools);

}  // namespace specdec::deploy
