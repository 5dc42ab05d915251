// Parses one row of a traffic log in any known format into canonical TrafficRecords, or into the reason why not. Pure
// functions without a tokenizer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/schema/traffic_record.h"
#include "data/row_fields.h"

namespace specdec::data {

struct ParsedRecord {
  TrafficRecord record;
  std::string tenant;  // whose traffic it is according to the log; "" = none
};
// One of the two rows of a batch item. The record also needs the other row, from another line and usually another file.
struct BatchHalf {
  std::string custom_id;
  bool is_request = false;
};
using ParsedRow = std::variant<ParsedRecord, Rejected, BatchHalf>;

struct RowOptions;

// A format is a row of this table: its name, how it is recognised, and how its rows are read.
struct TrafficFormat {
  const char* name;  // --format NAME, and the name in the counts
  const char* keys;  // the keys by which it is recognised, for people to read
  bool (*matches)(const Json& row);
  // Appends the records of the row (most rows hold one; a line of OTLP holds many), or throws Refusal.
  void (*parse)(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);
};
// Returns the formats in the order in which they are tried, the more specific ones first.
std::span<const TrafficFormat> traffic_formats();
// Returns null for "auto". Throws Error(kUsage) that lists the names.
const TrafficFormat* parse_format_name(const std::string& name);
std::string format_names();  // "auto | traffic | …"

struct RowOptions {
  const TrafficFormat* format = nullptr;  // null = the format that the row is recognised as
  std::string domain_field;               // "" = "domain"; "a.b" looks inside a
  std::string tenant_field;               // "" = the format's own field
  bool instructions_as_chat = false;      // instruction/input/output rows become a user and an assistant message
};

struct ParsedLine {
  const TrafficFormat* format = nullptr;  // null: not recognised
  std::vector<ParsedRow> rows;            // one, or several if a line holds several records
};

// Parses one JSON object. The format is recognised row by row, so files may be mixed. opt_out: true is respected in
// every format. A chat ends at its last assistant message. A record's id is "" if the log has none. Reasons:
// invalid_utf8, invalid_json, not_an_object, unknown_format, bad_field, empty, no_answer, unsupported_content,
// unsupported_tool_calls, opted_out, failed_request (the log says so), other_event (a row that is not a model's
// answer).
ParsedLine parse_line(std::string_view json, const RowOptions& options);

// Parses the request and the response of one custom_id; parse_line returned a BatchHalf for each.
ParsedRow parse_batch_pair(std::string_view request, std::string_view response, const RowOptions& options);

// Parses a document of plain text as if it were {"text": …}. Reasons: invalid_utf8, empty.
ParsedRow parse_document(std::string_view text);

// Returns the number of Unicode characters of the content: all messages, or prompt and response, or text.
int64_t content_characters(const TrafficRecord& record);

// Used by the formats: checks the record and adds the fields that every format may have, the tag of --domain-field and
// the tenant of --tenant-field. They are looked up in `row` and then in `inner` (attributes, metadata; may be null).
void append_record(ParsedRecord&& parsed, const Json& row, const Json* inner, const RowOptions& options,
                   std::vector<ParsedRow>& out);

}  // namespace specdec::data
