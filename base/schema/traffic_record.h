// One request of production traffic in canonical form. `serve --record` writes it, `data ingest` reads and keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/run_options.h"

namespace specdec {

struct ChatMessage {
  std::string role;     // system | developer | user | assistant | tool
  std::string content;  // text only
  // The tool calls as JSON text, which keeps the model's order of keys: [{"id", "type", "function": {"name",
  // "arguments"}}], "" = none.
  std::string tool_calls{};            // in an assistant's message
  std::string tool_call_id{}, name{};  // in a tool's answer; "" = none
  std::string reasoning_content{};     // in an assistant's message: the reasoning before the content; "" = none
  // In an assistant's message: true if the log excludes it from training. The model still reads it as part of the chat.
  bool unlearnt = false;
};

// Returns the arguments of a tool call as the chat template gets them, {} if the text is blank. Returns nothing if the
// text is not JSON: a model may write invalid JSON, and a call may have been cut off. Throws Error(kData) for JSON that
// cannot be passed on unchanged: a duplicate key, a lone surrogate, a number too large for a double, or JSON over the
// limits.
std::optional<nlohmann::ordered_json> tool_arguments(const std::string& text, JsonLimits limits = {});

struct TrafficRecord {
  static constexpr int kVersion = 1;  // schema "specdec.traffic/1"
  std::string id;                     // unique within a file; made from the content if the log has none
  std::string conversation;           // unit of the train/holdout split and of intervals; the id if the log has none
  int64_t time = 0;                   // unix seconds, 0 = unknown
  std::string domain;                 // tag, "" = none
  // Exactly one of these three is given: messages (a chat; its last assistant message is the answer), prompt +
  // response, or text.
  std::vector<ChatMessage> messages;
  std::string tools;  // only with messages: the tools offered to the model, a JSON array as text, "" = none
  // Only with messages: the variables that the request gave the chat template, a JSON object as text, "" = none.
  std::string template_kwargs;
  std::string prompt, response;
  // token_ids: the tokens of the response, or of a chat's last message, as the writer generated them, including the
  // token that ended the answer. prompt_token_ids: the tokens of the prompt as the writer read them; only in a record
  // of prompt + response that has token_ids (a chat's prompt is tokenised from its messages). Empty = not known.
  std::vector<int32_t> prompt_token_ids, token_ids;
  std::string text;
  std::optional<SamplingOptions> sampling;
  std::string writer;  // who wrote the answers: model id or fingerprint, "" = unknown
  // Why the answer ended: "stop" (the model ended it itself, with or without a call), "length", "stop_string" (a stop
  // string or a stop token of the request), "content_filter" or "other"; "" = unknown.
  std::string finish_reason;

  // Returns whether something other than the model ended the answer, so that the model never wrote an end of its turn.
  bool answer_was_cut() const { return !finish_reason.empty() && finish_reason != "stop"; }
  void validate(const std::string& where) const;  // throws Error(kData)
};
Json to_json(const TrafficRecord& record);
TrafficRecord traffic_record_from_json(const Json& object, const std::string& where);

}  // namespace specdec
