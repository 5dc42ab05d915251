#include "data/sources/parquet_bytes.h"

#include <sys/wait.h>

#include <cerrno>

#include "base/philox.h"
#include "base/sha256.h"
#include "data/sources/record_reader.h"
#include "tests/data/toy.h"
#include "tests/source_folder.h"

namespace specdec::data {
namespace {

constexpr int kDamagedFiles = 200;

std::vector<std::string> rows_of(const fs::path& file) {
  RecordReader reader(file.string(), {});
  std::vector<std::string> rows;
  for (RawRecord r; reader.next(r);) {
    rows.emplace_back(r.text);
    EXPECT_EQ(r.number, static_cast<int64_t>(rows.size()));
  }
  EXPECT_EQ(reader.finish_sha256(), sha256_file(file));
  EXPECT_EQ(reader.stored_done(), reader.stored_size());
  return rows;
}

TEST(ParquetBytes, EveryTypeAsJson) {
  const std::vector<std::string> rows = rows_of(fixtures() / "types.parquet");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0],
            R"({"bool":true,"i8":-8,"i64":-9223372036854775808,"u8":200,"u64":18446744073709551615,"f16":0.5,)"
            R"("f32":0.7,"f64":0.1,"nan":null,)"
            R"("text":"é \"quoted\"\n\u0000🙂","bytes":"plain","raw":"/wA=","fixed":"abc",)"
            R"("date":"2026-01-01T00:00:00Z","ms":"2026-01-01T12:30:15.123Z",)"
            R"("us":"2026-01-01T12:30:15.123456Z","ns":1767270615123456000,"time":"01:02:03.004","decimal":"-1234.50",)"
            R"("list":[[1,null],[],[2]],)"
            R"("struct":{"a":{"b.c":"deep"}},"map":{"k":1,"l":null},"ids":{"7":"seven"},"nothing":null,"enum":"one"})");
  const Json nulls = Json::parse(rows[1]);
  EXPECT_EQ(nulls.size(), 25u);
  for (const auto& [name, value] : nulls.items()) EXPECT_TRUE(value.is_null()) << name;
}

TEST(ParquetBytes, GiveTheRecordsOfTheSameRowsAsJson) {
  const Scratch scratch;
  int tables = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fixtures())) {
    if (entry.path().extension() != ".parquet" || entry.path().stem() == "types") continue;
    fs::path same = entry.path();
    if (!fs::exists(same.replace_extension(".jsonl"))) same.replace_extension(".json");
    const std::vector<Json> records = ingested(same, scratch);
    EXPECT_EQ(records.size(), 4u) << same;
    EXPECT_EQ(ingested(entry.path(), scratch), records) << entry.path();
    ++tables;
  }
  EXPECT_EQ(tables, 14);  // one table per format, and one with structs of different keys
}

std::string refusal(const fs::path& file) {
  try {
    rows_of(file);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kData) << e.what();
    EXPECT_NE(std::string(e.what()).find(file.string()), std::string::npos) << e.what();
    return e.what();
  }
  return "accepted";
}

TEST(ParquetBytes, WhatCannotBeReadIsAnErrorThatSaysWhy) {
  const Scratch s;
  const std::string good = slurp(fixtures() / "chat/fine-tuning.parquet");
  EXPECT_NE(refusal(s.write("cut.parquet", good.substr(0, good.size() - 30))).find("damaged or unsupported Parquet"),
            std::string::npos);
  EXPECT_NE(refusal(s.write("head", good.substr(0, 7))).find("damaged or unsupported Parquet"), std::string::npos);
  EXPECT_NE(refusal(s.write("secret", "PARE" + good.substr(4, good.size() - 8) + "PARE")).find("encrypt"),
            std::string::npos);
  EXPECT_NE(refusal(s.write("text.parquet", "{\"text\":\"x\"}\n")).find("PAR1"), std::string::npos);
  // The only page of this 40 kB file decompresses to 1.2 GB.
  EXPECT_NE(refusal(fs::path(source_folder()) / "tests/data/hostile/page.parquet").find("1024 MiB"), std::string::npos);
}

TEST(ParquetBytes, NoChildIsLeft) {
  {
    RecordReader reader((fixtures() / "chat/fine-tuning.parquet").string(), {});
    RawRecord record;
    EXPECT_TRUE(reader.next(record));
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(ParquetBytes, DamagedFilesAreReadOrRefused) {
  const Scratch s;
  std::vector<std::string> files;
  for (const char* name :
       {"types.parquet", "alpaca/alpaca_data.parquet", "chat/fine-tuning.parquet", "text/with-metadata.parquet",
        "prompt/conversational.parquet", "langfuse/observations_v2.parquet"})
    files.push_back(slurp(fixtures() / name));
  PhiloxStream random(2026, 1);
  int read = 0, refused = 0;
  for (int i = 0; i < kDamagedFiles; ++i) {
    std::string bytes = files[random.below(files.size())];
    for (uint64_t n = 1 + random.below(4); n > 0; --n) {
      // Half of the changes are anywhere in the file, the other half in the second half of the file, which has the
      // footer with all offsets.
      const size_t at =
          random.below(2) ? random.below(bytes.size()) : bytes.size() - 1 - random.below(bytes.size() / 2);
      switch (random.below(4)) {
        case 0:
          bytes[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
          break;
        case 2:
          bytes.replace(at, std::min<size_t>(5, bytes.size() - at),
                        std::string("\xff\xff\xff\xff\x0f").substr(0, std::min<size_t>(5, bytes.size() - at)));
          break;
        default:
          bytes.insert(at, bytes.substr(random.below(bytes.size()), random.below(8)));
      }
    }
    bytes.replace(0, 4, "PAR1");
    const fs::path file = s.write("mutated", bytes);
    try {
      RecordReader reader(file.string(),
                          {.container = {}, .may_be_documents = true, .separator = "", .max_record_bytes = 1 << 20});
      for (RawRecord r; reader.next(r);)
        ASSERT_TRUE(r.too_long || (r.text.front() == '{' && r.text.back() == '}')) << i;
      ++read;
    } catch (const Error& e) {
      ASSERT_EQ(e.kind(), ErrorKind::kData) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(read, kDamagedFiles / 20);
  EXPECT_GT(refused, kDamagedFiles / 20);
}

}  // namespace
}  // namespace specdec::data
