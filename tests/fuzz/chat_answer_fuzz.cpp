// Fuzzes the splitting of a chat answer into content, reasoning and tool calls. The first byte chooses the format. The
// second byte is the length of the pieces in which the text arrives. The result must not depend on this length, must
// not be much longer than the text, and must become a reply that is JSON.
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deploy/serve/answer/answer_parser.h"
#include "deploy/serve/answer/reply.h"
#include "tests/fuzz/scratch_file.h"

namespace {

using namespace specdec;
using namespace specdec::deploy;
using fuzz::require;

std::shared_ptr<const AnswerFormat> format_of(uint8_t choice) {
  auto format = std::make_shared<AnswerFormat>();
  format->tools = static_cast<ToolFormat>(choice % 5);
  if (choice & 8) format->reasoning = {"<think>", "</think>"};
  format->begins_reasoning = (choice & 24) == 24;
  format->begins_in_call = (choice & 32) && format->tools != ToolFormat::kNone;
  format->offered.parallel = !(choice & 64);
  format->offered.list = {{"add", nlohmann::ordered_json::parse(R"({"properties":{"a":{"type":"integer"},"b":7}})")}};
  return format;
}

// Requires that parser.content(), the ranges of `text` that the parser took as content, yields `content`.
void check_places(const AnswerParser& parser, std::string_view text, const std::string& content) {
  std::string found;
  size_t last = 0;
  for (const TextRange& range : parser.content()) {
    require(range.begin >= last && range.begin < range.end && range.end <= text.size());
    found += text.substr(range.begin, range.end - range.begin);
    last = range.end;
  }
  require(found == content);
}

AnswerPiece split(const std::shared_ptr<const AnswerFormat>& format, std::string_view text, size_t step) {
  AnswerParser parser(format);
  AnswerPiece whole;
  size_t decided = 0;
  for (size_t at = 0; at < text.size(); at += step) {
    whole.append(parser.push(text.substr(at, step)));
    require(parser.decided() >= decided && parser.decided() <= text.size());
    decided = parser.decided();
    require(parser.content().empty() || parser.content().back().end <= decided);
  }
  check_places(parser, text, whole.content);
  whole.append(parser.finish());
  check_places(parser, text, whole.content);
  return whole;
}

bool same(const AnswerPiece& a, const AnswerPiece& b) {
  if (a.content != b.content || a.reasoning != b.reasoning || a.calls.size() != b.calls.size()) return false;
  for (size_t i = 0; i < a.calls.size(); ++i)
    if (a.calls[i].index != i || b.calls[i].index != i || a.calls[i].name != b.calls[i].name ||
        a.calls[i].arguments != b.calls[i].arguments || a.calls[i].name.empty())
      return false;
  return true;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      "\1\3Well.<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
      "\2\1<tool_call><function=add>\n<parameter=a>\n1\n</parameter><parameter=c>x</parameter></function></tool_call>",
      "\3\2<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"add\"}",
      "\4\5[TOOL_CALLS][{\"name\": \"add\", \"arguments\": \"{}\"}, {\"name\": \"add\"}]",
      "\4\1[TOOL_CALLS]add[CALL_ID]x1[ARGS]{\"a\": 1}",
      "\x8\2<think>\nHm.\n</think>\n\nYes.",
      "\x31\1{\"arguments\": {}, \"name\": \"add\"}"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto format = format_of(data[0]);
  const AnswerPiece whole = split(format, text, text.size() + 1);
  require(same(whole, split(format, text, 1)));
  require(same(whole, split(format, text, 1 + data[1] % 16)));
  // The bound is generous: an XML value may double in length when it is written as JSON, or grow sixfold by escapes.
  require(whole.content.size() + whole.reasoning.size() <= text.size());
  require(whole.bytes() <= 200 * text.size() + 8);
  if (format->tools == ToolFormat::kNone) require(whole.calls.empty());
  if (!format->offered.parallel) require(whole.calls.size() <= 1);
  ReplyFrame frame;
  frame.id = "chatcmpl-1";
  Answer answer;
  answer.text = whole;
  answer.result = ChoiceResult{FinishReason::kStop, 2, {}, {1}};
  const Json reply = Json::parse(full_reply(frame, {answer}), nullptr, false);
  require(reply.is_object());
  const Json& message = reply.at("choices").at(0).at("message");
  require(message.contains("tool_calls") == !whole.calls.empty());
  return 0;
}
