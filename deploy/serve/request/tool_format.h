// Knows in which ways models write calls and thoughts into their text, and recognises a model's way from its chat
// template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/request/chat_request.h"

namespace specdec::deploy {

// The names are those of vLLM's --tool-call-parser.
enum class ToolFormat {
  kNone,        // no calls are looked for
  kHermes,      // <tool_call>{"name": …, "arguments": {…}}</tool_call> (Hermes 2 and later, Qwen2.5, Qwen3)
  kQwen3Coder,  // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
  kLlama3Json,  // {"name": …, "parameters": {…}} as the whole answer, <|python_tag|> may stand before it
  kMistral,     // [TOOL_CALLS][{"name": …, "arguments": {…}}, …] or, from v11 on, [TOOL_CALLS]name[ARGS]{…}
};
const char* to_string(ToolFormat format);
// Throws Error(kUsage) for an unknown name. "auto" is not a format.
ToolFormat parse_tool_format(const std::string& name);

// Returns the format that a chat template teaches, kNone if it has no calls or writes them in another way.
ToolFormat tool_format_of(std::string_view chat_template);

// The texts around a model's thoughts.
struct ReasoningMarkers {
  std::string begin, end;  // "" = the model's thoughts are not told apart
};
ReasoningMarkers reasoning_markers_of(std::string_view chat_template);

// Returns the marker texts of a format that a tokenizer may hold as special tokens. Their text belongs to the answer,
// although special tokens are left out of text otherwise.
std::vector<std::string> marker_tokens(ToolFormat format, const ReasoningMarkers& reasoning);

// Returns the text that the answer to a request with a forced call begins with. It is put at the end of the prompt, so
// that the answer itself can be plain JSON.
std::string forced_prefix(ToolFormat format);

// Returns a JSON schema for the text of a forced call: the named function's call, or a call of any of the tools. A
// $ref within the parameters of a tool refers to these parameters.
std::string forced_schema(ToolFormat format, const OfferedTools& tools);

}  // namespace specdec::deploy
