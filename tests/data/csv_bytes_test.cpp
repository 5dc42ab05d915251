#include "data/sources/csv_bytes.h"

#include <sys/resource.h>

#include "base/philox.h"
#include "base/sha256.h"
#include "data/sources/record_reader.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

std::string lines_of(const fs::path& file, size_t step = 7) {
  const auto bytes = open_bytes(file.string());
  std::string all, block(step, '\0');
  for (size_t n; (n = bytes->read(block)) > 0;) all.append(block, 0, n);
  EXPECT_EQ(bytes->finish_sha256(), sha256_file(file));
  return all;
}

TEST(CsvBytes, RecordsBecomeObjects) {
  const Scratch s;
  const auto lines = [&](const std::string& text) { return lines_of(s.write("a.csv", text)); };
  const std::string two = "{\"a\":\"1\",\"b\":\"x\"}\n{\"a\":null,\"b\":\"y\"}\n";
  EXPECT_EQ(lines("a,b\n1,x\n,y\n"), two);
  EXPECT_EQ(lines("\xEF\xBB\xBF"
                  "a,b\r\n\r\n1,x\r\n\"\",\"y\""),
            two);
  EXPECT_EQ(lines("\"a\",\"b\"\n1,\"x\"\n,y"), two);
  EXPECT_EQ(lines("\"a,\"\"1\",b\n\"two\r\nlines, \"\"quoted\"\"\t\\é\",\n"),
            "{\"a,\\\"1\":\"two\\u000d\\u000alines, \\\"quoted\\\"\\u0009\\\\é\",\"b\":null}\n");
  EXPECT_EQ(lines("text\nonly\n\nthis\n"), "{\"text\":\"only\"}\n{\"text\":\"this\"}\n");
  for (const char* empty : {"", "\xEF\xBB\xBF", "a,b\n", "a,b"}) EXPECT_EQ(lines(empty), "") << empty;
}

TEST(CsvBytes, WhatIsNoCsvIsAnErrorThatNamesTheRow) {
  const Scratch s;
  const auto refusal = [&](const std::string& text) -> std::string {
    try {
      lines_of(s.write("a.csv", text));
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData);
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal("a,b\n1,2\n1\n").find("a.csv: row 2: 1 fields, expected the 2 of the header"), std::string::npos);
  EXPECT_NE(refusal("a,b\n1,2,3\n").find("row 1: more fields"), std::string::npos);
  EXPECT_NE(refusal("a,b\n1,2,\n").find("row 1: more fields"), std::string::npos);
  EXPECT_NE(refusal("a,b\n1,\"2").find("row 1: it ends inside"), std::string::npos);
  EXPECT_NE(refusal("a,b\n1,\"2\"x\n").find("row 1: text after"), std::string::npos);
  EXPECT_NE(refusal("a,b\n1,2\"\n").find("row 1: a quote"), std::string::npos);
  EXPECT_NE(refusal("a,b\r1,2\n").find("header: a carriage return"), std::string::npos);
  EXPECT_NE(refusal("a,a\n").find("header: two columns"), std::string::npos);
  EXPECT_NE(refusal(std::string(70'000, 'a')).find("header: a header of more than"), std::string::npos);
}

TEST(CsvBytes, GiveTheRecordsOfTheSameRowsAsJson) {
  const Scratch scratch;
  for (const char* name : {"langfuse/observations_v2", "chat/fine-tuning", "prompt/response"}) {
    const std::vector<Json> records = ingested(fixtures() / (std::string(name) + ".jsonl"), scratch);
    EXPECT_EQ(records.size(), 4u);
    EXPECT_EQ(ingested(fixtures() / (std::string(name) + ".csv"), scratch), records) << name;
  }
}

// Fields that were written as RFC 4180 requires are read back unchanged, wherever a block ends.
TEST(CsvBytes, ComesBackAsWritten) {
  const Scratch s;
  PhiloxStream random(7, 0);
  for (int round = 0; round < 12; ++round) {
    std::string csv = "k0,k1,k2\n", expected;
    for (int r = 0; r < 8000; ++r) {  // enough rows for three blocks
      Json row = Json::object();
      for (int f = 0; f < 3; ++f) {
        std::string value, quoted;
        for (uint64_t n = random.below(6); n > 0; --n) value += "a,\"\n\r\\ \t"[random.below(8)];
        for (const char c : value) quoted += c == '"' ? "\"\"" : std::string(1, c);
        csv += "\"" + quoted + (f < 2 ? "\"," : "\"\n");
        row["k" + std::to_string(f)] = value.empty() ? Json() : Json(value);
      }
      expected += row.dump() + "\n";
    }
    ASSERT_GT(csv.size(), size_t{2 * 65536});
    std::string found;
    std::istringstream in(lines_of(s.write("a.csv", csv), 1 + random.below(300)));
    for (std::string line; std::getline(in, line);) found += Json::parse(line).dump() + "\n";
    ASSERT_EQ(found, expected);
  }
}

TEST(CsvBytes, ALongNameBeforeManyShortRowsTakesNoMemory) {
  const Scratch s;
  constexpr int kRows = 4'000;
  std::string csv = std::string(60'000, 'n') + "\n";
  for (int r = 0; r < kRows; ++r) csv += "1\n";
  const auto bytes = open_bytes(s.write("a.csv", csv).string());
  const auto peak_kib = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
  };
  const long before = peak_kib();
  std::string block(1 << 16, '\0');
  size_t lines = 0, all = 0;
  for (size_t n; (n = bytes->read(block)) > 0; all += n)
    lines += static_cast<size_t>(std::count(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(n), '\n'));
  EXPECT_EQ(lines, static_cast<size_t>(kRows));
  EXPECT_EQ(all, kRows * (60'000 + std::string("{\"\":\"1\"}\n").size()));
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

}  // namespace
}  // namespace specdec::data
