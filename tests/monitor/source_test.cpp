#include "monitor/read/source.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;
using testing::put;
using testing::Scratch;

std::string line(int64_t time, const std::string& segment = "code") {
  AcceptanceRecord record;
  record.time = time;
  record.segment = segment;
  for (int i = 0; i < 5; ++i) record.counts.add_step(3, 1, {0.9, 0.4});
  return to_line(record) + "\n";
}

struct Reader {
  std::map<std::string, FilePosition> positions;
  std::vector<int64_t> times;
  ReadFigures read(const fs::path& file) {
    const std::string identity = file_identity(file);
    return read_records(file, identity, positions[identity],
                        [this](const AcceptanceRecord& r) { times.push_back(r.time); });
  }
};

void append(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

TEST(ReadRecords, EachRecordOnce) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  put(file, line(1) + line(2));
  EXPECT_EQ(reader.read(file).records, 2);
  EXPECT_EQ(reader.read(file).records, 0);
  append(file, line(3));
  EXPECT_EQ(reader.read(file).records, 1);
  EXPECT_EQ(reader.times, (std::vector<int64_t>{1, 2, 3}));
}

TEST(ReadRecords, AnUnfinishedLineWaits) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  const std::string second = line(2);
  put(file, line(1) + second.substr(0, 20));
  const ReadFigures first = reader.read(file);
  EXPECT_EQ(first.records, 1);
  EXPECT_EQ(first.broken_lines, 0);
  append(file, second.substr(20));
  EXPECT_EQ(reader.read(file).records, 1);
  EXPECT_EQ(reader.times, (std::vector<int64_t>{1, 2}));
}

TEST(ReadRecords, BrokenLinesAreCountedWithTheFirstReason) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  put(file,
      line(1) + "hello\n\n" + R"({"schema":"specdec.acceptance/9"})" + "\n" + std::string(70000, 'x') + "\n" + line(2));
  const ReadFigures figures = reader.read(file);
  EXPECT_EQ(figures.records, 2);
  EXPECT_EQ(figures.broken_lines, 3);
  EXPECT_NE(figures.first_problem.find("a.jsonl: line 2"), std::string::npos) << figures.first_problem;
  EXPECT_EQ(reader.read(file).broken_lines, 0);
}

// The reason for a broken line states only the line's position and the type of problem. It never repeats text of the
// line, which may be somebody's name.
TEST(ReadRecords, NothingOfABrokenLineIsRepeated) {
  const std::string name = "JaneDoe4111111111111111";
  std::vector<std::string> lines = {name, "\"" + name + "\"", "{\"" + name + "\":1}",
                                    "{\"" + name + "\":1,\"" + name + "\":2}",
                                    "{\"schema\":\"specdec.acceptance/" + name + "\"}"};
  const std::string own = line(7);
  const Json vllm = Json::parse(
      R"({"num_draft_tokens":6,"num_accepted_draft_tokens":2,"num_spec_steps":2,"acceptance_histogram":[1,0,1],
          "per_step_drafted":[3,3],"per_step_accepted":[0,2],
                                    "acceptance_histogram_by_draft_length":{"3":[1,0,1,0]}})");
  for (const Json& good :
       {Json::parse(own), vllm,
        Json::parse(R"({"spec_verify_ct":4,"spec_num_proposed_drafts":8,"spec_num_correct_drafts":3,)"
                    R"("spec_correct_drafts_histogram":[1,3]})"),
        Json::parse(R"({"request_parameters":"{}","draft_n":5,"draft_n_accepted":3})")})
    for (const auto& [key, value] : good.items())
      for (const Json& bad : {Json(name), Json{{name, name}}, Json::array({name}), Json(4111111111111111),
                              Json(-4111111111111111), Json(4.111111111111111e300), Json(nullptr)}) {
        Json broken = good;
        broken[key] = bad;
        lines.push_back(broken.dump());
      }
  for (size_t at = 0; at < own.size(); at += 3)
    lines.push_back(own.substr(0, at) + name + own.substr(at, own.size() - 1 - at));
  int refused = 0;
  for (const std::string& text : lines) {
    Scratch dir;
    put(dir / "a.jsonl", text + "\n");
    const ReadFigures figures = Reader().read(dir / "a.jsonl");
    refused += figures.broken_lines > 0;
    EXPECT_EQ(figures.first_problem.find("JaneDoe"), std::string::npos) << text << "\n" << figures.first_problem;
    EXPECT_EQ(figures.first_problem.find("4111111"), std::string::npos) << text << "\n" << figures.first_problem;
    EXPECT_EQ(figures.first_problem.find("4.11"), std::string::npos) << text << "\n" << figures.first_problem;
  }
  EXPECT_GT(refused, 100);
}

TEST(ReadRecords, AGiantLineNeitherFillsTheMemoryNorHidesTheNext) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  put(file, line(1) + std::string(5 << 20, 'x') + "\n" + line(2) + "?\n");
  const ReadFigures figures = reader.read(file);
  EXPECT_EQ(figures.broken_lines, 2);
  EXPECT_EQ(figures.records, 2);
  EXPECT_NE(figures.first_problem.find("line 2 since the last check: longer than 1 MiB"), std::string::npos)
      << figures.first_problem;
}

TEST(ReadRecords, LinesGoOnFromBlockToBlock) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  std::string text, long_line(300000, ' ');
  std::vector<int64_t> times;
  for (int64_t i = 0; i < 6000; ++i) {
    text += std::string(static_cast<size_t>(i % 7), ' ') + (i % 2000 == 7 ? long_line : "") +
            line(i);  // 0 to 6 spaces before a line, so that lines start anywhere in the reader's blocks
    if (i % 2000 != 7) times.push_back(i);
  }
  put(file, text + line(6000).substr(0, 30));
  const ReadFigures figures = reader.read(file);
  EXPECT_EQ(figures.broken_lines, 3);
  EXPECT_NE(figures.first_problem.find("line 8 since the last check: record: JSON of 300"), std::string::npos)
      << figures.first_problem;
  EXPECT_EQ(reader.times, times);
  EXPECT_EQ(reader.positions.begin()->second.offset, text.size());
}

TEST(ReadRecords, RotationIsFollowed) {
  Scratch dir;
  Reader reader;
  put(dir / "a.jsonl", line(1) + line(2));
  reader.read(dir / "a.jsonl");
  append(dir / "a.jsonl", line(3));
  fs::rename(dir / "a.jsonl", dir / "a-1.jsonl");  // a renamed file is not read again
  put(dir / "a.jsonl", line(4));                   // a new file of that name is read from the start
  for (const fs::path& file : record_files(dir.root())) reader.read(file);
  EXPECT_EQ(reader.times, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(ReadRecords, ATruncatedAndRewrittenFileIsReadFromTheStart) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  put(file, line(1));
  reader.read(file);
  for (const bool longer : {false, true}) {
    std::ofstream(file, std::ios::trunc | std::ios::binary)
        << line(7) << (longer ? line(8) + line(9) : "");  // overwrites the file, which keeps its inode
    reader.times.clear();
    reader.positions[file_identity(file)].head = std::string(64, '0');
    reader.read(file);
    EXPECT_EQ(reader.times, longer ? (std::vector<int64_t>{7, 8, 9}) : std::vector<int64_t>{7});
  }
  std::ofstream(file, std::ios::trunc | std::ios::binary) << line(5);
  reader.times.clear();
  reader.read(file);
  EXPECT_EQ(reader.times, std::vector<int64_t>{5});
}

TEST(RecordFiles, AreRegularJsonlFilesInOrder) {
  Scratch dir;
  put(dir / "b.jsonl", "");
  put(dir / "a.jsonl", "");
  put(dir / "c.txt", "");
  put(dir / "sub/d.jsonl", "");
  EXPECT_EQ(record_files(dir.root()), (std::vector<fs::path>{dir / "a.jsonl", dir / "b.jsonl"}));
  EXPECT_EQ(record_files(dir / "c.txt"), std::vector<fs::path>{dir / "c.txt"});
  expect_error(ErrorKind::kData, {"no such file"}, [&] { record_files(dir / "nothing"); });
  expect_error(ErrorKind::kData, {"neither"}, [&] { record_files("/dev/null"); });
}

}  // namespace
}  // namespace specdec::monitor
