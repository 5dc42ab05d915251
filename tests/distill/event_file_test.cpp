#include "distill/metrics/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "distill/metrics/metrics.h"
#include "tests/base/manual_clock.h"
#include "tests/base/scratch.h"

namespace specdec::distill {
namespace {

using specdec::testing::get;
using specdec::testing::put;
using specdec::testing::Scratch;

template <class T>
T little_endian(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Returns the payloads of a TFRecord file, after checking every length and both checksums of each record.
std::vector<std::string> records(const fs::path& file) {
  const std::string bytes = get(file);
  std::vector<std::string> out;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = little_endian<uint64_t>(bytes, at);
    EXPECT_EQ(little_endian<uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    if (at + 16 + length > bytes.size()) {
      ADD_FAILURE() << "record past the end";
      return out;
    }
    out.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(little_endian<uint32_t>(bytes, at + 12 + length), masked_crc32c(out.back()));
    at += 16 + length;
  }
  return out;
}

fs::path event_file(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) return entry.path();
  return {};
}

TEST(EventFile, ChecksumsAsPublished) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);            // the standard check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // example of RFC 3720, B.4
  EXPECT_EQ(masked_crc32c("123456789"), ((0xE3069283u >> 15) | (0xE3069283u << 17)) + 0xA282EAD8u);
}

TEST(EventFile, HoldsVersionAndScalars) {
  const Scratch scratch;
  const EventFile first(scratch.root(), 1700000000, 0);
  EventFile file(scratch.root(), 1700000000, 0);
  EXPECT_NE(first.path(), file.path());
  file.scalars(12.5, 300, {{"train/loss", 2.25}, {"x", -1}});
  const auto all = records(file.path());
  ASSERT_EQ(all.size(), 2u);
  // Fields of the protobuf message Event: wall_time = 1 (double), step = 2 (varint), file_version = 3 (string), summary
  // = 5 (message).
  EXPECT_EQ(all[0].substr(9), std::string("\x10\x00\x1a\x0d", 4) + "brain.Event:2");
  EXPECT_EQ(little_endian<double>(all[1], 1), 12.5);
  const float loss = 2.25f, x = -1;
  std::string a = "\x0a\x0atrain/loss\x15", b = "\x0a\x01x\x15";
  a.append(reinterpret_cast<const char*>(&loss), 4);
  b.append(reinterpret_cast<const char*>(&x), 4);
  const std::string summary =
      std::string("\x0a") + static_cast<char>(a.size()) + a + "\x0a" + static_cast<char>(b.size()) + b;
  EXPECT_EQ(all[1].substr(9), std::string("\x10\xac\x02\x2a") + static_cast<char>(summary.size()) + summary);
}

TEST(EventFile, UnwritableDirectoryIsAnIoError) {
  specdec::testing::expect_error(ErrorKind::kIo, {"/nonexistent/"}, [] { EventFile("/nonexistent", 1, 0); });
}

TEST(Metrics, LinesAndEventsTogether) {
  const Scratch scratch;
  const specdec::testing::ManualClock clock(5);
  Metrics(scratch.root(), clock, 0).write("train", 7, {{"loss", 0.5}, {"acceptance", std::nan("")}});
  const Json line = Json::parse(get(scratch / "metrics.jsonl"));
  EXPECT_EQ(line["kind"], "train");
  EXPECT_EQ(line["step"], 7);
  EXPECT_EQ(line["loss"], 0.5);
  EXPECT_TRUE(line["acceptance"].is_null());
  EXPECT_EQ(records(event_file(scratch.root())).size(), 2u);
}

TEST(Metrics, ResumeDropsWhatComesAfterTheCheckpoint) {
  const Scratch scratch;
  const specdec::testing::ManualClock clock(5);
  {
    Metrics m(scratch.root(), clock, 0);
    for (int64_t step = 1; step <= 5; ++step) m.write("train", step, {{"loss", 1.0}});
  }
  put(scratch / "metrics.jsonl",
      // Appends half a line, as a process that was killed while writing leaves it.
      get(scratch / "metrics.jsonl") + R"({"kind":"train","step":6,"lo)");
  fs::remove(event_file(scratch.root()));
  Metrics m(scratch.root(), clock, 3);
  m.write("train", 4, {{"loss", 2.0}});
  const std::string text = get(scratch / "metrics.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find(R"("loss":2.0)"), std::string::npos);
  EXPECT_EQ(text.find(R"("step":5)"), std::string::npos);
  // The field session_log = 7 { status START } at step 3 makes TensorBoard drop later points of the old file.
  const auto all = records(event_file(scratch.root()));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].substr(9), std::string("\x10\x03\x3a\x02\x08\x01", 6));
}

}  // namespace
}  // namespace specdec::distill
