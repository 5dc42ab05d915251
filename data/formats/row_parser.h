// Parses one row of a traffic log in any known format into TrafficRecords, or returns why the row is refused. Pure
// functions without a tokenizer.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/schema/traffic_record.h"
#include "data/formats/field_map.h"
#include "data/formats/row_fields.h"

namespace specdec::data {

struct ParsedRecord {
  TrafficRecord record;
  std::string tenant;  // name of the tenant in the log; "" = none
};
// One of the two rows of a batch item. The record also needs the other row, from another line and usually another file.
struct BatchHalf {
  std::string custom_id;
  bool is_request = false;
};
using ParsedRow = std::variant<ParsedRecord, Rejected, BatchHalf>;

struct RowOptions;

// A format of traffic logs: its name, how a row is recognised, and how it is parsed.
struct TrafficFormat {
  const char* name;  // the value of --format, and the format's name in the counts
  const char* keys;  // the keys by which a row of the format is recognised, for --help
  bool (*matches)(const Json& row);
  // Appends the records of the row (most rows hold one; a line of OTLP holds many), or throws Refusal.
  void (*parse)(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);
};
// Returns the formats in the order in which they are tried, the more specific ones first.
std::span<const TrafficFormat> traffic_formats();
// Returns the format with this name, null for "auto". For an unknown name, throws Error(kUsage) that lists the names.
const TrafficFormat* parse_format_name(const std::string& name);
std::string format_names();  // "auto | traffic | …"
// Returns the format of rows that are read by RowOptions::map. It is not in traffic_formats() and recognises no row.
const TrafficFormat& mapped_format();

struct RowOptions {
  const TrafficFormat* format = nullptr;  // null = recognise the format of each row
  std::string domain_field;               // "" = "domain"; "a.b" = the field b inside the field a
  std::string tenant_field;               // "" = the format's own field
  // If true, rows of the format alpaca, and mapped rows with a prompt, become a user and an assistant message.
  bool instructions_as_chat = false;
  FieldMap map;  // for mapped_format() only
};

struct ParsedLine {
  const TrafficFormat* format = nullptr;  // the row's format; null = not recognised
  std::vector<ParsedRow> rows;            // one, or several if a line holds several records
};

// Parses one JSON object. The format is recognised for each row, so a file may mix formats. In every format, a row with
// opt_out: true is refused. A chat ends at its last assistant message. A record's id is "" if the log has none. Reasons
// for a refusal:
// * invalid_utf8, invalid_json, not_an_object, bad_field, empty, no_answer, unsupported_content, unsupported_tool_calls
// * unknown_format: the detail is describe_unknown_row()
// * replaced_content: a gateway logged a placeholder
// * opted_out: the row has opt_out: true
// * failed_request: the log says that the request failed
// * other_event: the row is not a model's answer
ParsedLine parse_line(std::string_view json, const RowOptions& options);

// Parses the request row and the response row of one custom_id, after parse_line has returned a BatchHalf for each.
ParsedRow parse_batch_pair(std::string_view request, std::string_view response, const RowOptions& options);

// Parses a document of plain text as if it were {"text": …}. Reasons for a refusal: invalid_utf8, empty.
ParsedRow parse_document(std::string_view text);

// Calls `take` with each text of the content: of all messages, or of prompt and response, or of `text`.
void each_text(const TrafficRecord& record, const std::function<void(const std::string&)>& take);
// Returns the number of Unicode characters of the content.
int64_t content_characters(const TrafficRecord& record);

// Reads the metadata beside the content (id, conversation, time, …) under their usual names. Used for rows that were
// not logged by a gateway.
ParsedRecord read_metadata(const Json& row);

// Checks the record, sets the domain tag (--domain-field) and the tenant (--tenant-field), and appends the record to
// `out`. The parsers of all formats call this function. It looks up both fields in `row` and then in `inner`
// (attributes or metadata; may be null).
void append_record(ParsedRecord&& parsed, const Json& row, const Json* inner, const RowOptions& options,
                   std::vector<ParsedRow>& out);

}  // namespace specdec::data
