// One row of a traffic log in any known format → canonical TrafficRecords, or the reason why not. Pure; no tokenizer.
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
  std::string tenant;  // whose traffic it is, as the log says; "" = none
};
// One of the two rows of a batch: the record needs the other one, from another line and usually another file.
struct BatchHalf {
  std::string custom_id;
  bool is_request = false;
};
using ParsedRow = std::variant<ParsedRecord, Rejected, BatchHalf>;

struct RowOptions;

// A format is a row of this table: its name, how it is recognised, and how its rows are read.
struct TrafficFormat {
  const char* name;  // --format NAME, and the name in the counts
  const char* keys;  // by which it is recognised, for people
  bool (*matches)(const Json& row);
  // Appends what the row holds (most hold one record, a line of OTLP holds many), or throws Refusal.
  void (*parse)(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);
};
// In the order in which they are tried: the more particular ones first.
std::span<const TrafficFormat> traffic_formats();
// Null for "auto". Throws Error(kUsage) with the names there are.
const TrafficFormat* parse_format_name(const std::string& name);
std::string format_names();  // "auto | traffic | …"

struct RowOptions {
  const TrafficFormat* format = nullptr;  // null = whatever the row is recognised as
  std::string domain_field;               // "" = "domain"; "a.b" looks inside a
  std::string tenant_field;               // "" = what the format has
  bool instructions_as_chat = false;      // instruction/input/output rows become a user and an assistant message
};

struct ParsedLine {
  const TrafficFormat* format = nullptr;  // null: not recognised
  std::vector<ParsedRow> rows;            // one, or more where a line holds several records
};

// One JSON object as text. The format is found row by row, so that files may be mixed. opt_out: true is respected in
// every format. A chat ends at its last assistant message. A record's id is "" where the log has none. Reasons:
// invalid_utf8, invalid_json, not_an_object, unknown_format, bad_field, empty, no_answer, unsupported_content,
// unsupported_tool_calls, opted_out, failed_request (the log says so), other_event (a row that is no model's answer).
ParsedLine parse_line(std::string_view json, const RowOptions& options);

// The request and the response of one custom_id, each a row that parse_line took for a BatchHalf.
ParsedRow parse_batch_pair(std::string_view request, std::string_view response, const RowOptions& options);

// A document of plain text: {"text": …} without the JSON. Reasons: invalid_utf8, empty.
ParsedRow parse_document(std::string_view text);

// Unicode characters of the content: all messages, or prompt and response, or text.
int64_t content_characters(const TrafficRecord& record);

// For the formats: checks the record and adds what every format may carry: the tag of --domain-field and the tenant of
// --tenant-field, looked for in `row` and then in `inner` (attributes, metadata; may be null).
void append_record(ParsedRecord&& parsed, const Json& row, const Json* inner, const RowOptions& options,
                   std::vector<ParsedRow>& out);

}  // namespace specdec::data
