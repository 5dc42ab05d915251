// Fuzzes a model's answers, names and errors in the server-sent events that specdec writes. Whatever bytes the model
// wrote, a client must get every event complete: one data line, which is JSON, and an empty line.
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "deploy/serve/answer/reply.h"
#include "tests/fuzz/scratch_file.h"

namespace {

using namespace specdec;
using namespace specdec::deploy;
using fuzz::require;

// Returns the data of a stream's events, parsed by the rules of the WHATWG HTML standard (9.2.6).
std::vector<std::string> events_of(std::string_view stream) {
  std::vector<std::string> events;
  std::string data;
  bool has_data = false;
  for (size_t i = 0; i < stream.size();) {
    const size_t end = stream.find_first_of("\r\n", i);
    require(end != stream.npos);
    const std::string_view line = stream.substr(i, end - i);
    i = end + (stream.substr(end, 2) == "\r\n" ? 2 : 1);
    if (line.empty()) {
      if (has_data) events.push_back(data);
      data.clear();
      has_data = false;
    } else {
      require(line.starts_with("data: "));
      data += (has_data ? "\n" : "") + std::string(line.substr(6));
      has_data = true;
    }
  }
  require(!has_data);
  return events;
}

bool is_utf8(const std::string& text) {
  const auto dumped = [&](Json::error_handler_t how) { return Json(text).dump(-1, ' ', false, how); };
  return dumped(Json::error_handler_t::ignore) == dumped(Json::error_handler_t::replace);
}

Json only_event(const std::string& stream) {
  const std::vector<std::string> events = events_of(stream);
  require(events.size() == 1);
  const Json json = Json::parse(events[0], nullptr, false);
  require(json.is_object());
  return json;
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {"0Hello\nworld",  "1a\r\n\r\ndata: [DONE]\r\n\r\n",        "2\xE2\x80\xA8 line and \xE2\x80\xA9 paragraph",
          "3half \xF0\x9F", std::string("4\0\x7f\"\\</script>", 14), "5event: x\nid: 1\nretry: 0\n\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  ReplyFrame frame;
  frame.endpoint = data[0] & 1 ? Endpoint::kChat : Endpoint::kCompletions;
  frame.include_usage = data[0] & 2;
  frame.include_metrics = data[0] & 4;
  frame.return_token_ids = data[0] & 8;
  frame.logprobs = data[0] & 16 ? 1 : -1;
  frame.id = "cmpl-1";
  frame.model = text.substr(0, text.size() / 2);
  Answer answer;
  answer.text.content = text;
  answer.token_ids = {1, 2};
  if (frame.logprobs >= 0)
    answer.logprobs = {{text.substr(0, 3), 1, -0.5f, {{text.substr(0, 2), -0.5f}}}, {text, 1, std::nullopt, {}}};
  answer.result = ChoiceResult{FinishReason::kStop, 2, {}, {1}};
  const Json delta = only_event(delta_event(frame, 0, answer));
  const Json& choice = delta.at("choices").at(0);
  const std::string sent =
      (frame.endpoint == Endpoint::kChat ? choice.at("delta").at("content") : choice.at("text")).get<std::string>();
  require(sent == text || !is_utf8(text));          // valid UTF-8 arrives as it was written
  const std::string first = first_event(frame, 0);  // empty unless the endpoint is chat
  require(first.empty() == (frame.endpoint == Endpoint::kCompletions));
  if (!first.empty()) only_event(first);
  only_event(finish_event(frame, 0, FinishReason::kLength, false));
  const std::string usage = usage_event(frame, {answer});
  if (!usage.empty()) only_event(usage);
  require(events_of(done_event()) == std::vector<std::string>{"[DONE]"});
  require(Json::parse(full_reply(frame, {answer}), nullptr, false).is_object());
  return 0;
}
