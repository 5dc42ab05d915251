// Runs publishers, promoters, readers and garbage collections as separate processes on one store.
#include <thread>

#include "deploy/package/store.h"
#include "tests/package/pair.h"

namespace specdec::deploy {
namespace {

using specdec::testing::Pair;

// Repeats f() until no other process holds the lock. Any other error is rethrown and ends the child.
void until_free(const std::function<void()>& f) {
  for (;;) {
    try {
      return f();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kNetwork) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

pid_t spawn(const std::function<void()>& f) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    f();
    ::_exit(0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "process: %s\n", e.what());
    ::_exit(1);
  }
}

// Publishes a new draft if `round` is even, and the same package again in the next round.
void publish(const fs::path& root, const fs::path& store, int publisher, int round) {
  const fs::path work = root / ("publisher-" + std::to_string(publisher));
  fs::create_directories(work);
  PackageOptions options;
  options.target = root / "target";
  options.draft = work / "draft";
  options.report = work / "report.json";
  options.store = store;
  testing::write_tiny_model(
      options.draft, {.bump = publisher * 16 + round / 2, .vocab = 64, .hidden = 8});  // the same draft for two rounds
  const Fingerprint target = fingerprint_model(options.target);
  testing::put(options.draft / "specdec.json", to_json(DraftBinding{target, "prune:1", "ce", Json::object()}).dump());
  testing::put(options.report,
               to_json(testing::sample_report(target, fingerprint_model(options.draft), Verdict::kPass)).dump());
  until_free([&] {
    const PackageOutcome made = create_package(options, 1795262400 + round, {});
    if (made.exit_code != 0) throw Error(ErrorKind::kInternal, made.reason);
    until_free([&] { promote(store, made.digest, "prod", {"", 1795262400 + round}); });
    if (round % 3 == 2)
      until_free(
          [&] { promote(store, made.digest, "channel-" + std::to_string(publisher), {"", 1795262400 + round}); });
  });
}

TEST(Race, EveryReaderSeesAWholePackage) {
  constexpr int kPublishers = 4, kRounds = 6;
  Pair pair(/*in_memory=*/true);
  const fs::path store = pair.dir / "store", done = pair.dir / "done";
  promote(store, pair.create().digest, "prod", {"first", 0});
  std::vector<pid_t> publishers, others;
  for (int p = 0; p < kPublishers; ++p)
    publishers.push_back(spawn([&] {
      for (int round = 0; round < kRounds; ++round) publish(pair.dir.root(), store, p, round);
    }));
  for (int r = 0; r < 3; ++r)
    others.push_back(spawn([&] {
      std::set<std::string> seen;
      for (int looks = 0; looks < 20 || !fs::exists(done); ++looks) {
        const auto package = resolve_package(store.string() + ":prod", true);
        if (!package || package->root.filename() != "sha256-" + package->digest)
          throw Error(ErrorKind::kInternal, "no package");
        verify_files(package->root, package->manifest, true);  // complete, although garbage was collected meanwhile
        list_packages(store);
        seen.insert(package->digest);
      }
      if (seen.size() < 3) throw Error(ErrorKind::kInternal, "a reader that saw nothing change proves nothing");
    }));
  others.push_back(spawn([&] {
    while (!fs::exists(done)) try {
        until_free([&] { rollback(store, "prod", {"race", 1}); });
      } catch (const Error& e) {  // there is no earlier package, or collect_garbage() has removed it
        if (std::string(e.what()).find("no package") == std::string::npos) throw;
      }
  }));
  for (int g = 0; g < 2; ++g)
    others.push_back(spawn([&] {
      size_t removed = 0;
      while (!fs::exists(done)) until_free([&] { removed += collect_garbage(store, 1, false).removed.size(); });
      testing::put(pair.dir / ("removed-" + std::to_string(g)), std::to_string(removed));
    }));
  const auto wait_for = [](const std::vector<pid_t>& children) {
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
  };
  wait_for(publishers);
  testing::put(done, "");
  wait_for(others);

  const int removed = std::stoi(testing::get(pair.dir / "removed-0")) + std::stoi(testing::get(pair.dir / "removed-1"));
  EXPECT_GT(removed, 4) << "the collections had something to do";
  for (const ListedPackage& package : list_packages(store))
    EXPECT_NO_THROW(resolve_package(package.path.string(), true)) << package.problem;
  for (int p = 0; p < kPublishers; ++p)
    EXPECT_TRUE(resolve_package(store.string() + ":channel-" + std::to_string(p), true));
  EXPECT_EQ(testing::contents(store / "tmp").size(), 6u) << "locks alone: gc, prod and one a publisher";
}

}  // namespace
}  // namespace specdec::deploy
