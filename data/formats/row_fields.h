// Functions that all formats of traffic logs share: they refuse rows and read messages, answers, times and sampling
// options.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/schema/traffic_record.h"
#include "data/formats/blank.h"
#include "data/formats/row_time.h"

namespace specdec::data {

struct Rejected {
  std::string reason;  // a code, which is a key of the counts in index.json
  std::string detail;  // where in the row the problem is: names of keys, never values
};

// The exception that refuses a row, or one record in it. The functions below and the parsers of the formats throw it;
// parse_line and parse_batch_pair catch it. "Refuses bad_field" below means: throws a Refusal with the reason
// bad_field.
struct Refusal {
  Rejected why;
};
[[noreturn]] void refuse(const char* reason, const std::string& detail);

// Return null if the key is missing, its value is null, or `object` is not an object.
const Json* find(const Json& object, std::string_view key);
const Json* find_any(const Json& object, std::initializer_list<std::string_view> keys);
// Looks up "a.b.c" as one key; if it is missing, as the key c inside b inside a.
const Json* find_path(const Json& object, std::string_view path);
const Json* find_object(const Json& object, std::string_view key);
bool has_object(const Json& object, std::string_view key);

// Returns an id as text if it is a string or a whole number, else "".
std::string id_text(const Json* value);
// Returns true for true, 1, "1" and "true" in upper or lower case, because tables have no booleans.
bool is_true(const Json* value);
// Returns the string at `key`, "" if the key is absent. Refuses values that are not strings: bad_field.
std::string string_field(const Json& row, const char* key);

// If the string `value` contains a JSON object or array, returns that object or array, because exporters write JSON
// inside strings. Otherwise returns `value` itself.
Json unpacked(const Json& value);

// Reads {role, content: string | [{type: "text", text}] } or ShareGPT's {from, value}; roles may have other names
// (human, gpt, …). Of an assistant's message it also reads:
// * tool_calls in OpenAI's shape, with their arguments as JSON if they are valid JSON;
// * the thought (reasoning_content, reasoning or thinking);
// * whether the log excludes the message from training (weight: 0, trainable: false).
// Refuses bad_field (also if a message has no content and is not the assistant's), unsupported_content (images, …),
// unsupported_tool_calls (other shapes).
ChatMessage read_message(const Json& message, const std::string& where);
void append_messages(const Json& list, const std::string& where, std::vector<ChatMessage>& out);
// Reads content that is a string or an array of parts. Null gives "".
std::string read_content(const Json* content, const std::string& where);
// Reads the content of a message with this role. Refuses bad_field if the message has no content and is not the
// assistant's, because a template would render an empty turn that nobody wrote.
std::string read_content_of(const std::string& role, const Json* content, const std::string& where);
std::string canonical_role(const std::string& role, const std::string& where);
// Returns the tools that a request offers, in OpenAI's shape; "" for none. Refuses unsupported_tool_calls for other
// shapes (also the older `functions`), for text that is not JSON, and above the limits of parse_ordered_json.
std::string read_tools(const Json& request);
// Returns the variables that a request gives the chat template, as JSON text; "" for none. Refuses bad_field.
std::string read_template_kwargs(const Json& request);

// Reads the answer as gateways log it: a string, a message, a list of messages, a completion {choices: [{message |
// text}]}, or a response {output: [{type: "message", content}]}. Sets record.finish_reason if the answer says why it
// ended. Refuses bad_field, no_answer if the message is not the assistant's, and what read_message refuses.
ChatMessage read_answer(const Json& answer, const std::string& where, TrafficRecord& record);
// Reads an answer that must be text; refuses tool calls and thoughts.
std::string read_text_answer(const Json& answer, const std::string& where, TrafficRecord& record);
// Returns why an answer ended (TrafficRecord::finish_reason), or "" if `object` does not say so. `object` is a
// completion, a message, a response, or the row around them, as OpenAI, Anthropic, vLLM and others write them.
std::string read_finish_reason(const Json& object);
// Converts an engine's or gateway's word, such as "max_tokens", to TrafficRecord::finish_reason; "" for "".
std::string canonical_finish_reason(std::string word);

// Reads a request body in OpenAI's or Anthropic's shape (messages, prompt, input; system, instructions) into messages
// or prompt.
void read_request(const Json& request, TrafficRecord& record);
// Reads the parameters that gateways log beside the messages of a request: null, an object, or an object as JSON text.
// Copies the sampling options into `record`. Adds the tools and the template's variables to a request without them.
void read_parameters(const Json* packed, Json& request, TrafficRecord& record);
// Reads the request and the answer of an exchange into `record`. A missing model name is taken from the answer, else
// from the request. A missing time is taken from the answer. Missing sampling options are taken from the request.
void read_exchange(const Json& request, const Json& answer, TrafficRecord& record);

// Drops the messages of a chat after its last assistant message. Refuses no_answer if there is none.
void finish_chat(TrafficRecord& record);
// Calls finish_chat for a chat; otherwise refuses a blank response (no_answer).
void finish_exchange(TrafficRecord& record);

// Returns the sampling options in `object`, or nothing if there are none. Values outside specdec's ranges count as
// absent, for example top_k -1, which other servers use for "off". `prefix` comes before each key, for example
// "gen_ai.request." in "gen_ai.request.temperature".
std::optional<SamplingOptions> read_sampling(const Json& object, const std::string& prefix = "");

}  // namespace specdec::data
