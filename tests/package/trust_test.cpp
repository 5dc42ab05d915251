// Tests which packages are trusted: rules of the store, links that lead to a package, signed and numbered channels.
// Also tests that a file that changed between its check and its use is noticed.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/minisign.h"
#include "base/model_directory.h"
#include "deploy/package/store.h"
#include "deploy/package/transfer.h"
#include "tests/package/pair.h"
#include "tests/source_folder.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::get;
using testing::Pair;
using testing::put;

const fs::path kKeys = fs::path(source_folder()) / "tests/base/minisign";

class TrustTest : public ::testing::Test {
 protected:
  TrustTest() {
    ::setenv("XDG_STATE_HOME", (pair.dir / "state").c_str(), 1);
    first = pair.create();
    testing::write_tiny_model(pair.dir / "draft", {.bump = 3, .vocab = 64, .hidden = 8});
    pair.bind();
    pair.write_report();
    second = pair.create(5);
  }
  ~TrustTest() override { ::unsetenv("XDG_STATE_HOME"); }

  void sign(const PackageOutcome& package) { sign_package(package.path.string(), kKeys / "plain.key", "", 1); }
  void demand(const fs::path& where) { put(where / "trusted.pub", get(kKeys / "plain.pub")); }
  std::string named(const std::string& channel) {
    return resolve_package(store.string() + ":" + channel, false)->digest;
  }
  void refused(const fs::path& argument) {
    SCOPED_TRACE(argument.string());
    expect_error(ErrorKind::kData, {"not signed", "demands it"}, [&] { resolve_package(argument.string(), false); });
    expect_error(ErrorKind::kData, {"not signed", "demands it"}, [&] { resolve_model(argument.string()); });
  }
  // Signs both packages and promotes one after the other in a store that requires signatures. Returns the channel's
  // file as it was after the first promotion.
  std::string promote_both() {
    sign(first);
    sign(second);
    demand(store);
    promote(store, first.digest, "prod", {"", 1}, signer);
    EXPECT_EQ(named("prod"), first.digest);
    const std::string old = get(store / "refs/prod");
    promote(store, second.digest, "prod", {"", 2}, signer);
    EXPECT_EQ(named("prod"), second.digest);
    return old;
  }

  Pair pair;
  PackageOutcome first, second;
  const fs::path store = pair.dir / "store";
  const ChannelSigner signer{kKeys / "plain.key", ""};
};

// ---- trusted.pub must not be bypassed through a link ----

TEST_F(TrustTest, IsOfWhatWasOpenedNotOfItsSpelling) {
  demand(store);
  const fs::path package = first.path, name = package.filename();
  refused(package);
  fs::create_directory_symlink(package, pair.dir / "current");
  refused(pair.dir / "current");
  refused(pair.dir / "current/");
  fs::create_directory_symlink("current", pair.dir / "to-current");
  refused(pair.dir / "to-current");
  fs::create_directory_symlink(store / "packages", pair.dir / "linked");
  refused(pair.dir / "linked" / name);
  refused(pair.dir / "linked" / ".." / "packages" / name);
  fs::create_directory_symlink(store, pair.dir / "store-link");
  refused(pair.dir / "store-link" / "packages" / name);
  const fs::path before = fs::current_path();
  fs::current_path(package);
  refused(".");
  fs::current_path(before);
}

TEST_F(TrustTest, AStoreAppliesToWhatLiesElsewhereToo) {
  // A store's trusted.pub must apply if packages/ is a link, if an entry of packages/ is a link, and if a link leads to
  // an entry of packages/.
  const fs::path elsewhere = pair.dir / "elsewhere";
  fs::create_directories(elsewhere);
  fs::copy(store / "packages", elsewhere / "folder", fs::copy_options::recursive);
  const fs::path name = first.path.filename(), other = pair.dir / "other";
  fs::create_directories(other);
  fs::create_directory_symlink(elsewhere / "folder", other / "packages");
  demand(other);
  refused(other / "packages" / name);
  refused(fs::path(other.string() + ":" + name.string()));
  fs::create_directory_symlink(other / "packages" / name, pair.dir / "current");
  refused(pair.dir / "current");
  const fs::path third = pair.dir / "third";
  fs::create_directories(third / "packages");
  fs::create_directory_symlink(elsewhere / "folder" / name, third / "packages" / name);
  demand(third);
  refused(third / "packages" / name);
  // A store inside another store's packages/: the trusted.pub of both must accept the package.
  const fs::path inner = third / "packages/inner";
  fs::copy(store, inner, fs::copy_options::recursive);
  refused(inner / "packages" / name);
  // A copy outside of every store is accepted, because no trusted.pub applies.
  EXPECT_TRUE(resolve_package((elsewhere / "folder" / name).string(), true));
  EXPECT_TRUE(resolve_package(first.path.string(), true)) << "and the first store demands nothing";
}

TEST_F(TrustTest, AnEntryThatLeadsToAnotherPackageIsRefused) {
  sign(first), sign(second);
  demand(store);
  promote(store, second.digest, "prod", {"", 1}, signer);
  EXPECT_EQ(named("prod"), second.digest);
  const fs::path entry = second.path;
  fs::rename(entry, pair.dir / "aside");
  fs::create_directory_symlink(first.path.filename(), entry);
  for (const std::string& argument :
       {store.string() + ":prod", (store / "refs/prod").string(),
        store.string() + ":sha256-" + second.digest.substr(0, 12), entry.string(), entry.string() + "/"}) {
    SCOPED_TRACE(argument);
    expect_error(ErrorKind::kData, {"a link leads to another package", first.digest.substr(0, 12)},
                 [&] { locate_package(argument); });
    expect_error(ErrorKind::kData, {"a link leads to another package"}, [&] { resolve_model(argument); });
  }
}

TEST_F(TrustTest, AnotherTargetMayBeAllowedAndNothingElse) {
  sign(first);
  demand(store);
  fs::remove_all(first.path / "target");
  testing::write_tiny_model(first.path / "target", {.layers = 1, .bump = 9, .vocab = 64, .hidden = 8});
  EXPECT_FALSE(resolve_model(first.path.string()).stale_reason.empty());
  const fs::path weights = first.path / "draft/model.safetensors";
  std::string bytes = get(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put(weights, bytes);
  expect_error(ErrorKind::kData, {"draft/model.safetensors was changed"}, [&] { resolve_model(first.path.string()); });
}

TEST_F(TrustTest, LinksInACircleAreAnError) {
  fs::create_directory_symlink("b", pair.dir / "a");
  fs::create_directory_symlink("a", pair.dir / "b");
  expect_error(ErrorKind::kData, {"circle"}, [&] { follow_links(pair.dir / "a"); });
}

// ---- channels are signed and numbered, and an older state is refused ----

TEST_F(TrustTest, ChannelsAreSignedAndNumberedWhereTheStoreDemandsIt) {
  promote(store, first.digest, "prod", {"", 1});
  EXPECT_EQ(get(store / "refs/prod"), first.digest + "\n") << "a store that demands nothing is as before";
  sign(first);
  sign(second);
  demand(store);
  expect_error(ErrorKind::kData,
               {"refs/prod: not signed", "specdec package promote sha256-" + first.digest, "--channel prod --key"},
               [&] { named("prod"); });
  expect_error(ErrorKind::kUsage, {"--key", "trusted.pub demands signed channels"},
               [&] { promote(store, second.digest, "prod", {"", 2}); });
  const ChannelChange mended =
      promote(store, first.digest, "prod", {"", 2}, signer);  // the command that the message names
  EXPECT_TRUE(mended.changed);
  EXPECT_EQ(mended.number, 1);
  EXPECT_EQ(named("prod"), first.digest);
  EXPECT_FALSE(promote(store, first.digest, "prod", {"", 2}, signer).changed);
  EXPECT_EQ(promote(store, second.digest, "prod", {"", 3}, signer).number, 2);
  EXPECT_EQ(named("prod"), second.digest);
  EXPECT_EQ(read_channel(store, "prod"), second.digest);
  EXPECT_EQ(rollback(store, "prod", {"", 4}, "", signer).number, 3) << "going back is a new number";
  EXPECT_EQ(named("prod"), first.digest);
  EXPECT_NE(get(store / "refs/prod.log").find("\"number\":3"), std::string::npos);
}

TEST_F(TrustTest, AnOlderStateOfAChannelIsRefused) {
  const std::string old = promote_both();
  put(store / "refs/prod", old);  // correctly signed, but an older state
  expect_error(ErrorKind::kData, {"an older state of the channel", "number 1", "number 2", "rollback --key"},
               [&] { named("prod"); });
  fs::create_directory_symlink(store, pair.dir / "other-way");
  expect_error(ErrorKind::kData, {"an older state of the channel"},
               [&] { resolve_package((pair.dir / "other-way").string() + ":prod", false); });
  expect_error(ErrorKind::kData, {"an older state of the channel"},
               [&] { resolve_package((store / "refs/prod").string(), false); });
  // A promotion with a signing key gets a number above the highest number seen so far.
  EXPECT_EQ(promote(store, second.digest, "prod", {"", 3}, signer).number, 3);
  EXPECT_EQ(named("prod"), second.digest);
  // A record for another package with a number that was seen before is refused.
  put(store / "refs/prod", to_text(sign_channel("prod", first.digest, 3, 9, signer)));
  expect_error(ErrorKind::kData, {"an older state of the channel", "number 3"}, [&] { named("prod"); });
  // A record that was taken from another channel, cut off or forged is refused.
  put(store / "refs/prod", to_text(sign_channel("canary", second.digest, 9, 9, signer)));
  expect_error(ErrorKind::kData, {"another channel or another package"}, [&] { named("prod"); });
  std::string text = to_text(sign_channel("prod", second.digest, 9, 9, signer));
  text.replace(text.find("\"number\":9"), 10, "\"number\":8");
  put(store / "refs/prod", text);
  expect_error(ErrorKind::kData, {"signature"}, [&] { named("prod"); });
  put(store / "refs/prod", first.digest + "\n{\n");
  expect_error(ErrorKind::kData, {"refs/prod"}, [&] { named("prod"); });
  put(store / "refs/prod", second.digest + "\n");
  expect_error(ErrorKind::kData, {"not signed"}, [&] { named("prod"); });
  fs::remove(store / "trusted.pub");
  expect_error(ErrorKind::kData, {"demanded signatures when it was last seen", "trusted.pub is gone"},
               [&] { named("prod"); });
  fs::remove_all(pair.dir / "state");
  EXPECT_EQ(named("prod"), second.digest) << "who has seen nothing cannot know";
}

// The highest number of a channel's records is also remembered per signing key, not only per path of the store, because
// a store can be moved.
TEST_F(TrustTest, AnOlderStateIsRefusedAfterTheStoreWasMoved) {
  const std::string old = promote_both();
  const fs::path moved = pair.dir / "moved";
  fs::rename(store, moved);
  put(moved / "refs/prod", old);
  const auto there = [&] { return resolve_package(moved.string() + ":prod", false)->digest; };
  expect_error(ErrorKind::kData, {"an older state of the channel", "number 1", "number 2", "seen in " + store.string()},
               there);
  EXPECT_EQ(promote(moved, first.digest, "prod", {"", 3}, signer).number, 3) << "goes on above what was seen";
  EXPECT_EQ(there(), first.digest);
  // A copy with an older state than the store, which still exists, gives a warning instead of an error.
  const fs::path copy = pair.dir / "copy";
  fs::copy(moved, copy, fs::copy_options::recursive);
  put(copy / "refs/prod", old);
  std::vector<std::string> said;
  set_log_sink([&](LogLevel level, const std::string& text) {  // also gets messages that earlier tests left unlogged
    if (level == LogLevel::kWarn && text.find(copy.string()) != std::string::npos) said.push_back(text);
  });
  EXPECT_EQ(resolve_package(copy.string() + ":prod", false)->digest, first.digest);
  set_log_sink({});
  ASSERT_EQ(said.size(), 1u) << ::testing::PrintToString(said);
  EXPECT_NE(said[0].find("it lags behind"), std::string::npos) << said[0];
}

TEST_F(TrustTest, WhereNothingCanBeRememberedAWarningSaysSo) {
  sign(first);
  demand(store);
  put(pair.dir / "state", "a file in the way");
  std::vector<std::string> said;
  set_log_sink([&](LogLevel level, const std::string& text) {
    if (level == LogLevel::kWarn) said.push_back(text);
  });
  promote(store, first.digest, "prod", {"", 1}, signer);
  EXPECT_EQ(named("prod"), first.digest);
  set_log_sink({});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("cannot be remembered"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("XDG_STATE_HOME"), std::string::npos);
}

TEST_F(TrustTest, TheChannelsSignatureComesAlong) {
  sign(first);
  sign(second);
  demand(store);
  promote(store, first.digest, "prod", {"", 1}, signer);
  const fs::path other = pair.dir / "other";
  fs::create_directories(other);
  demand(other);
  const auto bring = [&] {
    const PackageOutcome copied = copy_package(store.string() + ":prod", other, {});
    return promote(other, copied.digest, "prod", {"", 2}, {"", "", copied.channel});
  };
  EXPECT_EQ(bring().number, 1);
  EXPECT_EQ(get(other / "refs/prod"), get(store / "refs/prod"));
  EXPECT_EQ(resolve_package(other.string() + ":prod", true)->digest, first.digest);
  const ChannelRecord old = read_channel_record(store, "prod");
  promote(store, second.digest, "prod", {"", 2}, signer);
  EXPECT_EQ(bring().number, 2);
  expect_error(ErrorKind::kData, {"an older state of the channel"},
               [&] { promote(other, first.digest, "prod", {"", 3}, {"", "", old}); });
  expect_error(ErrorKind::kUsage, {"--key"}, [&] { promote(other, first.digest, "canary", {"", 3}, {"", "", old}); });
}

// ---- a file that changed after its digest was checked is refused ----

TEST_F(TrustTest, WhatChangesAfterTheCheckIsNoticed) {
  const fs::path weights = first.path / "draft/model.safetensors";
  const auto checked = [&] { return resolve_model(first.path.string()).verified; };
  EXPECT_NO_THROW(checked()->require_unchanged());
  const auto noticed = [&](const char* what, const std::function<void()>& change, const std::function<void()>& undo) {
    const auto verified = checked();
    change();
    SCOPED_TRACE(what);
    expect_error(ErrorKind::kData, {"was changed after it had been checked"}, [&] { verified->require_unchanged(); });
    undo();
    expect_error(ErrorKind::kData, {"was changed after it had been checked"},
                 [&] { verified->require_unchanged(); });  // changed, then changed back
    EXPECT_NO_THROW(checked()->require_unchanged());
  };
  const std::string bytes = get(weights);
  struct stat info{};
  ASSERT_EQ(::stat(weights.c_str(), &info), 0);
  const auto write_in_place = [&](char c) {
    const int fd = ::open(weights.c_str(), O_WRONLY);
    EXPECT_EQ(::pwrite(fd, &c, 1, 500), 1);
    const timespec times[2] = {info.st_atim, info.st_mtim};
    EXPECT_EQ(::futimens(fd, times), 0);
    ::close(fd);
  };
  noticed(
      "written in place, its time put back", [&] { write_in_place(static_cast<char>(bytes[500] ^ 1)); },
      [&] { write_in_place(bytes[500]); });
  noticed(
      "another file for a moment", [&] { fs::rename(weights, pair.dir / "aside"), put(weights, bytes); },
      [&] { fs::rename(pair.dir / "aside", weights); });
}

TEST_F(TrustTest, SmallFilesAreCheckedBeforeTheyAreRead) {
  const auto package = *locate_package(first.path.string());
  EXPECT_NO_THROW(verify_small_files(package, 1 << 20)->require_unchanged());
  put(first.path / "target/tokenizer_config.json", R"({"chat_template": "{{ evil }}"})");
  expect_error(ErrorKind::kData, {"target/tokenizer_config.json was changed"},
               [&] { verify_small_files(package, 1 << 20); });
}

}  // namespace
}  // namespace specdec::deploy
