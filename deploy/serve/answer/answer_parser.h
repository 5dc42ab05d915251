// Splits the text of a chat answer into content, thoughts and function calls while it is generated.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/answer/stop.h"
#include "deploy/serve/request/tool_format.h"

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

// Finds the thoughts at the beginning of an answer, byte by byte. Only white space may precede their first marker.
class ThoughtSplitter {
 public:
  enum class Place {
    kStart,     // nothing yet shows whether the answer begins with thoughts
    kThoughts,  // in thoughts, or in their markers and the new lines after the last one
    kAfter,     // after them, or there are none
  };

  // Without markers there are no thoughts. `begun`: the first marker is the end of the prompt.
  ThoughtSplitter(const ReasoningMarkers& markers, bool begun);

  Place place() const { return place_; }
  // Takes the next byte of the answer and returns the thoughts that are now known, without markers. Must not be called
  // once place() is kAfter. The byte that turns place() into kAfter is the first one of the text after the thoughts. If
  // place() was kStart until then, there are no thoughts, and all earlier bytes belong to this text, too.
  std::string push(char c);
  std::string finish() { return end_.finish(); }  // returns the thoughts that were held back, at the end of the answer
  // Returns the number of bytes of thoughts that wait because the last marker may begin with them.
  size_t held() const { return end_.held(); }

 private:
  std::string begin_, tag_;
  StopMatcher end_;
  Place place_;
};

// A part of a text, in bytes.
struct TextRange {
  size_t begin = 0, end = 0;
};

// Reads the text byte by byte, so the result does not depend on how it was cut into pushes. Text that only looks like a
// call stays content: a call counts from the moment when its name and the beginning of its arguments are known. From
// then on its arguments are passed on as the model writes them, valid JSON or not. New lines next to a marker of
// thoughts and white space before a call or within its markers belong to the markers. White space after a call is
// dropped, too, as long as the answer has no content. Time is linear in the text.
class AnswerParser {
 public:
  explicit AnswerParser(std::shared_ptr<const AnswerFormat> format);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  AnswerPiece push(std::string_view text);
  AnswerPiece finish();  // returns what was held back, at the end of the answer

  // Returns where in the text the content so far comes from: ascending, with a gap between any two.
  const std::vector<TextRange>& content() const;
  // Returns the number of bytes from the beginning of the text of which it is known whether they are content.
  size_t decided() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace specdec::deploy
