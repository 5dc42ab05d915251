#include "engine/parallel/rank_watch.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "base/progress.h"
#include "tests/base/scratch.h"

namespace specdec::parallel {
namespace {

using namespace specdec::testing;

TEST(Beats, ARankWhoseBeatStaysTheSameIsLate) {
  Beats beats(3, 100);
  EXPECT_FALSE(beats.late(130, 30));
  EXPECT_EQ(beats.late(131, 30), 0);
  for (const int rank : {0, 1, 2}) beats.observe(rank, 1, 120);
  EXPECT_FALSE(beats.late(150, 30));
  beats.observe(0, 2, 149);
  beats.observe(1, 1, 149);
  beats.observe(2, 2, 149);
  EXPECT_EQ(beats.late(151, 30), 1);
  beats.observe(1, 2, 151);
  EXPECT_FALSE(beats.late(152, 30));
}

// A board (the key-value store of the ranks) in memory, which several watches share and which can fail or hang.
struct Notes {
  std::mutex lock;
  std::condition_variable changed;
  std::map<std::string, std::string> notes;
  bool gone = false, hangs = false;

  Board board() {
    return {[this](const std::string& key, const std::string& note) {
              std::unique_lock guard(lock);
              changed.wait(guard, [this] { return !hangs; });
              if (gone) throw std::runtime_error("gone");
              notes[key] = note;
            },
            [this](const std::string& key) -> std::optional<std::string> {
              std::unique_lock guard(lock);
              changed.wait(guard, [this] { return !hangs; });
              if (gone) throw std::runtime_error("gone");
              const auto found = notes.find(key);
              return found == notes.end() ? std::nullopt : std::optional(found->second);
            }};
  }
  void set(const std::string& key, const std::string& note) {
    const std::lock_guard guard(lock);
    notes[key] = note;
  }
};

// Receives the error of a watch that finds a rank lost. Without this object, the watch would end the process.
struct Report {
  std::mutex lock;
  std::condition_variable changed;
  std::optional<Error> error;

  void put(const Error& e) {
    const std::lock_guard guard(lock);
    error = e;
    changed.notify_all();
  }
  Error wait() {
    std::unique_lock guard(lock);
    changed.wait(guard, [&] { return error.has_value(); });
    return *error;
  }
};

WatchOptions quick(int rank, int ranks, Report* report = nullptr) {
  WatchOptions o;
  o.rank = rank;
  o.ranks = ranks;
  for (int r = 0; r < ranks; ++r) o.names.push_back("rank " + std::to_string(r) + " (host " + std::to_string(r) + ")");
  o.beat_seconds = 0.01;
  o.lost_seconds = 0.5;
  o.hurry_seconds = 0.5;
  o.grace_seconds = report ? 0.01 : 30;
  if (report) o.on_lost = [report](const Error& e) { report->put(e); };
  return o;
}

const SystemClock kClock;

TEST(RankWatch, ARankThatStopsBeatingIsReportedToAll) {
  Notes notes;
  Report first, second;
  const RankWatch zero(quick(0, 3, &first), notes.board(), kClock), one(quick(1, 3, &second), notes.board(), kClock);
  const Error at_zero = first.wait(), at_one = second.wait();
  EXPECT_EQ(at_zero.kind(), ErrorKind::kNetwork);
  EXPECT_EQ(std::string(at_zero.what()).find("rank 2 (host 2) is gone"), 0u) << at_zero.what();
  EXPECT_STREQ(at_one.what(), at_zero.what()) << "rank 1 does not look at rank 2 itself";
  EXPECT_NE(std::string(at_zero.what()).find(": start all ranks again"), std::string::npos);
}

// Rank 1 may start long after rank 0. A watch must not report rank 1 as lost before rank 1 has joined.
TEST(RankWatch, ARankThatHasNotJoinedIsNotMissed) {
  Notes notes;
  Report report;
  WatchOptions options = quick(0, 2, &report);
  options.names[1] = "";
  options.lost_seconds = 0.05;
  RankWatch zero(options, notes.board(), kClock);
  const auto beats = [&] {
    const std::optional<std::string> note = notes.board().look("beat/0");
    return note ? std::stoi(*note) : 0;
  };
  while (beats() < 30) usleep(1000);  // longer than the limit for a rank that has joined
  {
    const std::lock_guard guard(report.lock);
    EXPECT_FALSE(report.error);
  }
  zero.meet(1, "rank 1 (late)");
  EXPECT_EQ(std::string(report.wait().what()).find("rank 1 (late) is gone"), 0u);
}

TEST(RankWatch, ABoardThatIsGoneMeansThatRankZeroIs) {
  Notes notes;
  Report report;
  const RankWatch one(quick(1, 2, &report), notes.board(), kClock);
  {
    const std::lock_guard guard(notes.lock);
    notes.gone = true;
  }
  EXPECT_EQ(std::string(report.wait().what()).find("rank 0 (host 0) is gone"), 0u);
}

TEST(RankWatch, ABoardThatHangsHoldsNobody) {
  static Notes notes;  // static, because a thread may still use it when the test ends
  Report report;
  {
    RankWatch one(quick(1, 2, &report), notes.board(), kClock);
    {
      const std::lock_guard guard(notes.lock);
      notes.hangs = true;
    }
    const Error lost = report.wait();
    EXPECT_EQ(std::string(lost.what()).find("rank 0 (host 0) is gone"), 0u) << lost.what();
    one.fail(Error(ErrorKind::kInternal, "what follows from it"));
    one.leave();
    EXPECT_TRUE(one.others_left());
  }
  const std::lock_guard guard(notes.lock);
  notes.hangs = false;
  notes.changed.notify_all();
}

TEST(RankWatch, AFailureReachesTheOthersWithItsKind) {
  Notes notes;
  RankWatch zero(quick(0, 2), notes.board(), kClock), one(quick(1, 2), notes.board(), kClock);
  one.fail(Error(ErrorKind::kDevice, "out of memory"));
  const Error reason = zero.reason("connection closed");
  EXPECT_EQ(reason.kind(), ErrorKind::kDevice);
  EXPECT_STREQ(reason.what(), "rank 1 (host 1): out of memory");
  zero.fail(Error(ErrorKind::kInternal, "what follows from it"));
  const std::lock_guard guard(notes.lock);
  EXPECT_NE(notes.notes["end"].find("out of memory"), std::string::npos) << "the first error stays";
}

TEST(RankWatch, AMalformedNoteIsAnEndWithoutAReason) {
  for (const char* note : {"", "{", "[]", R"({"kind": 99})", R"({"kind": -1, "message": "x"})",
                           R"({"kind": "x", "message": "x"})", R"({"kind": 2, "message": 3})"}) {
    Notes notes;
    notes.set("end", note);
    RankWatch zero(quick(0, 1), notes.board(), kClock);
    EXPECT_STREQ(zero.reason("").what(), "another rank ended");
  }
}

TEST(RankWatch, WhoHasLeftIsNotMissed) {
  Notes notes;
  Report report;
  RankWatch zero(quick(0, 2, &report), notes.board(), kClock);
  {
    RankWatch one(quick(1, 2), notes.board(), kClock);
    EXPECT_FALSE(zero.others_left());
    one.leave();
  }
  EXPECT_TRUE(zero.others_left());
  const std::lock_guard guard(report.lock);
  EXPECT_FALSE(report.error);
}

TEST(RankWatch, AStopOfOneRankIsAStopOfAll) {
  Notes notes;
  // Runs in child processes, because a stop request cannot be withdrawn.
  EXPECT_EQ(in_child(nullptr, "",
                     [&] {
                       const RankWatch zero(quick(0, 1), notes.board(), kClock);
                       EXPECT_FALSE(stop_requested());
                       notes.set("stop", "1");
                       while (!stop_requested()) usleep(1000);
                     }),
            0);
  EXPECT_EQ(in_child(nullptr, "",
                     [&] {
                       Notes own;
                       const RankWatch zero(quick(0, 1), own.board(), kClock);
                       request_stop();
                       while (!own.board().look("stop")) usleep(1000);
                     }),
            0);
}

}  // namespace
}  // namespace specdec::parallel
