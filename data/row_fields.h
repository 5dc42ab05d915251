// What the formats of traffic logs have in common: how a row is refused, how messages, answers, times and sampling
// options are read.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/schema/traffic_record.h"

namespace specdec::data {

struct Rejected {
  std::string reason;  // a code: key of the counts in index.json
  std::string detail;  // where in the row; never content
};

// Thrown by the functions below and by the formats, caught in parse_line and parse_batch_pair: the row, or the record
// in it, is refused.
struct Refusal {
  Rejected why;
};
[[noreturn]] void refuse(const char* reason, const std::string& detail);

// Null counts as absent; so does everything in what is no object.
const Json* find(const Json& object, std::string_view key);
const Json* find_any(const Json& object, std::initializer_list<std::string_view> keys);
// "a.b.c": a key of that name, else the keys one inside the other.
const Json* find_path(const Json& object, std::string_view path);
const Json* find_object(const Json& object, std::string_view key);
bool has_object(const Json& object, std::string_view key);

// An id as text: strings and whole numbers; anything else counts as absent.
std::string id_text(const Json* value);
// true, 1, "true" in any case or "1"; tables have no booleans.
bool is_true(const Json* value);
// "" if absent. Refuses what is no string: bad_field.
std::string string_field(const Json& row, const char* key);
bool is_blank(std::string_view text);

// Exporters write JSON inside strings: `value` itself, or what its string holds where that is an object or an array.
Json unpacked(const Json& value);

// {role, content: string | [{type: "text", text}] } or ShareGPT's {from, value}, with the roles' other names (human,
// gpt, …). An assistant's tool_calls in OpenAI's shape are kept, with their arguments as JSON where they are. Refuses
// bad_field, unsupported_content (images, …), unsupported_tool_calls (other shapes).
ChatMessage read_message(const Json& message, const std::string& where);
void append_messages(const Json& list, const std::string& where, std::vector<ChatMessage>& out);
std::string read_content(const Json* content, const std::string& where);
std::string canonical_role(const std::string& role, const std::string& where);
// The tools that a request offers, in OpenAI's shape; "" for none and for other shapes, which no chat template renders.
// Refuses unsupported_tool_calls for text that is no JSON and for more than parse_ordered_json takes.
std::string read_tools(const Json& request);

// The answer as gateways log it: a string, a message, a list of messages, a completion {choices: [{message | text}]},
// or a response {output: [{type: "message", content}]}. Refuses bad_field and what read_message refuses.
ChatMessage read_answer(const Json& answer, const std::string& where);
// The same where only text will do: refuses tool calls.
std::string read_text_answer(const Json& answer, const std::string& where);

// A request body in OpenAI's or Anthropic's shape (messages, prompt, input; system, instructions) into messages or
// prompt.
void read_request(const Json& request, TrafficRecord& record);
// What gateways log beside the messages of a request (nothing, an object or its text): sampling, and tools, which go
// into the request that has none.
void read_parameters(const Json* packed, Json& request, TrafficRecord& record);
// Both halves of an exchange. The model's name and the time are taken from the answer, else from the request, where the
// record has none.
void read_exchange(const Json& request, const Json& answer, TrafficRecord& record);

// Ends a chat at its last assistant message. Refuses no_answer.
void finish_chat(TrafficRecord& record);
// finish_chat, or no_answer for a blank response.
void finish_exchange(TrafficRecord& record);

// Unix seconds of a number or a string of digits in seconds, milli-, micro- or nanoseconds, or of ISO 8601; 0 if it is
// no time.
int64_t read_time(const Json* value);
// Values outside our ranges (top_k -1 means off elsewhere) count as absent. `prefix` as in
// "gen_ai.request.temperature".
std::optional<SamplingOptions> read_sampling(const Json& object, const std::string& prefix = "");

// Unix seconds of "2026-11-21[T ]12:00:00[.5][Z|+01:00]" (no zone = UTC); -1 if it is not such a time.
int64_t parse_time(std::string_view iso8601);

}  // namespace specdec::data
