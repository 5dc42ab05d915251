// Fuzzes one traffic row of any format through the row parser and the redaction; the first byte chooses the options. An
// accepted row must be a valid record that survives being written and read again; a rejected row must have a reason.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "data/formats/row_parser.h"
#include "data/redact/redact.h"

namespace {

using namespace specdec;
using namespace specdec::data;

void require(bool ok) {
  if (!ok) std::abort();
}

// If the first byte modulo 32 has one of these values, the row is read through a field map, which names the keys that
// hold the prompt, the answer and so on.
constexpr size_t kMappedChat = 30, kMappedExchange = 31;
constexpr const char* kExchangeMap =
    "prompt=question,answer=log.reply,system=rules,model=by,domain=log.team,time=log.at,conversation=user,"
    "tenant=by,temperature=log.heat";

void check_map(const std::string& text) {
  try {
    require(parse_field_map(text).empty() == text.empty());
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kUsage);
  }
}

void check(const ParsedRow& row) {
  if (const auto* why = std::get_if<Rejected>(&row)) {
    require(!why->reason.empty());
    return;
  }
  if (const auto* half = std::get_if<BatchHalf>(&row)) {
    require(!half->custom_id.empty());
    return;
  }
  TrafficRecord record = std::get<ParsedRecord>(row).record;
  require(content_characters(record) > 0 && record.time >= 0);
  RedactionCounts counts;
  static const IdKey key("fuzz");
  redact_record(record, key, counts);
  for (const std::string* text : {&record.id, &record.conversation, &record.prompt, &record.response, &record.text})
    require(is_valid_utf8(*text));
  for (const ChatMessage& m : record.messages) require(is_valid_utf8(m.content));
  if (record.id.empty()) record.id = "i";
  if (record.conversation.empty()) record.conversation = record.id;
  record.validate("row");
  const Json written = to_json(record);
  require(to_json(traffic_record_from_json(written, "row")) == written);
  parse_line(canonical_json(written), {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  RowOptions options;
  const size_t format = bytes[0] % 32;  // 0 (in seeds) or beyond the list of formats: the parser detects the format
  options.format = format >= 1 && format <= traffic_formats().size() ? &traffic_formats()[format - 1] : nullptr;
  if (format == kMappedChat || format == kMappedExchange) {
    options.format = &mapped_format();
    options.map = parse_field_map(format == kMappedChat ? "messages=log.turns" : kExchangeMap);
  }
  options.instructions_as_chat = bytes[0] & 32;
  options.domain_field = bytes[0] & 64 ? "metadata.team" : "";
  const ParsedLine line = parse_line(text, options);
  require(!line.rows.empty());
  for (const ParsedRow& row : line.rows) check(row);
  if (bytes[0] & 128) {  // also as half of an OpenAI batch (request, reply) and as a document
    check(parse_batch_pair(
        text, R"({"custom_id":"a","response":{"body":{"choices":[{"message":{"role":"assistant","content":"a"}}]}}})",
        options));
    check(parse_batch_pair(R"({"custom_id":"a","body":{"messages":[{"role":"user","content":"q"}]}})", text, options));
    check(parse_document(text));
  }
  parse_time(text);
  check_map(std::string(text));
  return 0;
}
