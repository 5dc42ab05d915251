#include "monitor/facts/served_target.h"

#include <gtest/gtest.h>

namespace specdec::monitor {
namespace {

const std::string kBound(64, 'a'), kOther(64, 'b'), kThird(64, 'c');
constexpr int64_t kDay = 86400;

// A fixture that calls judge_served() repeatedly and passes the memory of each call to the next. Before each call, a
// test sets the targets that pages, records and a sighting (the check of --target) name.
class Served : public ::testing::Test {
 public:
  Served& page(const std::string& source, const std::string& target) {
    claims_.add(source, target);
    return *this;
  }
  Served& records(int n, const std::string& target) {
    for (int i = 0; i < n; ++i) claims_.records.add({now + ++second_, target}, INT64_MAX);
    claims_.new_records += n;
    return *this;
  }
  Served& sight(Witness by, const std::string& target) {
    sighting_ = {by, target == kBound ? "" : "the look at it says another target", target};
    return *this;
  }
  // Returns "" if the bound target is served, else "stale" or "wait".
  std::string look() {
    for (const NamedRecord& r : memory_.newest) claims_.records.add(r, INT64_MAX);
    verdict = judge_served(memory_, {package, bound}, sighting_, claims_, now);
    memory_ = served_memory_from_text(to_json(verdict.memory).dump(), "memory");
    claims_ = {};
    sighting_ = {};
    now += 600;
    second_ = 0;
    return !verdict.wait.empty() ? "wait" : verdict.stale.empty() ? "" : "stale";
  }

  std::string package = "p", bound = kBound;
  int64_t now = 1800000000;
  ServedVerdict verdict;
  ServedMemory memory_;

 private:
  Claims claims_;
  Sighting sighting_;
  int64_t second_ = 0;
};

TEST_F(Served, AServerThatNamesAnotherTargetIsBelieved) {
  EXPECT_EQ(page("m", kBound).look(), "");
  EXPECT_EQ(page("m", kOther).look(), "stale");
  EXPECT_EQ(verdict.stale,
            "m serves another target than the draft was validated for (bbbbbbbbbbbb, bound to aaaaaaaaaaaa)");
  EXPECT_EQ(verdict.target, kOther);
  EXPECT_EQ(page("m", kOther).sight(Witness::kDirectory, kBound).look(), "stale")
      << "the server knows better than a directory";
  EXPECT_EQ(look(), "stale") << "a look that compares the package's copy with itself ends nothing";
  EXPECT_NE(verdict.stale.find("nobody has named the bound target since"), std::string::npos) << verdict.stale;
  EXPECT_EQ(sight(Witness::kDirectory, kBound).look(), "stale") << "nor does a directory that no server has read";
  EXPECT_EQ(page("m", kBound.substr(0, 12)).look(), "");
  EXPECT_EQ(look(), "");
}

TEST_F(Served, ADirectoryIsEndedByItselfOrByAServer) {
  EXPECT_EQ(sight(Witness::kDirectory, kOther).look(), "stale");
  EXPECT_EQ(look(), "stale") << "one later check without --target";
  EXPECT_EQ(sight(Witness::kDirectory, kBound).look(), "");
  EXPECT_EQ(sight(Witness::kDirectory, kOther).look(), "stale");
  EXPECT_EQ(page("m", kBound).look(), "");
  EXPECT_EQ(sight(Witness::kCopy, kOther).look(), "stale") << "a damaged copy";
  EXPECT_EQ(look(), "") << "is seen at every look or not at all";
  EXPECT_EQ(sight(Witness::kEndpoint, kThird).look(), "stale");
  EXPECT_EQ(look(), "stale");
  EXPECT_EQ(sight(Witness::kEndpoint, kBound).look(), "");
  sight(Witness::kBytes, kBound);
  EXPECT_EQ(look(), "");
}

TEST_F(Served, WhatWasSeenInEveryByteIsEndedSoAlone) {
  memory_.package = package;
  memory_.bound = bound;
  EXPECT_EQ(sight(Witness::kBytes, kOther).look(), "stale");
  EXPECT_EQ(page("m", kBound).look(), "stale") << "a fingerprint is of samples";
  EXPECT_EQ(sight(Witness::kBytes, kBound).look(), "");
}

TEST_F(Served, AnotherPackageEndsItWhereItFits) {
  EXPECT_EQ(page("m", kOther).look(), "stale");
  package = "q";
  bound = kThird;
  EXPECT_EQ(look(), "stale") << "bound to a third target";
  package = "r";
  bound = kOther;
  EXPECT_EQ(look(), "") << "bound to the one that is served";
  EXPECT_EQ(page("m", kOther).look(), "");
}

TEST_F(Served, AFleetThatIsBeingUpdatedIsWaitedForADay) {
  EXPECT_EQ(page("m", kBound).page("n", kBound).look(), "");
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "wait");
  EXPECT_NE(verdict.wait.find("1 of 2 servers"), std::string::npos) << verdict.wait;
  now += kDay / 2;
  EXPECT_EQ(page("m", kBound).page("n", kBound).look(), "") << "it was rolled back";
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "wait") << "the day begins anew";
  now += kDay;
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "stale") << "it is no update any more";
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "stale");
  EXPECT_EQ(page("m", kBound).page("n", kBound).look(), "");
  EXPECT_EQ(page("m", kOther).page("n", kOther).look(), "stale") << "all at once";
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "stale") << "on the way back";
}

TEST_F(Served, ServersThatHaveNotLoadedTheNewPackageYet) {
  EXPECT_EQ(page("m", kBound).look(), "");
  package = "q";
  bound = kOther;
  EXPECT_EQ(page("m", kBound).look(), "wait") << "the package moved first";
  EXPECT_NE(verdict.wait.find("package in the channel has changed"), std::string::npos) << verdict.wait;
  EXPECT_EQ(page("m", kOther).look(), "");
  package = "r";
  bound = kThird;
  EXPECT_EQ(page("m", kOther).look(), "wait");
  now += kDay;
  EXPECT_EQ(page("m", kOther).look(), "stale") << "nobody will load it";
}

TEST_F(Served, RecordsTellWhatWasServedLast) {
  EXPECT_EQ(records(100, kBound).look(), "");
  EXPECT_EQ(records(10, kBound).records(10, kOther).look(), "stale") << "a switch";
  EXPECT_NE(verdict.stale.find("the newest 10 records name another target"), std::string::npos) << verdict.stale;
  EXPECT_EQ(look(), "stale");
  EXPECT_EQ(records(49, kBound).look(), "stale");
  EXPECT_NE(verdict.stale.find("49 records name the bound target again, 50 in a row end this"), std::string::npos)
      << verdict.stale;
  EXPECT_EQ(records(1, kBound).look(), "");
  EXPECT_EQ(records(20, kOther).records(60, kBound).look(), "") << "an episode that nobody saw";
  for (int i = 0; i < 20; ++i) records(2, kBound).records(1, kOther);
  EXPECT_EQ(look(), "wait") << "a mixed fleet";
  for (int i = 0; i < 20; ++i) records(1, kOther).records(2, kBound);
  EXPECT_EQ(look(), "wait");
  now += 2 * kDay;
  for (int i = 0; i < 20; ++i) records(2, kBound).records(1, kOther);
  EXPECT_EQ(look(), "stale");
}

TEST_F(Served, OneRecordDoesNotOutvoteAHundred) {
  EXPECT_EQ(records(100, kBound).look(), "");
  EXPECT_EQ(records(1, kOther).look(), "");
  EXPECT_EQ(records(50, kBound).records(1, kThird).records(20, kBound).look(), "") << "nor in between";
  EXPECT_EQ(records(2, kOther).records(20, kBound).records(2, kOther).look(), "");
  EXPECT_NE(verdict.evidence.dump().find("4 records name another target"), std::string::npos) << verdict.evidence;
  EXPECT_EQ(records(45, kBound).records(9, kOther).look(), "") << "9 in a row";
  EXPECT_EQ(records(1, kOther).look(), "stale") << "a target that was really exchanged";
  EXPECT_EQ(records(50, kBound).look(), "");
  memory_ = {};
  EXPECT_EQ(records(9, kOther).look(), "") << "where nobody names the bound one, too";
}

TEST_F(Served, OneReplicaDoesNotOutvoteAHundred) {
  const auto fleet = [this](int bound, int other) -> Served& {
    for (int i = 0; i < bound; ++i) page("m", kBound);
    for (int i = 0; i < other; ++i) page("m", kOther);
    return *this;
  };
  EXPECT_EQ(fleet(100, 1).look(), "");
  EXPECT_NE(verdict.evidence.dump().find("1 of 101 servers"), std::string::npos) << verdict.evidence;
  EXPECT_EQ(fleet(22, 3).look(), "") << "12 %";
  EXPECT_EQ(fleet(21, 3).look(), "wait") << "an eighth may be the begin of an update";
  EXPECT_EQ(fleet(0, 24).look(), "stale");
  EXPECT_EQ(fleet(24, 1).look(), "") << "nor does one keep it";
}

// The command of --on-drift runs once per alarm. If a page names yet another target within a day, this is not a new
// alarm.
TEST_F(Served, ANewTargetIsANewAlarmOnceADay) {
  EXPECT_EQ(page("m", kOther).look(), "stale");
  EXPECT_EQ(verdict.memory.alarm, kOther);
  EXPECT_EQ(page("m", kThird).look(), "stale");
  EXPECT_EQ(verdict.memory.alarm, kOther);
  EXPECT_EQ(page("m", kBound).look(), "");
  EXPECT_EQ(page("m", kThird).look(), "stale");
  EXPECT_EQ(verdict.memory.alarm, kOther);
  now += kDay;
  EXPECT_EQ(page("m", kThird).look(), "stale");
  EXPECT_EQ(verdict.memory.alarm, kThird);
}

TEST_F(Served, RecordsOfBeforeDoNotEndWhatWasSeenAfterThem) {
  EXPECT_EQ(sight(Witness::kDirectory, kOther).look(), "stale");
  now -= 5000;
  records(100, kBound);
  now += 5000;
  EXPECT_EQ(look(), "stale") << "they were read late";
  EXPECT_EQ(records(60, kBound).look(), "");
}

TEST_F(Served, OldRecordsAndRecordsBesideARunningServer) {
  records(60, kOther);
  now += 3 * kDay;
  EXPECT_EQ(look(), "") << "what was served three days ago may have ended since";
  EXPECT_EQ(records(60, kBound).page("m", kOther).look(), "stale")
      << "the server was restarted, and nobody asked it anything yet";
  EXPECT_EQ(records(60, kOther).page("m", kBound).look(), "");
}

// There are ten requests and one check per day. Another target ran for an hour and was then rolled back. This must not
// look like a rolling update.
TEST_F(Served, AShortSwitchThatWasRolledBackIsOverAfterADay) {
  const auto days = [this](const std::string& page_says) {
    memory_ = {};
    const auto say = [&]() -> Served& { return page_says.empty() ? *this : page("m", page_says); };
    std::string seen;
    const auto check = [&] { seen += (seen.empty() ? "" : " ") + std::string("'") + say().look() + "'"; };
    records(10, kBound);
    check();
    now += 3600;
    records(2, kBound).records(12, kOther).records(2, kBound);  // no check runs between these records
    for (const int hours : {20, 24, 24}) {
      now += (hours - 1) * 3600;
      records(9, kBound);
      now += 3600;
      check();
    }
    return seen;
  };
  EXPECT_EQ(days(""), "'' 'wait' '' ''") << "for a day it might be a fleet";
  EXPECT_EQ(days(kBound), "'' '' '' ''") << "the server says what runs";
}

TEST_F(Served, TheBoundTargetOfLongAgoIsNoPartOfAFleet) {
  records(12, kOther).records(3, kBound);
  now += 2 * kDay;
  EXPECT_EQ(records(11, kOther).look(), "stale") << "nobody has named the bound one for two days";
}

TEST_F(Served, AClockThatRanAheadIsNotBelieved) {
  memory_.package = package;
  memory_.bound = bound;
  memory_.rolling_since = memory_.package_since = now + 1000 * kDay;
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "wait");
  now += kDay;
  EXPECT_EQ(page("m", kBound).page("n", kOther).look(), "stale");
}

TEST(Fingerprints, AreComparedByTheDigitsThatBothHave) {
  EXPECT_TRUE(same_target(kBound, kBound.substr(0, 12)));
  EXPECT_FALSE(same_target(kBound, kBound.substr(0, 11))) << "too few to name one";
  EXPECT_FALSE(same_target("", ""));
  EXPECT_TRUE(is_fingerprint("0123456789ab"));
  for (const char* text : {"", "0123456789a", "0123456789aG", "0123456789AB"})
    EXPECT_FALSE(is_fingerprint(text)) << text;
}

}  // namespace
}  // namespace specdec::monitor
