#include "deploy/package/store.h"

#include "base/file_lock.h"
#include "tests/package/pair.h"

namespace specdec::deploy {
namespace {

using specdec::testing::expect_error;
using specdec::testing::get;
using specdec::testing::Pair;
using specdec::testing::put;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : pair(/*in_memory=*/true), store(pair.dir / "store") {
    for (int i = 0; i < 3; ++i) {
      testing::write_tiny_model(pair.dir / "draft", {.bump = i, .vocab = 64, .hidden = 8});
      pair.bind();
      pair.write_report();
      made.push_back(pair.create(1795262400 + i));
    }
  }
  std::string digest(size_t i) const { return made[i].digest; }
  // Releases the locks that publishers hold on the packages they have just made.
  void let_go() {
    for (auto& package : made) package.hold.reset();
  }

  Pair pair;
  fs::path store;
  std::vector<PackageOutcome> made;
};

// Packages of the same second must be listed in order of creation. In the order of their digests, the last of the five
// packages would often not be the newest.
TEST_F(StoreTest, PackagesOfTheSameSecondAreInTheirOrder) {
  std::vector<std::string> order;
  for (int i = 0; i < 5; ++i) {
    put(pair.dir / "target/LICENSE", "version " + std::to_string(i));
    order.push_back(pair.create(2'000'000'000).digest);
  }
  std::vector<std::string> listed;
  for (const ListedPackage& p : list_packages(store)) listed.push_back(p.digest);
  listed.erase(listed.begin(), listed.end() - 5);
  EXPECT_EQ(listed, order);
}

TEST_F(StoreTest, PromoteAndRollBackThroughHistory) {
  EXPECT_EQ(promote(store, digest(0), "prod", {"first", 10}).from, "");
  EXPECT_EQ(promote(store, "sha256-" + digest(1).substr(0, 10), "prod", {"second", 20}).from, digest(0));
  const ChannelChange third = promote(store, made[2].path.string(), "prod", {"third", 30});
  EXPECT_EQ(third.from, digest(1));
  EXPECT_EQ(third.to, digest(2));
  EXPECT_FALSE(promote(store, digest(2), "prod", {"again", 31}).changed);
  EXPECT_EQ(get(store / "refs/prod"), digest(2) + "\n");
  EXPECT_FALSE(rollback(store, "prod", {"alarm", 40}, digest(0)).changed) << "it names another";
  EXPECT_EQ(rollback(store, "prod", {"alarm", 40}, digest(2)).to, digest(1));
  EXPECT_EQ(rollback(store, "prod", {"alarm", 50}).to, digest(0))
      << "a rollback of a rollback goes further back, not forward";
  expect_error(ErrorKind::kData, {"had no package before"}, [&] { rollback(store, "prod", {"", 60}); });
  EXPECT_EQ(read_channel(store, "prod"), digest(0));
  std::istringstream lines(get(store / "refs/prod.log"));
  std::vector<Json> log;
  for (std::string line; std::getline(lines, line);) log.push_back(Json::parse(line));
  ASSERT_EQ(log.size(), 5u);
  EXPECT_EQ(log[3]["action"], "rollback");
  EXPECT_EQ(log[3]["why"], "alarm");
  EXPECT_EQ(log[3]["from"], digest(2));
  EXPECT_EQ(log[3]["to"], digest(1));
  EXPECT_EQ(log[3]["time"], "1970-01-01T00:00:40Z");
  EXPECT_FALSE(log[3]["who"].get<std::string>().empty());
}

TEST_F(StoreTest, ATornLogLineIsPassedOver) {
  promote(store, digest(0), "prod", {"", 1});
  promote(store, digest(1), "prod", {"", 2});
  std::ofstream(store / "refs/prod.log", std::ios::app) << "{\"action\":\"prom";
  EXPECT_EQ(rollback(store, "prod", {"", 3}).to, digest(0));
}

TEST_F(StoreTest, RefusesWhatIsNotAWholePackageOfThisStore) {
  expect_error(ErrorKind::kUsage, {"channel"}, [&] { promote(store, digest(0), "../x", {"", 0}); });
  expect_error(ErrorKind::kData, {"no package"}, [&] { promote(store, std::string(64, 'f'), "prod", {"", 0}); });
  expect_error(ErrorKind::kData, {"not a package"}, [&] { promote(store, "nothing", "prod", {"", 0}); });
  expect_error(ErrorKind::kData, {"nosuch:prod: there is no store nosuch"}, [&] { require_package("nosuch:prod"); });
  expect_error(ErrorKind::kData, {"no channel 'nosuch'"}, [&] { require_package(store.string() + ":nosuch"); });
  expect_error(ErrorKind::kData, {"not a store"}, [&] { promote(pair.dir / "target", digest(0), "prod", {"", 0}); });
  expect_error(ErrorKind::kData, {"no channel 'prod'"}, [&] { rollback(store, "prod", {"", 0}); });
  fs::copy(made[0].path, pair.dir / "elsewhere", fs::copy_options::recursive);
  expect_error(ErrorKind::kData, {"not in the store"},
               [&] { promote(store, (pair.dir / "elsewhere").string(), "prod", {"", 0}); });
  put(made[0].path / "draft/config.json", "{}");
  expect_error(ErrorKind::kData, {"damaged package"}, [&] { promote(store, digest(0), "prod", {"", 0}); });
  EXPECT_FALSE(fs::exists(store / "refs/prod"));
}

TEST_F(StoreTest, OneProcessAtATime) {
  make_directories(store / "tmp");
  const FileLock lock(store / "tmp/prod.lock");
  expect_error(ErrorKind::kNetwork, {"lock held"}, [&] { promote(store, digest(0), "prod", {"", 0}); });
}

TEST_F(StoreTest, TheParentIsWhatTheChannelNamed) {
  promote(store, digest(2), "prod", {"", 0});
  testing::write_tiny_model(pair.dir / "draft", {.bump = 9, .vocab = 64, .hidden = 8});
  pair.bind();
  pair.write_report();
  PackageOptions options = pair.options();
  options.parent_channel = "prod";
  EXPECT_EQ(read_manifest(create_package(options, 0, {}).path).parent, digest(2));
}

TEST_F(StoreTest, ListsOldestFirstWithChannelsAndProblems) {
  promote(store, digest(1), "prod", {"", 0});
  promote(store, digest(1), "canary", {"", 0});
  put(made[2].path / "manifest.json", "{");
  const auto list = list_packages(store);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].digest, digest(2));  // sorted first, because the date of an unreadable package is unknown
  EXPECT_NE(list[0].problem.find("manifest.json"), std::string::npos);
  EXPECT_EQ(list[1].digest, digest(0));
  EXPECT_TRUE(list[1].channels.empty());
  EXPECT_EQ(list[2].digest, digest(1));
  EXPECT_EQ(list[2].channels, (std::vector<std::string>{"canary", "prod"}));
  EXPECT_EQ(list[2].manifest.draft_kind, "prune:1");
}

std::map<std::string, std::string> why_of(const std::vector<Collected::Entry>& entries) {
  std::map<std::string, std::string> why;
  for (const auto& e : entries) why[e.digest] = e.why;
  return why;
}

TEST_F(StoreTest, GarbageIsWhatNothingHolds) {
  let_go();
  promote(store, digest(0), "prod", {"", 1});
  EXPECT_TRUE(collect_garbage(store, 3, false).removed.empty());
  const Collected planned = collect_garbage(store, 1, true);
  ASSERT_EQ(planned.removed.size(), 1u);
  EXPECT_TRUE(fs::exists(made[1].path)) << "a dry run changes nothing";
  const Collected done = collect_garbage(store, 1, false);
  ASSERT_EQ(done.removed.size(), 1u);
  EXPECT_EQ(done.removed[0].digest, digest(1));
  EXPECT_EQ(done.bytes, planned.bytes);
  EXPECT_GT(done.bytes, 1000u);
  EXPECT_EQ(why_of(done.kept),
            (std::map<std::string, std::string>{{digest(0), "channel prod"}, {digest(2), "newest"}}));
  EXPECT_FALSE(fs::exists(made[1].path));
  EXPECT_EQ(list_packages(store).size(), 2u);
  expect_error(ErrorKind::kData, {"no package"}, [&] { promote(store, digest(1), "prod", {"", 2}); });
}

TEST_F(StoreTest, WhatARollbackNeedsStays) {
  promote(store, digest(0), "prod", {"", 1});
  promote(store, digest(2), "prod", {"", 2});
  promote(store, digest(1), "prod", {"", 3});
  rollback(store, "prod", {"", 4});  // goes back to package 2; the next rollback goes to package 0
  EXPECT_EQ(channel_history(store, "prod", 1), (std::vector<std::string>{digest(2)}));
  EXPECT_EQ(channel_history(store, "prod", 2), (std::vector<std::string>{digest(2), digest(1), digest(0)}));
  EXPECT_EQ(why_of(collect_garbage(store, 2, false).kept)[digest(0)], "history of prod");
  EXPECT_EQ(rollback(store, "prod", {"", 5}).to, digest(0));
}

TEST_F(StoreTest, PinnedPackagesStay) {
  let_go();
  promote(store, digest(2), "prod", {"", 1});
  EXPECT_TRUE(pin(store, "sha256-" + digest(0).substr(0, 9), {"audit", 2}));
  EXPECT_FALSE(pin(store, digest(0), {"again", 3}));
  EXPECT_EQ(Json::parse(get(store / "pins" / ("sha256-" + digest(0))))["why"], "audit");
  EXPECT_TRUE(list_packages(store)[0].pinned);
  EXPECT_EQ(why_of(collect_garbage(store, 1, false).kept)[digest(0)], "pinned");
  EXPECT_TRUE(unpin(store, digest(0)));
  EXPECT_FALSE(unpin(store, digest(0)));
  EXPECT_EQ(collect_garbage(store, 1, false).removed.size(), 1u);
  EXPECT_FALSE(fs::exists(made[0].path));
}

TEST_F(StoreTest, PackagesInUseStay) {
  let_go();
  const auto list = list_packages(store);
  auto reader = locate_package(list[0].path.string());
  const Collected beside = collect_garbage(store, 1, false);
  EXPECT_EQ(why_of(beside.kept)[list[0].digest], "in use");
  EXPECT_EQ(beside.removed.size(), 1u);
  reader.reset();
  EXPECT_EQ(collect_garbage(store, 1, false).removed.size(), 1u);
}

TEST_F(StoreTest, AFreshPackageIsHeldUntilItsPublisherIsDone) {
  for (const auto& entry : collect_garbage(store, 1, false).kept)
    EXPECT_TRUE(entry.why == "in use" || entry.why == "newest") << entry.why;
  EXPECT_EQ(list_packages(store).size(), 3u);
}

TEST_F(StoreTest, GarbageOfKilledRunsGoes) {
  const auto old = fs::last_write_time(store / "tmp") - std::chrono::hours(25);
  for (const char* name : {"tmp/build.1.partial", "refs/prod.2.partial"}) {
    put(store / name / "file", "x");
    fs::last_write_time(store / name, old);
  }
  put(store / "tmp/build.3.partial/file", "x");
  put(store / "tmp/sha256-ff.removed.partial/file", "x");
  collect_garbage(store, 3, true);
  EXPECT_TRUE(fs::exists(store / "tmp/build.1.partial"));
  collect_garbage(store, 3, false);
  for (const char* name : {"tmp/build.1.partial", "refs/prod.2.partial", "tmp/sha256-ff.removed.partial"})
    EXPECT_FALSE(fs::exists(store / name)) << name;
  EXPECT_TRUE(fs::exists(store / "tmp/build.3.partial")) << "someone may be at work on it";
}

TEST_F(StoreTest, WhatIsNoChannelIsPassedOver) {
  promote(store, digest(1), "prod", {"", 0});
  put(store / "refs/prod~", "an editor's copy");
  EXPECT_EQ(list_packages(store).size(), 3u);
  EXPECT_NO_THROW(collect_garbage(store, 3, true));
}

TEST_F(StoreTest, ADamagedChannelStopsTheCollection) {
  let_go();
  put(store / "refs/prod", "nonsense");
  expect_error(ErrorKind::kData, {"damaged channel"}, [&] { collect_garbage(store, 1, false); });
  EXPECT_EQ(std::distance(fs::directory_iterator(store / "packages"), fs::directory_iterator()), 3);
}

// The process is killed (SIGKILL) at every change that promote, rollback, pin and collect_garbage make. Channels must
// then point to whole packages, every package must be whole or removed, and a second run must succeed.
TEST_F(StoreTest, ValidAtEveryKillPointOfTheStore) {
  let_go();
  promote(store, digest(0), "prod", {"", 1});
  promote(store, digest(1), "prod", {"", 2});
  const fs::path clean = pair.dir / "clean";
  fs::copy(store, clean, fs::copy_options::recursive);
  const auto restore = [&] {
    remove_tree(store);
    fs::copy(clean, store, fs::copy_options::recursive);
  };
  const auto collect = [&] { collect_garbage(store, 1, false); };
  const std::vector<std::tuple<const char*, std::function<void()>, int>> actions = {
      {"promote", [&] { promote(store, digest(2), "prod", {"", 3}); }, 5},
      {"rollback", [&] { rollback(store, "prod", {"", 3}, digest(1)); }, 5},
      {"pin", [&] { pin(store, digest(2), {"", 3}); }, 4},
      {"gc", [&] { collect(); }, 20},
  };
  for (const auto& [name, action, least] : actions) {
    const int points = testing::for_each_kill_point(restore, action, [&, name = name, &action = action](int n) {
      for (const auto& entry : fs::directory_iterator(store / "packages"))
        EXPECT_NO_THROW(resolve_package(entry.path().string(), true)) << name << n;
      EXPECT_NO_THROW(resolve_package(store.string() + ":prod", true)) << name << n;
      EXPECT_NO_THROW(list_packages(store)) << name << n;
      EXPECT_NO_THROW(action()) << name << " again after kill point " << n;
      EXPECT_NO_THROW(collect()) << name << n;
      for (const auto& entry : fs::directory_iterator(store / "tmp"))
        EXPECT_EQ(entry.path().extension(), ".lock") << name << n << entry.path();
    });
    EXPECT_GE(points, least) << name;
    EXPECT_NO_THROW(resolve_package(store.string() + ":prod", true)) << name;
  }
}

// An attacker who may write to refs/ must not be able to make a publisher write into another file of the publisher.
TEST(Store, ALinkInPlaceOfAChannelsLogIsNotFollowed) {
  const Pair pair;
  const PackageOutcome made = pair.create();
  const fs::path store = pair.dir / "store", secret = pair.dir / "secret";
  put(secret, "mine\n");
  fs::create_symlink(secret, store / "refs/prod.log");
  expect_error(ErrorKind::kIo, {"refs/prod.log"}, [&] { promote(store, made.digest, "prod", {"", 1}); });
  EXPECT_EQ(get(secret), "mine\n");
  EXPECT_FALSE(fs::exists(store / "refs/prod"));
}

// A link must not lead garbage collection or a publisher out of the store.
TEST(Store, ALinkInPlaceOfADirectoryIsRefused) {
  for (const char* own : {"tmp", "refs", "pins", "packages"}) {
    const Pair pair;
    const PackageOutcome made = pair.create();
    const fs::path store = pair.dir / "store", victim = pair.dir / "victim";
    put(victim / "d.partial/file", "mine\n");
    fs::last_write_time(victim / "d.partial", fs::file_time_type::clock::now() - std::chrono::hours(50));
    if (fs::exists(store / own)) fs::rename(store / own, pair.dir / "moved");
    fs::create_directory_symlink(victim, store / own);
    const auto before = testing::contents(victim);
    const std::string where = std::string("store/") + own;
    expect_error(ErrorKind::kData, {where, "is a link"}, [&] { collect_garbage(store, 3, false); });
    expect_error(ErrorKind::kData, {where, "is a link"}, [&] { collect_garbage(store, 3, true); });
    expect_error(ErrorKind::kData, {where, "is a link"}, [&] { promote(store, made.digest, "prod", {"", 1}); });
    expect_error(ErrorKind::kData, {where, "is a link"}, [&] { pair.create(); });
    EXPECT_EQ(testing::contents(victim), before) << own;
  }
}

}  // namespace
}  // namespace specdec::deploy
