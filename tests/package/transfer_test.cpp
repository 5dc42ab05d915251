#include "deploy/package/transfer.h"

#include "base/sha256.h"
#include "deploy/package/store.h"
#include "tests/faults/points.h"
#include "tests/package/pair.h"
#include "tests/source_folder.h"

namespace specdec::deploy {
namespace {

using specdec::testing::contents;
using specdec::testing::expect_error;
using specdec::testing::get;
using specdec::testing::Pair;
using specdec::testing::put;

// Reads a package from a directory, over a simulated connection that breaks after `breaks_after` bytes.
class BreakingSource : public PackageSource {
 public:
  BreakingSource(fs::path root, uint64_t breaks_after) : root_(std::move(root)), left_(breaks_after) {}
  std::string name() const override { return "source"; }
  std::string text(const std::string& path, size_t) override {
    return fs::exists(root_ / path) ? get(root_ / path) : "";
  }
  void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) override {
    const std::string bytes = get(root_ / path);
    for (size_t at = begin; at < bytes.size(); at += 100) {
      const std::string part = bytes.substr(at, 100);
      if (part.size() > left_) throw Error(ErrorKind::kNetwork, "the line broke");
      left_ -= part.size();
      read_ += part.size();
      take(part);
    }
  }
  uint64_t bytes_read() const { return read_; }

 private:
  fs::path root_;
  uint64_t left_, read_ = 0;
};

// A destination that records the files that it receives, in order of arrival.
struct KeepingSink : PackageSink {
  std::string name() const override { return "place"; }
  bool is_public() override { return open; }
  bool begin(const ResolvedPackage&, const std::vector<PackagedFile>& files) override {
    announced = files;
    return there;
  }
  bool has(const PackagedFile& file) override { return file.path == had; }
  void put(const PackagedFile& file, const fs::path& from, const std::function<void(uint64_t)>& progress) override {
    EXPECT_EQ(sha256_file(from), file.sha256);
    EXPECT_EQ(fs::file_size(from), file.size);
    order.push_back(file.path);
    progress(file.size);
  }
  bool put_new(const PackagedFile& manifest, const fs::path& from) override {
    put(manifest, from, [](uint64_t) {});
    return true;
  }
  bool open = false, there = false;
  std::string had;
  std::vector<PackagedFile> announced;
  std::vector<std::string> order;
};

TEST(Transfer, AnUploadEndsWithTheManifest) {
  const Pair pair;
  const PackageOutcome made = pair.create();
  sign_package(made.path.string(), fs::path(source_folder()) / "tests/base/minisign/plain.key", "", 0);
  const std::vector<PackagedFile> files = read_manifest(made.path).files;
  KeepingSink sink;
  sink.had = "draft/model.safetensors";
  EXPECT_TRUE(upload_package(made.path.string(), sink, false, {}).is_new);
  ASSERT_EQ(sink.announced.size(), files.size() + 2);
  EXPECT_EQ(sink.order.size(), sink.announced.size() - 1);
  EXPECT_EQ(std::vector<std::string>(sink.order.end() - 2, sink.order.end()),
            (std::vector<std::string>{kSignatureFile, "manifest.json"}));
  EXPECT_EQ(std::count(sink.order.begin(), sink.order.end(), sink.had), 0);
  KeepingSink whole;
  whole.there = true;
  EXPECT_FALSE(upload_package(made.path.string(), whole, false, {}).is_new);
  EXPECT_TRUE(whole.order.empty());
  put(made.path / "draft/config.json", "{}");
  KeepingSink none;
  expect_error(ErrorKind::kData, {"draft/config.json"}, [&] { upload_package(made.path.string(), none, false, {}); });
  EXPECT_TRUE(none.announced.empty());
}

TEST(Transfer, APrivatePackageStaysPrivate) {
  const Pair pair;
  PackageOptions options = pair.options();
  const std::string closed = create_package(options, 0, {}).path.string();
  options.is_public = true;
  const std::string open = create_package(options, 0, {}).path.string();
  KeepingSink sink;
  sink.open = true;
  expect_error(ErrorKind::kUsage, {"place: anyone can read it", "--visibility public", "--i-understand"},
               [&] { upload_package(closed, sink, false, {}); });
  EXPECT_TRUE(sink.announced.empty());
  EXPECT_TRUE(upload_package(closed, sink, /*may_be_read=*/true, {}).is_new);
  EXPECT_TRUE(upload_package(open, sink, false, {}).is_new);
  sink.open = false;
  EXPECT_TRUE(upload_package(closed, sink, false, {}).is_new);
}

TEST(Transfer, ACopyIsThePackage) {
  const Pair pair;
  const PackageOutcome made = pair.create();
  const PackageOutcome copied = copy_package(made.path.string(), pair.dir / "other", {});
  EXPECT_TRUE(copied.is_new);
  EXPECT_EQ(copied.digest, made.digest);
  EXPECT_EQ(contents(copied.path), contents(made.path));
  EXPECT_EQ(verify_package(copied.path.string()).exit_code, 0);
  EXPECT_NE(fs::status(copied.path / "engines/vllm.sh").permissions() & fs::perms::owner_exec, fs::perms::none);
  EXPECT_FALSE(copy_package(made.path.string(), pair.dir / "other", {}).is_new);
  EXPECT_TRUE(promote(pair.dir / "other", made.digest, "prod", {"pulled", 0}).changed);
}

TEST(Transfer, ALinkInAPackageIsNotCopied) {
  const Pair pair;
  const PackageOutcome made = pair.create();
  fs::rename(made.path / "target/config.json", pair.dir / "aside");
  fs::create_symlink(pair.dir / "aside", made.path / "target/config.json");
  expect_error(ErrorKind::kData, {"target/config.json"},
               [&] { copy_package(made.path.string(), pair.dir / "other", {}); });
  EXPECT_FALSE(fs::exists(pair.dir / "other/packages" / made.path.filename()));
}

TEST(Transfer, GoesOnWhereItBroke) {
  const Pair pair;
  const PackageOutcome made = pair.create();
  uint64_t total = 0, read = 0;
  for (const PackagedFile& f : read_manifest(made.path).files) total += f.size;
  int tries = 0;
  for (bool done = false; !done; ++tries) {
    ASSERT_LT(tries, 100);
    BreakingSource source(made.path, 1500);
    try {
      done = transfer_package(source, pair.dir / "other", made.digest, {}).is_new;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kNetwork) << e.what();
      EXPECT_TRUE(list_packages(pair.dir / "other").empty());
    }
    read += source.bytes_read();
  }
  EXPECT_GT(tries, 5);
  EXPECT_EQ(read, total) << "no byte twice";
  EXPECT_EQ(contents(pair.dir / "other/packages/" / ("sha256-" + made.digest)), contents(made.path));
}

TEST(Transfer, WhatIsChangedOnTheWayHasNoName) {
  const Pair pair;
  const PackageOutcome made = pair.create();
  const fs::path other = pair.dir / "other";
  BreakingSource line(made.path, 1u << 30);
  expect_error(ErrorKind::kData, {"expected " + std::string(64, 'f')},
               [&] { transfer_package(line, other, std::string(64, 'f'), {}); });
  fs::copy(made.path, pair.dir / "evil", fs::copy_options::recursive);
  std::string weights = get(pair.dir / "evil/draft/model.safetensors");
  weights[700] ^= 1;
  put(pair.dir / "evil/draft/model.safetensors", weights);
  BreakingSource evil(pair.dir / "evil", 1u << 30);
  expect_error(ErrorKind::kData, {"draft/model.safetensors is not what the manifest says"},
               [&] { transfer_package(evil, other, made.digest, {}); });
  put(pair.dir / "evil/draft/model.safetensors", weights + "more");
  BreakingSource longer(pair.dir / "evil", 1u << 30);
  expect_error(ErrorKind::kData, {"has more than"}, [&] { transfer_package(longer, other, made.digest, {}); });
  EXPECT_TRUE(list_packages(other).empty());
  EXPECT_TRUE(copy_package(made.path.string(), other, {}).is_new) << "the right bytes replace what was left";
  EXPECT_EQ(verify_package((other / "packages" / ("sha256-" + made.digest)).string()).exit_code, 0);
}

TEST(Transfer, AStoreThatDemandsSignatures) {
  const fs::path keys = fs::path(source_folder()) / "tests/base/minisign";
  const Pair pair;
  const PackageOutcome made = pair.create();
  fs::create_directories(pair.dir / "other");
  put(pair.dir / "other/trusted.pub", get(keys / "plain.pub"));
  expect_error(ErrorKind::kData, {"not signed", "demands it"},
               [&] { copy_package(made.path.string(), pair.dir / "other", {}); });
  sign_package(made.path.string(), keys / "plain.key", "", 0);
  const PackageOutcome copied = copy_package(made.path.string(), pair.dir / "other", {});
  EXPECT_FALSE(copied.signer.empty());
  EXPECT_EQ(get(copied.path / kSignatureFile), get(made.path / kSignatureFile));
  EXPECT_TRUE(promote(pair.dir / "other", made.digest, "prod", {"", 0}, {keys / "plain.key", ""}).changed);
}

// The process is killed (SIGKILL) at every change of the file system. The receiving store must then have the whole
// package or none of it, and a second run must succeed.
TEST(Transfer, AtEveryKillPoint) {
  const Pair pair(/*in_memory=*/true);
  const PackageOutcome made = pair.create();
  const fs::path other = pair.dir / "other";
  const auto run = [&] { copy_package(made.path.string(), other, {}); };
  const int points = testing::for_each_kill_point(
      [&] { remove_tree(other); }, run,
      [&](int n) {
        if (fs::exists(other / "packages")) {
          for (const ListedPackage& p : list_packages(other))
            EXPECT_NO_THROW(resolve_package(p.path.string(), true)) << n;
        }
        EXPECT_NO_THROW(run()) << n;
        EXPECT_EQ(contents(other / "packages" / ("sha256-" + made.digest)), contents(made.path)) << n;
      });
  EXPECT_GE(points, 50);
}

// Simulates all other faults, and a power cut at each change of the file system. The package must be whole or absent, a
// transfer reported as done must stay, and a second run must succeed.
TEST(Transfer, UnderFaultsAndPowerCuts) {
  const Pair pair(/*in_memory=*/true);
  const PackageOutcome made = pair.create();
  const fs::path root = pair.dir / "root", other = root / "other",
                 arrived = other / "packages" / ("sha256-" + made.digest);
  testing::Points points;
  const auto run = [&] { copy_package(made.path.string(), other, {}); };
  const auto before = [&] {
    remove_tree(root);
    fs::create_directories(root);
  };
  const auto check = [&](bool done) {
    if (fs::exists(other / "packages"))
      for (const ListedPackage& p : list_packages(other)) EXPECT_NO_THROW(resolve_package(p.path.string(), true));
    if (done) {
      EXPECT_EQ(contents(arrived), contents(made.path));
    }
    EXPECT_NO_THROW(run());
    EXPECT_EQ(contents(arrived), contents(made.path));
  };
  testing::for_each_fault(points, before, run, check);
  EXPECT_GE(testing::for_each_power_cut(points, root, before, run, check), 50);
}

}  // namespace
}  // namespace specdec::deploy
