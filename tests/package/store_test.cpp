#include "deploy/package/store.h"

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

  Pair pair;
  fs::path store;
  std::vector<PackageOutcome> made;
};

TEST_F(StoreTest, PromoteAndRollBackThroughHistory) {
  EXPECT_EQ(promote(store, digest(0), "prod", "first", 10).from, "");
  EXPECT_EQ(promote(store, "sha256-" + digest(1).substr(0, 10), "prod", "second", 20).from, digest(0));
  const ChannelChange third = promote(store, made[2].path.string(), "prod", "third", 30);
  EXPECT_EQ(third.from, digest(1));
  EXPECT_EQ(third.to, digest(2));
  EXPECT_FALSE(promote(store, digest(2), "prod", "again", 31).changed);
  EXPECT_EQ(get(store / "refs/prod"), digest(2) + "\n");
  EXPECT_EQ(rollback(store, "prod", "alarm", 40).to, digest(1));
  EXPECT_EQ(rollback(store, "prod", "alarm", 50).to, digest(0)) << "a rollback of a rollback goes further back, not forward";
  expect_error(ErrorKind::kData, {"had no package before"}, [&] { rollback(store, "prod", "", 60); });
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
  promote(store, digest(0), "prod", "", 1);
  promote(store, digest(1), "prod", "", 2);
  std::ofstream(store / "refs/prod.log", std::ios::app) << "{\"action\":\"prom";
  EXPECT_EQ(rollback(store, "prod", "", 3).to, digest(0));
}

TEST_F(StoreTest, RefusesWhatIsNotAWholePackageOfThisStore) {
  expect_error(ErrorKind::kUsage, {"channel"}, [&] { promote(store, digest(0), "../x", "", 0); });
  expect_error(ErrorKind::kData, {"no package"}, [&] { promote(store, std::string(64, 'f'), "prod", "", 0); });
  expect_error(ErrorKind::kData, {"not a package"}, [&] { promote(store, "nothing", "prod", "", 0); });
  expect_error(ErrorKind::kData, {"not a store"}, [&] { promote(pair.dir / "target", digest(0), "prod", "", 0); });
  expect_error(ErrorKind::kData, {"no channel 'prod'"}, [&] { rollback(store, "prod", "", 0); });
  fs::copy(made[0].path, pair.dir / "elsewhere", fs::copy_options::recursive);
  expect_error(ErrorKind::kData, {"not in the store"}, [&] { promote(store, (pair.dir / "elsewhere").string(), "prod", "", 0); });
  put(made[0].path / "draft/config.json", "{}");
  expect_error(ErrorKind::kData, {"damaged package"}, [&] { promote(store, digest(0), "prod", "", 0); });
  EXPECT_FALSE(fs::exists(store / "refs/prod"));
}

TEST_F(StoreTest, OneProcessAtATime) {
  make_directories(store / "tmp");
  const FileLock lock(store / "tmp/prod.lock");
  expect_error(ErrorKind::kNetwork, {"lock held"}, [&] { promote(store, digest(0), "prod", "", 0); });
}

TEST_F(StoreTest, TheParentIsWhatTheChannelNamed) {
  promote(store, digest(2), "prod", "", 0);
  testing::write_tiny_model(pair.dir / "draft", {.bump = 9, .vocab = 64, .hidden = 8});
  pair.bind();
  pair.write_report();
  PackageOptions options = pair.options();
  options.parent_channel = "prod";
  EXPECT_EQ(read_manifest(create_package(options, 0, {}).path).parent, digest(2));
}

TEST_F(StoreTest, ListsOldestFirstWithChannelsAndProblems) {
  promote(store, digest(1), "prod", "", 0);
  promote(store, digest(1), "canary", "", 0);
  put(made[2].path / "manifest.json", "{");
  const auto list = list_packages(store);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].digest, digest(2));  // unreadable: no date
  EXPECT_NE(list[0].problem.find("manifest.json"), std::string::npos);
  EXPECT_EQ(list[1].digest, digest(0));
  EXPECT_TRUE(list[1].channels.empty());
  EXPECT_EQ(list[2].digest, digest(1));
  EXPECT_EQ(list[2].channels, (std::vector<std::string>{"canary", "prod"}));
  EXPECT_EQ(list[2].manifest.draft_kind, "prune:1");
}

}  // namespace
}  // namespace specdec::deploy
