#include "deploy/serve/schedule/recorder.h"

#include <gtest/gtest.h>

#include <set>

#include "base/schema/acceptance_record.h"
#include "base/schema/reject_record.h"
#include "base/schema/traffic_record.h"
#include "tests/base/manual_clock.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::put;

std::vector<std::string> names(const fs::path& directory) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().filename() != ".lock") out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> lines(const fs::path& file) {
  std::vector<std::string> out;
  std::istringstream in(testing::get(file));
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

FinishedAnswer finished(bool chat) {
  auto request = std::make_shared<GenerationRequest>();
  request->id = "req-1";
  request->prompts = {{1, 2, 3}};
  request->n = 2;
  request->domain = "code";
  request->time = 1700000123;
  request->options.sampling.temperature = 0.5;
  request->options.sampling.top_k = 40;
  decode::LogitsProcessors rules;
  if (chat) {
    request->messages = {{"system", "s"}, {"user", "u \"quoted\" \n"}};
    request->template_kwargs = R"({"enable_thinking":false})";
    rules.constraint = [] { return std::unique_ptr<decode::Constraint>(); };
  } else {
    request->texts = {"the prompt"};
  }
  request->options.rules = std::make_shared<const decode::LogitsProcessors>(rules);
  FinishedAnswer a{request, 1, "the answer", {FinishReason::kStop, 4, {}, {}}, {4, 5}};
  a.result.counts.add_step(2, 1, {0.5, 0.25});
  a.result.counts.emitted = 4;
  return a;
}

TEST(RotatingLog, PublishesBySizeByAgeAndAtTheEnd) {
  const Scratch dir;
  specdec::testing::ManualClock clock;
  {
    RotatingLog log(dir.root(), "t", {20, 60}, clock);
    log.append("first line");
    ASSERT_EQ(names(dir.root()).size(), 1u);
    EXPECT_TRUE(names(dir.root())[0].ends_with(".jsonl.partial"));
    log.append("second line");
    EXPECT_TRUE(names(dir.root())[0].ends_with(".jsonl")) << "23 bytes are over the limit of 20";
    log.append("third");
    clock.now = 59;
    log.rotate_if_old();
    EXPECT_TRUE(names(dir.root())[1].ends_with(".partial"));
    clock.now = 60;
    log.rotate_if_old();
    EXPECT_TRUE(names(dir.root())[1].ends_with(".jsonl"));
    log.append("fourth");
  }
  const auto all = names(dir.root());
  ASSERT_EQ(all.size(), 3u);
  for (const std::string& name : all) EXPECT_TRUE(name.starts_with("t-2023") && name.ends_with(".jsonl")) << name;
  EXPECT_EQ(testing::get(dir / all[0]), "first line\nsecond line\n");
  EXPECT_EQ(testing::get(dir / all[2]), "fourth\n");
}

TEST(RotatingLog, ARestartWithinTheSecondReplacesNothing) {
  const Scratch dir;
  specdec::testing::ManualClock clock;
  for (const char* line : {"first", "second"}) RotatingLog(dir.root(), "t", {}, clock).append(line);
  ASSERT_EQ(names(dir.root()).size(), 2u);
  EXPECT_EQ(testing::get(dir / names(dir.root())[0]), "first\n");
}

TEST(RotatingLog, PublishesWhatAKilledServerLeftAndKeepsOthersOut) {
  const Scratch dir;
  put(dir / "t-old.jsonl.partial", "a line\n");
  put(dir / "unrelated.partial", "x");
  specdec::testing::ManualClock clock;
  RotatingLog log(dir.root(), "t", {}, clock);
  EXPECT_EQ(testing::get(dir / "t-old.jsonl"), "a line\n");
  EXPECT_TRUE(fs::exists(dir / "unrelated.partial"));
  expect_error(ErrorKind::kNetwork, {"lock"}, [&] { RotatingLog second(dir.root(), "t", {}, clock); });
  expect_error(ErrorKind::kNetwork, {"lock"}, [&] { require_no_other_recorder(dir.root()); });
}

TEST(RotatingLog, LinksInTheFolderAreNobodysRecords) {
  const Scratch dir;
  put(dir / "secret", "secret");
  put(dir / "victim", "victim");
  fs::create_directory(dir / "records");
  fs::create_symlink(dir / "secret", dir / "records/t-a.jsonl.partial");
  put(dir / "records/t-b.jsonl.partial", "content");
  fs::create_symlink(dir / "victim", dir / "records/t-b.jsonl.partial.copy");
  specdec::testing::ManualClock clock;
  RotatingLog(dir / "records", "t", {}, clock).append("new");
  EXPECT_FALSE(fs::exists(dir / "records/t-a.jsonl"));
  EXPECT_EQ(testing::get(dir / "victim"), "victim");
}

TEST(RotatingLog, WhatCannotBePublishedStaysForTheNextStart) {
  const Scratch dir;
  put(dir / "t-old.jsonl.partial", "a line\n");
  fs::create_directory(dir / "t-old.jsonl.partial.copy");  // makes the copy fail, as a full disk would
  specdec::testing::ManualClock clock;
  RotatingLog(dir.root(), "t", {}, clock).append("new");
  EXPECT_EQ(testing::get(dir / "t-old.jsonl.partial"), "a line\n");
  fs::remove(dir / "t-old.jsonl.partial.copy");
  RotatingLog(dir.root(), "t", {}, clock);
  EXPECT_EQ(testing::get(dir / "t-old.jsonl"), "a line\n");
}

struct Recording : ::testing::Test {
  const Scratch dir;
  specdec::testing::ManualClock clock;
  Metrics metrics;
  RecorderOptions options;

  // Returns the lines of the only file in the traffic directory's subdirectory `kind`.
  std::vector<std::string> recorded(const char* kind = "") const {
    const auto files = names(dir / "traffic" / kind);
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? files : lines(dir / "traffic" / kind / files[0]);
  }
  TrafficRecord traffic(size_t i = 0) const {
    return traffic_record_from_json(Json::parse(recorded().at(i)), "record");
  }
};

// An answer that ended by a stop string or stop token of the request must be recorded as cut, because the model did not
// end it.
TEST_F(Recording, SaysThatARequestEndedItsAnswer) {
  options.record_dir = dir / "traffic";
  {
    Recorder recorder(options, metrics, clock);
    FinishedAnswer answer = finished(true);
    answer.result.ended_by_request = true;
    recorder.record(answer);
  }
  const TrafficRecord record = traffic();
  EXPECT_EQ(record.finish_reason, "stop_string");
  EXPECT_TRUE(record.answer_was_cut());
}

TEST_F(Recording, WritesValidTrafficAndAcceptanceRecords) {
  options.record_dir = dir / "traffic";
  options.acceptance_log = dir / "acceptance.jsonl";
  options.target = std::string(64, 'a');
  options.draft = std::string(64, 'b');
  {
    Recorder recorder(options, metrics, clock);
    recorder.record(finished(true));
    FinishedAnswer cut = finished(false);
    cut.result.reason = FinishReason::kLength;
    recorder.record(cut);
    recorder.stop();
    recorder.record(finished(false));  // ignored after stop()
  }
  ASSERT_EQ(recorded().size(), 2u);
  const TrafficRecord chat = traffic(0), raw = traffic(1);
  EXPECT_EQ(chat.id, "req-1-1");
  EXPECT_EQ(chat.conversation, "req-1");
  ASSERT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.messages[1].content, "u \"quoted\" \n");
  EXPECT_EQ(chat.messages[2].role, "assistant");
  EXPECT_EQ(chat.messages[2].content, "the answer");
  EXPECT_EQ(chat.token_ids, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(chat.finish_reason, "stop");
  EXPECT_EQ(chat.template_kwargs, R"({"enable_thinking":false})");
  EXPECT_EQ(chat.writer, options.target);
  EXPECT_EQ(chat.domain, "code");
  EXPECT_EQ(chat.time, 1700000123);
  ASSERT_TRUE(chat.sampling);
  EXPECT_EQ(chat.sampling->temperature, 0.5);
  EXPECT_EQ(chat.sampling->top_k, 40);
  EXPECT_EQ(raw.prompt, "the prompt");
  EXPECT_EQ(raw.response, "the answer");
  EXPECT_EQ(raw.finish_reason, "length");
  EXPECT_EQ(raw.prompt_token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(raw.token_ids, (std::vector<int32_t>{4, 5}));
  const auto acceptance = lines(dir / "acceptance.jsonl");
  EXPECT_EQ(recorded("acceptance"), acceptance);
  ASSERT_EQ(acceptance.size(), 2u);
  const AcceptanceRecord record = acceptance_record_from_line(acceptance[0], "acceptance");
  EXPECT_EQ(record.segment, "code");
  EXPECT_TRUE(record.constrained) << "it had a grammar, the next one has none";
  EXPECT_FALSE(acceptance_record_from_line(acceptance[1], "acceptance").constrained);
  EXPECT_EQ(record.target, std::string(12, 'a'));
  EXPECT_EQ(record.draft, std::string(12, 'b'));
  EXPECT_EQ(record.counts.accepted, 1);
  EXPECT_EQ(record.counts.emitted, 4);
  EXPECT_EQ(acceptance[0].find("answer"), std::string::npos) << "no text";
}

TEST_F(Recording, AcceptanceAloneHoldsNoText) {
  options.acceptance_log = dir / "acceptance.jsonl";
  Recorder recorder(options, metrics, clock);
  recorder.record(finished(true));
  recorder.stop();
  EXPECT_EQ(lines(dir / "acceptance.jsonl").size(), 1u);
  EXPECT_EQ(names(dir.root()).size(), 1u);
}

TEST_F(Recording, ADiskThatFailsLosesRecordsAndNothingElse) {
  options.record_dir = dir / "traffic";
  Recorder recorder(options, metrics, clock);
  fs::remove_all(dir / "traffic");
  put(dir / "traffic", "a file where the directory was");
  recorder.record(finished(true));
  recorder.record(finished(true));
  recorder.stop();
  EXPECT_NE(metrics.text(0, 0, 0).find("specdec:records_lost_total 2"), std::string::npos) << metrics.text(0, 0, 0);
  expect_error(ErrorKind::kIo, {"--acceptance-log"}, [&] {
    RecorderOptions bad;
    bad.acceptance_log = (dir / "absent" / "log").string();
    Recorder r(bad, metrics, clock);
  });
}

TEST_F(Recording, OverTheQuotaRecordsAreLostUntilThereIsRoomAgain) {
  options.record_dir = dir / "traffic";
  options.quota_bytes = 4096;
  options.traffic.bytes = 600;
  fs::create_directories(dir / "traffic/acceptance");
  put(dir / "traffic/acceptance/acceptance-old.jsonl", std::string(3000, 'x') + "\n");
  const auto record = [&] {
    Recorder recorder(options, metrics, clock);
    for (int i = 0; i < 10; ++i) recorder.record(finished(true));
  };
  const auto held = [&] {
    uint64_t sum = 0;
    for (const auto& entry : fs::recursive_directory_iterator(dir / "traffic"))
      if (entry.is_regular_file()) sum += entry.file_size();
    return sum;
  };
  record();
  EXPECT_LE(held(), options.quota_bytes);
  EXPECT_GT(held(), 3500u) << "up to the quota they are written";
  EXPECT_NE(metrics.text(0, 0, 0).find("specdec:records_lost_total"), std::string::npos);
  EXPECT_EQ(metrics.text(0, 0, 0).find("specdec:records_lost_total 0"), std::string::npos);
  {
    Recorder recorder(options, metrics, clock);
    recorder.record(finished(true));
    fs::remove(dir / "traffic/acceptance/acceptance-old.jsonl");
    const size_t before = names(dir / "traffic").size();
    clock.now += 10;
    recorder.record(finished(true));
    recorder.stop();
    EXPECT_GT(names(dir / "traffic").size(), before) << "taken away: there is room";
  }
}

TEST_F(Recording, RejectsHaveTheirOwnFilesAndNoText) {
  options.record_dir = dir / "traffic";
  options.rejects = true;
  options.target = std::string(64, 'a');
  options.draft = std::string(64, 'b');
  FinishedAnswer answer = finished(true);
  answer.result.draft = std::string(12, 'c');
  answer.result.rejects = {{1, 7, 8, -2.5, {{8, -0.25}, {7, -2.5}}}};
  {
    Recorder recorder(options, metrics, clock);
    recorder.record(answer);
    recorder.record(finished(false));  // the answer has no rejects, so no line is written
  }
  const std::string file = names(dir / "traffic/rejects").at(0);
  EXPECT_TRUE(file.starts_with("rejects-") && file.ends_with(".jsonl")) << file;
  const auto all = recorded("rejects");
  ASSERT_EQ(all.size(), 1u);
  const RejectRecord record = reject_record_from_line(all[0], "rejects");
  EXPECT_EQ(record.id, traffic().id);
  EXPECT_EQ(record.conversation, "req-1");
  EXPECT_EQ(record.draft, std::string(12, 'c')) << "the draft that drafted";
  ASSERT_EQ(record.rejects.size(), 1u);
  EXPECT_EQ(record.rejects[0].next, 8);
  EXPECT_EQ(all[0].find("answer"), std::string::npos) << "no text";
}

}  // namespace
}  // namespace specdec::deploy
