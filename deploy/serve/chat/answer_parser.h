// Splits the text of a chat answer into content, thoughts and function calls while it is generated.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/chat/tool_format.h"

namespace specdec::deploy {

// A piece of a call. The first piece of a call has its name; the pieces of `arguments` are JSON text together.
struct CallPiece {
  size_t index = 0;  // of the call in the answer
  std::string name;  // "" in later pieces
  std::string arguments;
};

struct AnswerPiece {
  std::string content, reasoning;
  std::vector<CallPiece> calls;  // ascending by index; one piece per call

  void add_call(CallPiece piece);        // joins pieces of the same call
  void append(const AnswerPiece& next);  // appends what follows in the answer
  size_t bytes() const;
};

// What the parser has to know about a request.
struct AnswerFormat {
  ToolFormat tools = ToolFormat::kNone;
  ReasoningMarkers reasoning;
  bool begins_reasoning = false;  // the prompt ends with reasoning.begin
  bool begins_in_call = false;    // the prompt ends with forced_prefix(tools), and the answer is JSON
  OfferedTools offered;

  bool any() const { return tools != ToolFormat::kNone || !reasoning.begin.empty(); }
};

// Returns whether the prompt's text ends with the marker that begins a thought, white space aside.
bool ends_with_marker(std::string_view prompt, const std::string& marker);

// Reads the text byte by byte, so the result does not depend on how it was cut into pushes. Text that only looks like
// a call stays content: a call counts from the moment when its name and the beginning of its arguments are known. From
// then on its arguments are passed on as the model writes them, valid JSON or not. New lines next to a marker of
// thoughts and white space before a call belong to the markers. Time is linear in the text.
class AnswerParser {
 public:
  explicit AnswerParser(std::shared_ptr<const AnswerFormat> format);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  AnswerPiece push(std::string_view text);
  AnswerPiece finish();  // returns what was held back, at the end of the answer

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace specdec::deploy
