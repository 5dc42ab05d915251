#include "base/sha256.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

// Examples from FIPS 180-4.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

// RFC 4231, test cases 1 and 2.
TEST(Sha256, KeyedKnownAnswers) {
  EXPECT_EQ(to_hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Sha256, FileInBlocksEqualsTheWhole) {
  const testing::Scratch dir;
  const std::string bytes(3'000'001, 'a');
  testing::put(dir / "f", bytes);
  EXPECT_EQ(sha256_file(dir / "f"), sha256_hex(bytes));
  Sha256 parts;
  parts.update(std::string_view(bytes).substr(0, 77));
  parts.update(std::string_view(bytes).substr(77));
  EXPECT_EQ(parts.hex(), sha256_hex(bytes));
  testing::expect_error(ErrorKind::kData, {"none"}, [&] { sha256_file(dir / "none"); });
}

// The ids come from `git hash-object`.
TEST(Sha256, GitBlobIds) {
  EXPECT_EQ(git_blob_id(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(git_blob_id("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

}  // namespace
}  // namespace specdec
