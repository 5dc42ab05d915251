// Splits the text of a chat answer into content, reasoning ("thoughts") and function calls while it is generated.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/answer/stop.h"
#include "deploy/serve/request/tool_format.h"

namespace specdec::deploy {

// A piece of a function call. The first piece has the function's name. The `arguments` of all pieces, concatenated, are
// the JSON of the call's arguments.
struct CallPiece {
  size_t index = 0;  // position of the call in the answer
  std::string name;  // "" in all pieces but the first
  std::string arguments;
};

struct AnswerPiece {
  std::string content, reasoning;
  std::vector<CallPiece> calls;  // ascending by index; one piece per call

  void add_call(CallPiece piece);        // joins pieces of the same call
  void append(const AnswerPiece& next);  // appends the next piece of the same answer
  size_t bytes() const;
};

// What the parser needs to know about a request: the syntax of calls and thoughts, and how the prompt ends.
struct AnswerFormat {
  ToolFormat tools = ToolFormat::kNone;
  ReasoningMarkers reasoning;
  bool begins_reasoning = false;  // the prompt ends with reasoning.begin
  bool begins_in_call = false;    // the prompt ends with forced_prefix(tools), and the answer is JSON
  OfferedTools offered;

  bool any() const { return tools != ToolFormat::kNone || !reasoning.begin.empty(); }
};

// Returns whether the prompt ends with `marker`, which begins thoughts. White space is ignored.
bool ends_with_marker(std::string_view prompt, const std::string& marker);

// Finds the reasoning ("thoughts") at the beginning of an answer, byte by byte. Only white space may precede its
// opening marker.
class ThoughtSplitter {
 public:
  enum class Place {
    kStart,     // the bytes so far do not show whether the answer begins with reasoning (thoughts)
    kThoughts,  // in the thoughts, their markers, or the new lines after the closing marker
    kAfter,     // after the reasoning (thoughts), or the answer has none
  };

  // Empty markers: the answer has no thoughts. `begun`: the prompt ends with the opening marker, so the answer starts
  // inside the thoughts.
  ThoughtSplitter(const ReasoningMarkers& markers, bool begun);

  Place place() const { return place_; }
  // Takes the next byte of the answer. Returns the text that is now known to be thoughts, without markers. Must not be
  // called once place() is kAfter. The byte that makes place() kAfter is the first byte after the thoughts. If place()
  // was kStart before that byte, the answer has no thoughts, and all earlier bytes belong to the text after the
  // thoughts, too.
  std::string push(char c);
  std::string finish() { return end_.finish(); }  // at the answer's end: returns thoughts held back
  // Returns the number of bytes of thoughts that are held back because they may begin the closing marker.
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

// Splits the text byte by byte, so the result does not depend on how the text was divided into pushes.
// - A call is recognised once its name and the beginning of its arguments are read. Text that only looks like a call
//   is content.
// - The arguments of a recognised call are passed on as the model writes them, valid JSON or not.
// - New lines next to a marker of thoughts, and white space before a call or within its markers, are dropped. White
//   space after a call is dropped if the answer has no content yet.
// Time is linear in the text.
class AnswerParser {
 public:
  explicit AnswerParser(std::shared_ptr<const AnswerFormat> format);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;

  AnswerPiece push(std::string_view text);
  AnswerPiece finish();  // at the answer's end: returns the text held back

  // Returns the ranges of the text that are content so far: ascending, with a gap between any two.
  const std::vector<TextRange>& content() const;
  // Returns the number of bytes, from the start of the text, of which it is known whether they are content.
  size_t decided() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace specdec::deploy
