#include "monitor/source.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"
#include "tests/monitor/loopback.h"

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
    return read_records(file, identity, positions[identity], [this](const AcceptanceRecord& r) { times.push_back(r.time); });
  }
};

void append(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::app | std::ios::binary) << text; }

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
  put(file, line(1) + "hello\n\n" + R"({"schema":"specdec.acceptance/9"})" + "\n" + std::string(70000, 'x') + "\n" + line(2));
  const ReadFigures figures = reader.read(file);
  EXPECT_EQ(figures.records, 2);
  EXPECT_EQ(figures.broken_lines, 3);
  EXPECT_NE(figures.first_problem.find("a.jsonl: line 2"), std::string::npos) << figures.first_problem;
  EXPECT_EQ(reader.read(file).broken_lines, 0);
}

TEST(ReadRecords, AGiantLineNeitherFillsTheMemoryNorHidesTheNext) {
  Scratch dir;
  const fs::path file = dir / "a.jsonl";
  Reader reader;
  put(file, std::string(5 << 20, 'x') + "\n" + line(1));
  const ReadFigures figures = reader.read(file);
  EXPECT_EQ(figures.broken_lines, 1);
  EXPECT_EQ(figures.records, 1);
}

TEST(ReadRecords, RotationIsFollowed) {
  Scratch dir;
  Reader reader;
  put(dir / "a.jsonl", line(1) + line(2));
  reader.read(dir / "a.jsonl");
  append(dir / "a.jsonl", line(3));
  fs::rename(dir / "a.jsonl", dir / "a-1.jsonl");   // renamed: read on, not again
  put(dir / "a.jsonl", line(4));                     // a new file in its place: from the start
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
    std::ofstream(file, std::ios::trunc | std::ios::binary) << line(7) << (longer ? line(8) + line(9) : "");   // the same inode
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

const char kPage[] = R"(# HELP specdec:spec_decode_num_drafts_total steps
# TYPE specdec:spec_decode_num_drafts_total counter
specdec:spec_decode_num_drafts_total 10
specdec:spec_decode_num_draft_tokens_total 30
specdec:spec_decode_num_accepted_tokens_total{engine="0"} 12
specdec:spec_decode_num_accepted_tokens_total{engine="1"} 3 1700000000000
specdec:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9
specdec:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 6e0
specdec:spec_decode_num_reached_tokens_per_pos_total{position="0"} 10
specdec:spec_decode_num_reached_tokens_per_pos_total{position="1"} 9
specdec:spec_decode_overlap_sum_per_pos_total{position="0"} 8.5
specdec:spec_decode_overlap_sum_per_pos_total{position="1"} 5.25
specdec:generation_tokens_total 25
specdec:info{draft="abc",target="d\"e}f",package="1"} 1
go_gc_seconds{quantile="0.5"} NaN
)";

TEST(Exposition, ReadsOurOwnPage) {
  const Counters c = parse_exposition(kPage, "page");
  EXPECT_TRUE(c.any);
  EXPECT_EQ(c.drafts, 10);
  EXPECT_EQ(c.drafted, 30);
  EXPECT_EQ(c.accepted, 15);
  EXPECT_EQ(c.generated, 25);
  EXPECT_EQ(c.accepted_at, (std::vector<double>{9, 6}));
  EXPECT_EQ(c.reached_at, (std::vector<double>{10, 9}));
  EXPECT_EQ(c.overlap_sum_at, (std::vector<double>{8.5, 5.25}));
  EXPECT_EQ(c.draft, "abc");
  EXPECT_EQ(c.target, "d\"e}f");
}

TEST(Exposition, ReadsVllm) {
  const Counters c = parse_exposition(
      "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 4.0\r\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"2\"} 1.0\r\n",
      "page");
  EXPECT_EQ(c.drafts, 4);
  EXPECT_EQ(c.accepted_at, (std::vector<double>{0, 0, 1}));
  EXPECT_TRUE(c.reached_at.empty());
}

TEST(Exposition, AbsentIsNotZero) {
  EXPECT_FALSE(parse_exposition("vllm:num_requests_running 3\n", "page").any);
  EXPECT_FALSE(parse_exposition("", "page").any);
}

TEST(Exposition, MalformedTextNamesTheLine) {
  const std::string name = "specdec:spec_decode_num_accepted_tokens_per_pos_total";
  for (const std::string bad : {"{x=\"1\"} 2", "a{x=1} 2", "a{x=\"1} 2", "a{x=\"1\" 2", "a", "a b", "specdec:spec_decode_num_drafts_total -1",
                                "specdec:spec_decode_num_drafts_total NaN", "specdec:spec_decode_num_drafts_total +Inf"})
    expect_error(ErrorKind::kData, {"page: line 2: "}, [&] { parse_exposition("# fine\n" + bad + "\n", "page"); });
  for (const std::string position : {"", "{position=\"\"}", "{position=\"x\"}", "{position=\"65\"}", "{position=\"99999999999999\"}", "{position=\"-1\"}"})
    expect_error(ErrorKind::kData, {"page: line 1: "}, [&] { parse_exposition(name + position + " 1", "page"); });
  std::string many;
  for (int i = 0; i < 100001; ++i) many += "\n";
  expect_error(ErrorKind::kData, {"100,000"}, [&] { parse_exposition(many, "page"); });
}

TEST(Counters, DifferenceHandlesRestarts) {
  Counters before = parse_exposition(kPage, "page"), now = before;
  now.drafts += 5;
  now.drafted += 15;
  now.accepted_at[1] += 2;
  const Counters d = difference(now, before);
  EXPECT_EQ(d.drafts, 5);
  EXPECT_EQ(d.drafted, 15);
  EXPECT_EQ(d.accepted_at, (std::vector<double>{0, 2}));
  Counters restarted = before;
  restarted.drafts = 3;
  EXPECT_EQ(difference(restarted, before).drafts, 3) << "a restart counts from zero";
  EXPECT_EQ(difference(restarted, before).accepted_at, before.accepted_at);
  EXPECT_EQ(to_json(counters_from_json(to_json(before), "x")), to_json(before));
}

TEST(Fetch, ReadsAPageAndNamesWhatFailed) {
  Loopback server;
  server.page(kPage);
  EXPECT_EQ(fetch(server.url()), kPage);
  EXPECT_EQ(server.last_request().find("Authorization"), std::string::npos);
  EXPECT_EQ(fetch(server.url(), "key-1"), kPage);
  EXPECT_NE(server.last_request().find("\r\nAuthorization: Bearer key-1\r\n"), std::string::npos) << server.last_request();
  server.page("gone", 404);
  expect_error(ErrorKind::kNetwork, {server.url(), "404"}, [&] { fetch(server.url()); });
  server.page("", 302);
  expect_error(ErrorKind::kNetwork, {"302"}, [&] { fetch(server.url()); });
  server.page(std::string(17 << 20, '#'));
  expect_error(ErrorKind::kNetwork, {server.url()}, [&] { fetch(server.url()); });
  std::string closed;
  {
    Loopback gone;
    closed = gone.url();
  }
  expect_error(ErrorKind::kNetwork, {closed}, [&] { fetch(closed); });
  expect_error(ErrorKind::kNetwork, {"file"}, [] { fetch("file:///etc/passwd"); });
}

}  // namespace
}  // namespace specdec::monitor
