// One row of a traffic log in any known format → canonical TrafficRecord, or the reason why not. Pure; no tokenizer.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "base/schema/traffic_record.h"

namespace specdec::data {

struct Rejected {
  std::string reason;  // a code: key of the counts in index.json
  std::string detail;  // where in the row; never content
};
using ParsedRow = std::variant<TrafficRecord, Rejected>;

enum class RowFormat { kAuto, kChat, kPrompt, kText, kTraffic };
RowFormat parse_row_format(const std::string& name);  // Throws Error(kUsage)

struct RowOptions {
  RowFormat format = RowFormat::kAuto;
  std::string domain_field;           // "" = "domain"
  bool instructions_as_chat = false;  // instruction/input/output rows become a user and an assistant message
};

// One JSON object as text. Formats (kAuto decides by the keys, row by row):
//   specdec.traffic/1   {"schema": "specdec.traffic/1", …}
//   chat                {"messages": [{role, content: string | [{type: "text", text}]}]}, ShareGPT {"conversations": [{from, value}]}
//   prompt              prompt + completion | response, instruction [+ input] + output | response
//   text                {"text": …}
// Also read, all optional: id | custom_id | request_id; conversation | conversation_id | thread_id | thread | session_id;
// time | timestamp | created | created_at (unix seconds or milliseconds, or ISO 8601); model; temperature, top_k, top_p, min_p.
// Other fields are ignored. A chat ends at its last assistant message. opt_out: true is respected.
// The record's id is "" where the row has none. Reasons: invalid_utf8, invalid_json, not_an_object, unknown_format, bad_field,
// empty, no_answer, unsupported_content, unsupported_tool_calls, opted_out.
ParsedRow parse_row(std::string_view json, const RowOptions& options);

// A document of plain text: {"text": …} without the JSON. Reasons: invalid_utf8, empty.
ParsedRow parse_document(std::string_view text);

// Unicode characters of the content: all messages, or prompt and response, or text.
int64_t content_characters(const TrafficRecord& record);

// Unix seconds of "2026-11-21[T ]12:00:00[.5][Z|+01:00]" (no zone = UTC); -1 if it is not such a time.
int64_t parse_time(std::string_view iso8601);

}  // namespace specdec::data
