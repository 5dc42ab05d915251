// One request of production traffic in canonical form: what `serve --record` writes and `data ingest` reads and keeps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/run_options.h"

namespace specdec {

struct ChatMessage {
  std::string role;     // system | developer | user | assistant | tool
  std::string content;  // text only
  // JSON as text, because the order of its keys is what the model wrote: [{"id", "type", "function": {"name",
  // "arguments"}}], "" = none.
  std::string tool_calls{};            // of an assistant
  std::string tool_call_id{}, name{};  // of a tool's answer; "" = none
};

struct TrafficRecord {
  static constexpr int kVersion = 1;  // schema "specdec.traffic/1"
  std::string id;                     // unique within a file; made from the content where the log has none
  std::string conversation;           // splits and intervals are by this; = id where there is none
  int64_t time = 0;                   // unix seconds, 0 unknown
  std::string domain;                 // tag, "" = none
  // Exactly one of: messages (chat, the last one by the assistant is the answer), prompt + response, text.
  std::vector<ChatMessage> messages;
  std::string tools;  // beside messages: what the model was offered, a JSON array as text, "" = none
  std::string prompt, response;
  std::string text;
  std::optional<SamplingOptions> sampling;
  std::string writer;  // who wrote the answers: model id or fingerprint, "" unknown

  void validate(const std::string& where) const;  // throws Error(kData)
};
Json to_json(const TrafficRecord& record);
TrafficRecord traffic_record_from_json(const Json& object, const std::string& where);

}  // namespace specdec
