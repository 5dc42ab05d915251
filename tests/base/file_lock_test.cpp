#include "base/file_lock.h"

#include <unistd.h>

#include "base/file.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;
using testing::put;

TEST(FileLock, IsExclusiveAndNamesItsOwner) {
  const testing::Scratch dir;
  {
    const FileLock lock(dir / "lock");
    expect_error(ErrorKind::kNetwork, {"lock held by process " + std::to_string(::getpid())},
                 [&] { FileLock again(dir / "lock"); });
  }
  EXPECT_NO_THROW(FileLock(dir / "lock"));
}

TEST(DirectoryLock, SharedAndExclusive) {
  using Kind = DirectoryLock::Kind;
  using State = DirectoryLock::State;
  const testing::Scratch dir;
  fs::create_directory(dir / "a");
  {
    const DirectoryLock one(dir / "a", Kind::kShared), two(dir / "a", Kind::kShared);
    EXPECT_EQ(one.state(), State::kHeld);
    EXPECT_EQ(two.state(), State::kHeld);
    EXPECT_EQ(DirectoryLock(dir / "a", Kind::kExclusive).state(), State::kTaken);
    fs::rename(dir / "a", dir / "b");
    fs::create_directory(dir / "a");
    EXPECT_EQ(DirectoryLock(dir / "b", Kind::kExclusive).state(), State::kTaken) << "it went with the directory";
    EXPECT_EQ(DirectoryLock(dir / "a", Kind::kExclusive).state(), State::kHeld);
  }
  const DirectoryLock alone(dir / "b", Kind::kExclusive);
  EXPECT_EQ(alone.state(), State::kHeld);
  EXPECT_EQ(DirectoryLock(dir / "b", Kind::kShared).state(), State::kTaken);
  EXPECT_EQ(DirectoryLock(dir / "none", Kind::kShared).state(), State::kGone);
  put(dir / "file", "x");
  EXPECT_EQ(DirectoryLock(dir / "file", Kind::kShared).state(), State::kGone);
}

}  // namespace
}  // namespace specdec
