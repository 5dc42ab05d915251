// One traffic row of any format through the row parser and the redaction; the first byte chooses the options. What is accepted
// must be a valid record that survives being written and read again; what is refused must have a reason.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/record_reader.h"
#include "data/redact.h"
#include "data/row_parser.h"

namespace {

using namespace specdec;
using namespace specdec::data;

void require(bool ok) {
  if (!ok) std::abort();
}

void check(ParsedRow row) {
  if (const auto* why = std::get_if<Rejected>(&row)) {
    require(!why->reason.empty());
    return;
  }
  TrafficRecord record = std::get<TrafficRecord>(std::move(row));
  require(content_characters(record) > 0 && record.time >= 0);
  RedactionCounts counts;
  redact_record(record, counts);
  for (const std::string* text : {&record.id, &record.conversation, &record.prompt, &record.response, &record.text}) require(is_valid_utf8(*text));
  for (const ChatMessage& m : record.messages) require(is_valid_utf8(m.content));
  if (record.id.empty()) record.id = "i";
  if (record.conversation.empty()) record.conversation = record.id;
  record.validate("row");
  const Json written = to_json(record);
  require(to_json(traffic_record_from_json(written, "row")) == written);
  parse_row(canonical_json(written), {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  RowOptions options;
  options.format = static_cast<RowFormat>(bytes[0] % 5);
  options.instructions_as_chat = bytes[0] & 8;
  options.domain_field = bytes[0] & 16 ? "team" : "";
  check(parse_row(text, options));
  check(parse_document(text));
  parse_time(text);
  return 0;
}
