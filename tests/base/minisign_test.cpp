#include "base/minisign.h"

#include "tests/base/scratch.h"
#include "tests/source_folder.h"

namespace specdec {
namespace {

using testing::expect_error;
using testing::get;
using testing::put;

// Files made with minisign 0.11; see tests/base/minisign/README.md.
const fs::path kFiles = fs::path(source_folder()) / "tests/base/minisign";
std::string file(const std::string& name) { return get(kFiles / name); }

TEST(Minisign, TakesWhatTheToolMade) {
  const auto plain = read_minisign_keys(kFiles / "plain.pub"), locked = read_minisign_keys(kFiles / "locked.pub");
  EXPECT_EQ(verify_minisign(file("message.txt"), file("hashed.minisig"), plain, "x").trusted_comment,
            "made for a test");
  EXPECT_EQ(verify_minisign(file("message.txt"), file("legacy.minisig"), plain, "x").trusted_comment,
            "made for a test, legacy");
  EXPECT_EQ(verify_minisign(file("message.txt"), file("locked.minisig"), locked, "x").signer, locked[0].name());
  EXPECT_NE(file("plain.pub").find("public key " + plain[0].name()), std::string::npos)
      << "the name is the one that minisign prints";
  expect_error(ErrorKind::kData, {"not among the trusted ones", locked[0].name()},
               [&] { verify_minisign(file("message.txt"), file("locked.minisig"), plain, "x"); });
}

TEST(Minisign, RefusesEveryChangedByte) {
  const auto keys = read_minisign_keys(kFiles / "plain.pub");
  for (const char* name : {"hashed.minisig", "legacy.minisig"}) {
    const std::string good = file(name), message = file("message.txt");
    expect_error(ErrorKind::kData, {"changed after signing"}, [&] { verify_minisign(message + "x", good, keys, "x"); });
    // The untrusted comment on the first line is not signed, so the test starts at the second line.
    int changed = 0;
    for (size_t at = good.find('\n') + 1; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = bad[at] == 'A' ? 'B' : 'A';
      if (bad[at] == good[at] || good[at] == '\n') continue;
      ++changed;
      EXPECT_THROW(verify_minisign(message, bad, keys, "x"), Error) << name << " byte " << at;
    }
    EXPECT_GT(changed, 200);
    for (size_t cut = 0; cut + 1 < good.size(); cut += 7)
      EXPECT_THROW(verify_minisign(message, good.substr(0, cut), keys, "x"), Error) << cut;
  }
}

TEST(Minisign, SignsForTheTool) {
  const testing::Scratch dir;
  const auto keys = read_minisign_keys(kFiles / "plain.pub");
  const std::string made = sign_minisign("bytes\n", kFiles / "plain.key", "", "a\tcomment");
  EXPECT_EQ(verify_minisign("bytes\n", made, keys, "x").trusted_comment, "a\tcomment");
  EXPECT_EQ(made, sign_minisign("bytes\n", kFiles / "plain.key", "", "a\tcomment")) << "Ed25519 draws nothing";
  EXPECT_EQ(sign_minisign(file("message.txt"), kFiles / "plain.key", "", "made for a test").substr(made.find('\n')),
            file("hashed.minisig").substr(file("hashed.minisig").find('\n')))
      << "the very bytes of minisign";
  if (std::system("command -v minisign > /dev/null") != 0)
    GTEST_SKIP() << "no minisign here: the committed files alone";
  put(dir / "m", "bytes\n");
  put(dir / "m.minisig", made);
  EXPECT_EQ(
      std::system(
          ("minisign -q -V -p '" + (kFiles / "plain.pub").string() + "' -m '" + (dir / "m").string() + "'").c_str()),
      0);
}

TEST(Minisign, EncryptedKeys) {
  // A key that minisign itself encrypted needs 1 GiB of memory and seconds; tests/e2e/package_test.py signs with one.
  const std::string made = sign_minisign(file("message.txt"), kFiles / "cheap.key", "correct horse", "made for a test");
  EXPECT_EQ(made.substr(made.find('\n')), file("hashed.minisig").substr(file("hashed.minisig").find('\n')));
  expect_error(ErrorKind::kConfig, {"is encrypted", "--passphrase-file"},
               [] { sign_minisign("x", kFiles / "cheap.key", "", "t"); });
  expect_error(ErrorKind::kConfig, {"the passphrase is another"},
               [] { sign_minisign("x", kFiles / "cheap.key", "battery staple", "t"); });
}

TEST(Minisign, WhatIsNoKey) {
  const testing::Scratch dir;
  expect_error(ErrorKind::kData, {"no public key"}, [] { parse_minisign_keys("untrusted comment: none\n", "x"); });
  expect_error(ErrorKind::kData, {"expected public keys", "hello"}, [] { parse_minisign_keys("hello", "x"); });
  EXPECT_EQ(parse_minisign_keys(file("plain.pub") + "# another\n" + file("locked.pub"), "x").size(), 2u);
  expect_error(ErrorKind::kConfig, {"not a secret key"}, [] { sign_minisign("x", kFiles / "plain.pub", "", "t"); });
  expect_error(ErrorKind::kUsage, {"one line"}, [] { sign_minisign("x", kFiles / "plain.key", "", "a\nb"); });
  std::string key = file("plain.key");
  key[key.find('\n') + 120] ^= 1;
  put(dir / "damaged.key", key);
  expect_error(ErrorKind::kConfig, {"key is damaged"}, [&] { sign_minisign("x", dir / "damaged.key", "", "t"); });
}

}  // namespace
}  // namespace specdec
