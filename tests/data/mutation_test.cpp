// Parses a hundred thousand damaged rows of every format: each row is read, or refused with a reason that reveals no
// content, and none crashes the parser.
#include <set>

#include "base/philox.h"
#include "base/utf8.h"
#include "data/formats/row_parser.h"
#include "data/redact/redact.h"
#include "data/sources/record_reader.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

constexpr int kMutations = 100'000;

std::vector<std::string> fixture_rows() {
  std::vector<std::string> rows;
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fixtures()))
    if (entry.is_regular_file() && entry.path().extension() != ".py") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& f : files) {
    RecordReader reader(f.string(), {});
    for (RawRecord r; reader.next(r);) rows.emplace_back(r.text);
  }
  return rows;
}

// Replaces a value at a random place of the row by a random other value.
void swap_value(std::string& row, PhiloxStream& random) {
  static const std::vector<std::string> kValues = {"null",  "0",           "-1",          "1e308",
                                                   "true",  "\"\"",        "[]",          "{}",
                                                   "[[]]",  "\"\\u0000\"", "[{}]",        "18446744073709551616",
                                                   "\"x\"", "[null]",      "{\"role\":1}"};
  const size_t colon = row.find(':', random.below(row.size()));
  if (colon == std::string::npos) return;
  const size_t end = row.find_first_of(",}]", colon);
  row.replace(colon + 1, (end == std::string::npos ? row.size() : end) - colon - 1,
              kValues[random.below(kValues.size())]);
}

void add_key(std::string& row, PhiloxStream& random) {
  const size_t brace = row.find('{', random.below(row.size()));
  if (brace != std::string::npos)
    row.insert(brace + 1, random.below(2) ? "\"tool_calls\":[{\"id\":\"x\"}]," : "\"opt_out\":true,");
}

void mutate(std::string& row, const std::vector<std::string>& rows, PhiloxStream& random) {
  for (uint64_t n = 1 + random.below(3); n > 0 && !row.empty(); --n) {
    const size_t at = random.below(row.size());
    switch (random.below(9)) {
      case 0:
        row[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        row.resize(at);
        break;
      case 2:
        row.erase(at, 1 + random.below(20));
        break;
      case 3:
        row.insert(at, row.substr(random.below(row.size()), random.below(60)));
        break;
      case 4:
        row.insert(at, std::string(1 + random.below(80), "[{\"\\"[random.below(4)]));
        break;
      case 5: {  // appends the end of another row
        const std::string& other = rows[random.below(rows.size())];
        row = row.substr(0, at) + other.substr(random.below(other.size()));
        break;
      }
      case 6:
        add_key(row, random);
        break;
      case 7:
        row = random.below(20) ? row : "[" + row + "]";
        break;
      default:
        swap_value(row, random);
    }
  }
}

TEST(Mutations, EveryDamagedRowIsReadOrRefusedWithAReason) {
  const std::set<std::string> reasons = {"invalid_utf8",   "invalid_json",        "not_an_object",
                                         "unknown_format", "bad_field",           "empty",
                                         "no_answer",      "unsupported_content", "unsupported_tool_calls",
                                         "opted_out",      "failed_request",      "other_event"};
  const std::vector<std::string> rows = fixture_rows();
  ASSERT_GT(rows.size(), 100u);
  PhiloxStream random(2026, 0);
  std::map<std::string, int64_t> counts;
  for (int i = 0; i < kMutations; ++i) {
    std::string row = rows[random.below(rows.size())];
    mutate(row, rows, random);
    RowOptions options;
    if (random.below(4) == 0) options.format = &traffic_formats()[random.below(traffic_formats().size())];
    const ParsedLine line = parse_line(row, options);
    ASSERT_FALSE(line.rows.empty()) << row;
    for (const ParsedRow& parsed : line.rows) {
      if (const auto* why = std::get_if<Rejected>(&parsed)) {
        ++counts[why->reason];
        ASSERT_TRUE(reasons.count(why->reason)) << why->reason << ": " << row;
        for (const char* content : {"France", "Paris", "eins", "C loop", "terse"})
          ASSERT_EQ(why->detail.find(content), std::string::npos) << why->detail << ": " << row;
      } else if (const auto* record = std::get_if<ParsedRecord>(&parsed)) {
        ++counts["accepted"];
        TrafficRecord r = record->record;
        RedactionCounts redactions;
        redact_record(r, IdKey("salt"), redactions);
        if (r.id.empty()) r.id = "i";
        if (r.conversation.empty()) r.conversation = r.id;
        ASSERT_GT(content_characters(r), 0) << row;
        ASSERT_NO_THROW(r.validate("row")) << row;
        ASSERT_TRUE(is_valid_utf8(canonical_json(to_json(r)))) << row;
      } else {
        ++counts["half"];
        ASSERT_FALSE(std::get<BatchHalf>(parsed).custom_id.empty()) << row;
      }
    }
  }
  // Enough mutated rows pass the JSON parser: every reason occurs, and many rows are accepted.
  for (const std::string& reason : reasons) EXPECT_GT(counts[reason], 0) << reason;
  EXPECT_GT(counts["accepted"], kMutations / 20);
  EXPECT_GT(counts["half"], 0);
}

}  // namespace
}  // namespace specdec::data
