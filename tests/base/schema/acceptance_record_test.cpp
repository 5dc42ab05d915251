#include "base/schema/acceptance_record.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/philox.h"
#include "tests/base/schema/schema_checks.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::check_schema;
using testing::expect_error;
using testing::refuse;

TEST(AcceptanceRecord, RoundTripAndLimit) {
  AcceptanceRecord r;
  r.time = 1795262400;
  r.segment = "customer-support-german-emails-1";
  r.temperature = 0.7;
  r.draft = "0123456789ab";
  r.target = "ba9876543210";
  for (int i = 0; i < 999; ++i)
    r.counts.add_step(8, i % 9, std::vector<double>(static_cast<size_t>(std::min(i % 9 + 1, 8)), 0.71234));
  r.counts.add_step(0, 0, {});
  r.counts.emitted = 4995;
  const std::string line = to_line(r);
  EXPECT_LE(line.size(), 300u);
  const AcceptanceRecord back = acceptance_record_from_line(line, "line 1");
  EXPECT_EQ(back.time, r.time);
  EXPECT_EQ(back.segment, r.segment);
  EXPECT_EQ(back.temperature, r.temperature);
  EXPECT_EQ(back.draft, r.draft);
  EXPECT_EQ(back.target, r.target);
  EXPECT_EQ(back.counts.steps, 999);
  EXPECT_EQ(back.counts.plain_steps, 1);
  EXPECT_EQ(back.counts.drafted, r.counts.drafted);
  EXPECT_EQ(back.counts.accepted, r.counts.accepted);
  EXPECT_EQ(back.counts.emitted, 4995);
  for (size_t i = 0; i + 1 < back.counts.reached_at.size(); ++i) {
    EXPECT_EQ(back.counts.reached_at[i], r.counts.reached_at[i]);
    EXPECT_EQ(back.counts.accepted_at[i], r.counts.accepted_at[i]);
    EXPECT_NEAR(back.counts.overlap(i), r.counts.overlap(i), 1e-5);
  }
}

TEST(AcceptanceRecord, FoldsLatePositions) {
  AcceptanceRecord r;
  r.counts.add_step(12, 12, std::vector<double>(12, 1.0));
  r.counts.add_step(12, 9, std::vector<double>(10, 0.5));
  const AcceptanceRecord back = acceptance_record_from_line(to_line(r), "l");
  // The 8th entry is the sum over the positions 7 to 11 (counted from 0): 2 + 2 + 2 + 1 + 1.
  EXPECT_EQ(back.counts.reached_at, (std::vector<int64_t>{2, 2, 2, 2, 2, 2, 2, 8}));
  EXPECT_EQ(back.counts.accepted_at, (std::vector<int64_t>{2, 2, 2, 2, 2, 2, 2, 7}));
  EXPECT_EQ(back.counts.accepted, 21);
  AcceptanceRecord huge;
  huge.segment = std::string(32, 's');
  huge.draft = huge.target = "0123456789ab";
  for (int i = 0; i < 20000; ++i) huge.counts.add_step(8, 8, std::vector<double>(8, 0.999));
  EXPECT_LE(to_line(huge).size(), 300u);
  EXPECT_EQ(acceptance_record_from_line(to_line(huge), "l").counts.accepted, 160000);
}

TEST(AcceptanceRecord, Refusals) {
  AcceptanceRecord r;
  r.segment = "code";
  r.counts.add_step(2, 1, {0.5, 0.25});
  const Json json = Json::parse(to_line(r));
  const auto read = [](const Json& j) { return Json::parse(to_line(acceptance_record_from_line(j.dump(), "line 7"))); };
  check_schema(json, ErrorKind::kData, {"schema", "t", "T", "n0", "D", "e", "r", "a", "o"}, read);
  refuse(json, ErrorKind::kData, "more accepted than reached", [](Json& j) { j["a"][0] = 2, j["D"] = 9; }, read);
  refuse(json, ErrorKind::kData, "equally many", [](Json& j) { j["o"].push_back(1); }, read);
  refuse(json, ErrorKind::kData, "overlap above 1", [](Json& j) { j["o"][0] = 1500; }, read);
  refuse(json, ErrorKind::kData, "accepted <= drafted", [](Json& j) { j["D"] = 0; }, read);
  refuse(json, ErrorKind::kData, "reached than drafted", [](Json& j) { j["D"] = 1; }, read);
  refuse(json, ErrorKind::kData, "s: expected", [](Json& j) { j["s"] = "with space"; }, read);
  refuse(json, ErrorKind::kData, "q, p", [](Json& j) { j["q"] = "xyz"; }, read);
  expect_error(ErrorKind::kData, {"the limit is 4096"},
               [&] { acceptance_record_from_line(std::string(5000, ' '), "l"); });
  AcceptanceRecord bad = r;
  bad.counts.steps = 7;
  expect_error(ErrorKind::kData, {"number of steps"}, [&] { to_line(bad); });
}

TEST(AcceptanceRecord, AGrammarIsWrittenOnlyWhereThereIsOne) {
  AcceptanceRecord r;
  r.counts.add_step(2, 1, {0.5, 0.25});
  EXPECT_EQ(to_line(r).find("\"g\""), std::string::npos) << "older readers see what they know";
  EXPECT_FALSE(acceptance_record_from_line(to_line(r), "l").constrained);
  r.constrained = true;
  EXPECT_TRUE(acceptance_record_from_line(to_line(r), "l").constrained);
}

TEST(AcceptanceRecord, EveryTemperatureIsReadAsStrtodReadsIt) {
  AcceptanceRecord r;
  r.counts.add_step(2, 1, {0.5, 0.25});
  Json json = Json::parse(to_line(r));
  json["T"] = "@";
  const std::string line = json.dump();
  for (const char* places : {"%.0f", "%.1f", "%.3f", "%.12f", "%.17f", "%.3e"})
    for (int i = 0; i <= 1000; ++i) {
      char text[40];
      std::snprintf(text, sizeof text, places, i * 0.01 + i * 1e-7);
      const double expected = std::strtod(text, nullptr);
      if (expected > 10) continue;
      ASSERT_EQ(acceptance_record_from_line(std::string(line).replace(line.find("\"@\""), 3, text), "l").temperature,
                expected)
          << text;
    }
}

// Reads several lines into one record. No value of the previous line may remain.
TEST(AcceptanceRecord, NothingIsLeftOfTheLineBefore) {
  AcceptanceRecord long_one, short_one, read;
  long_one.segment = std::string(32, 's');
  long_one.constrained = true;
  long_one.draft = "0123456789ab";
  long_one.counts.add_step(8, 8, std::vector<double>(8, 0.5));
  short_one.counts.add_step(1, 0, {0.25});
  for (const AcceptanceRecord* r : {&long_one, &short_one, &long_one}) {
    const std::string line = to_line(*r), spaced = Json::parse(line).dump(2),
                      unknown = line.substr(0, line.size() - 1) + ",\"zz\":1}";
    for (const std::string& text : {line, spaced, unknown}) {
      read_acceptance_record(text, "l", read);
      EXPECT_EQ(to_line(read), line) << text;
    }
  }
}

// Lines are read by a fast reader. If it does not accept a line, the slow reader parses the line and produces the error
// message. Both must agree; an unknown key forces the slow reader.
TEST(AcceptanceRecord, BothReadersAgreeOnDamagedLines) {
  AcceptanceRecord r;
  r.segment = "code";
  r.draft = "0123456789ab";
  r.constrained = true;
  for (int i = 0; i < 9; ++i)
    r.counts.add_step(3, i % 4, std::vector<double>(static_cast<size_t>(std::min(i % 4 + 1, 3)), 0.5));
  const std::string good = to_line(r), alphabet = "0123456789.-eE\",:[]{}tTaosg \\u\x80";
  PhiloxStream random(1, 2);
  int accepted = 0;
  for (int i = 0; i < 8000; ++i) {
    std::string line = good;
    for (uint64_t n = 1 + random.below(2); n > 0; --n) {
      const size_t at = random.below(line.size() - 1);
      if (random.below(2))
        line[at] = alphabet[random.below(alphabet.size())];
      else
        line.erase(at, 1 + random.below(3));
    }
    if (line.size() < 2 || line.back() != '}') continue;
    const auto read = [](const std::string& text) {
      try {
        return to_line(acceptance_record_from_line(text, "l"));
      } catch (const Error&) {
        return std::string("refused");
      }
    };
    const std::string fast = read(line), slow = read(line.substr(0, line.size() - 1) + ",\"zz\":1}");
    ASSERT_EQ(fast, slow) << line;
    accepted += fast != "refused";
  }
  EXPECT_GT(accepted, 300);
}

}  // namespace
}  // namespace specdec
