#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <ctime>

#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;
using testing::get;
using testing::put;

void fill_new(const fs::path& tmp) {
  write_file_atomic(tmp / "a", "new a");
  make_directories(tmp / "sub");
  write_file_atomic(tmp / "sub" / "b", std::string(3000, 'n'));
}
bool is_new(const fs::path& p) { return get(p / "a") == "new a" && get(p / "sub" / "b") == std::string(3000, 'n'); }

TEST(File, ReadsRegularFilesOnlyAndWithinTheLimit) {
  const testing::Scratch dir;
  put(dir / "f", "12345");
  put(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "f"), "12345");
  EXPECT_EQ(read_file(dir / "empty"), "");
  EXPECT_EQ(read_file(dir / "f", 5), "12345");
  expect_error(ErrorKind::kConfig, {"f", "5 bytes, the limit is 4"}, [&] { read_file(dir / "f", 4, ErrorKind::kConfig); });
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  fs::create_symlink("loop", dir / "loop");
  expect_error(ErrorKind::kModel, {"cannot open"}, [&] { read_file(dir / "none", 9, ErrorKind::kModel); });
  expect_error(ErrorKind::kModel, {"cannot open"}, [&] { read_file(dir / "f" / "below", 9, ErrorKind::kModel); });
  expect_error(ErrorKind::kModel, {"cannot open"}, [&] { read_file(dir / "loop", 9, ErrorKind::kModel); });
  expect_error(ErrorKind::kModel, {"a directory"}, [&] { read_file(dir.root(), 9, ErrorKind::kModel); });
  expect_error(ErrorKind::kModel, {"pipe"}, [&] { read_file(dir / "fifo", 9, ErrorKind::kModel); });
  expect_error(ErrorKind::kModel, {"device"}, [] { read_file("/dev/zero", 9, ErrorKind::kModel); });
}

TEST(File, UnreadableIsIo) {
  const testing::Scratch dir;
  put(dir / "f", "x");
  fs::permissions(dir.root(), fs::perms::all);
  fs::permissions(dir / "f", fs::perms::none);
  const int code = testing::in_child(nullptr, "", [&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(50);  // permissions do not bind root
    read_file(dir / "f");
  });
  EXPECT_EQ(code, 74);
}

TEST(File, TruncationWhileReadIsAnError) {
  const testing::Scratch dir;
  put(dir / "f", std::string(10000, 'x'));
  const InputFile file(dir / "f");
  std::vector<std::byte> out(100);
  EXPECT_NO_THROW(file.read(9900, out));
  expect_error(ErrorKind::kModel, {"the file has 10000"}, [&] { file.read(9901, out); });
  expect_error(ErrorKind::kModel, {"the file has 10000"}, [&] { file.read(UINT64_MAX - 5, out); });
  fs::resize_file(dir / "f", 50);
  expect_error(ErrorKind::kModel, {"shorter while it was read"}, [&] { file.read(0, out); });
}

TEST(File, OutputFileKeepsNothingUnlessFinished) {
  const testing::Scratch dir;
  const std::string big(2'500'000, 'y');
  {
    OutputFile file(dir / "f");
    file.write("head");
    file.write(big);
    file.write("tail");
    file.finish();
    EXPECT_EQ(file.bytes_written(), big.size() + 8);
    expect_error(ErrorKind::kInternal, {"finished"}, [&] { file.write("x"); });
  }
  EXPECT_EQ(get(dir / "f"), "head" + big + "tail");
  { OutputFile(dir / "g").write("x"); }
  EXPECT_FALSE(fs::exists(dir / "g"));
  expect_error(ErrorKind::kIo, {"cannot create"}, [&] { OutputFile(dir / "none" / "g"); });
}

TEST(File, AtomicWriteIsOldOrNewAtEveryKillPoint) {
  const testing::Scratch dir;
  const std::string fresh(5000, 'f');
  const int points = testing::for_each_kill_point([&] { put(dir / "f", "old"); }, [&] { write_file_atomic(dir / "f", fresh); },
                                                  [&](int n) {
                                                    const std::string found = get(dir / "f");
                                                    EXPECT_TRUE(found == "old" || found == fresh) << n;
                                                  });
  EXPECT_EQ(points, 4);  // write, fsync, rename, fsync of the directory
  EXPECT_EQ(get(dir / "f"), fresh);
  remove_partials(dir.root(), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.root()), fs::directory_iterator()), 1);
}

TEST(File, FullDiskIsAnErrorThatLeavesTheOldFile) {
  const testing::Scratch dir;
  put(dir / "f", "old");
  EXPECT_EQ(testing::in_child("SPECDEC_ENOSPC_AT", "1", [&] { write_file_atomic(dir / "f", "new"); }), 74);
  EXPECT_EQ(get(dir / "f"), "old");
  EXPECT_EQ(testing::in_child("SPECDEC_ENOSPC_AT", "2", [&] { write_file_atomic(dir / "f", "new"); }), 0);
  EXPECT_EQ(get(dir / "f"), "new");
  for (int n = 1; n <= 2; ++n)
    EXPECT_EQ(testing::in_child("SPECDEC_ENOSPC_AT", std::to_string(n), [&] { publish_directory(dir / "d", fill_new); }), 74);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.root()), fs::directory_iterator()), 1) << "only f: nothing half-made is left";
}

TEST(File, PublishNeverReplaces) {
  const testing::Scratch dir;
  EXPECT_TRUE(publish_directory(dir / "deep/er/d/", fill_new));
  EXPECT_TRUE(is_new(dir / "deep/er/d"));
  EXPECT_FALSE(publish_directory(dir / "deep/er/d", [](const fs::path& tmp) { write_file_atomic(tmp / "a", "other"); }));
  EXPECT_TRUE(is_new(dir / "deep/er/d"));
  expect_error(ErrorKind::kData, {"from fill"}, [&] { publish_directory(dir / "e", [](const fs::path&) { throw Error(ErrorKind::kData, "from fill"); }); });
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "deep/er"), fs::directory_iterator()), 1);
  EXPECT_FALSE(fs::exists(dir / "e"));
}

TEST(File, PublishedDirectoryIsWholeOrAbsentAtEveryKillPoint) {
  const testing::Scratch dir;
  const int points = testing::for_each_kill_point([&] { remove_tree(dir / "s"); }, [&] { publish_directory(dir / "s" / "d", fill_new); },
                                                  [&](int n) { EXPECT_TRUE(!fs::exists(dir / "s" / "d") || is_new(dir / "s" / "d")) << n; });
  EXPECT_GE(points, 10);
  EXPECT_TRUE(is_new(dir / "s" / "d"));
}

TEST(File, ReplacedDirectoryIsOldOrNewAtEveryKillPoint) {
  const testing::Scratch dir;
  int olds = 0, news = 0;
  const auto make_old = [&] {
    remove_tree(dir / "d");
    remove_partials(dir.root(), 0);
    put(dir / "d" / "a", "old a");
    put(dir / "d" / "gone", "x");
  };
  const auto check = [&](int n) {
    const bool whole_old = get(dir / "d" / "a") == "old a" && fs::exists(dir / "d" / "gone");
    (whole_old ? olds : news)++;
    EXPECT_TRUE(whole_old || (is_new(dir / "d") && !fs::exists(dir / "d" / "gone"))) << n;
  };
  testing::for_each_kill_point(make_old, [&] { replace_directory(dir / "d", fill_new); }, check);
  EXPECT_GT(olds, 5);
  EXPECT_GT(news, 2);
  EXPECT_TRUE(is_new(dir / "d"));
  EXPECT_FALSE(fs::exists(dir / "d" / "gone"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.root()), fs::directory_iterator()), 1);
}

TEST(File, RemovesOldPartialsOnly) {
  const testing::Scratch dir;
  put(dir / "keep", "x");
  put(dir / "a.0123.partial" / "f", "x");
  put(dir / "b.4567.partial", "x");
  remove_partials(dir.root(), 3600);
  EXPECT_TRUE(fs::exists(dir / "b.4567.partial"));
  const timespec old[2] = {{std::time(nullptr) - 7200, 0}, {std::time(nullptr) - 7200, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir / "a.0123.partial").c_str(), old, 0), 0);
  remove_partials(dir.root(), 3600);
  EXPECT_FALSE(fs::exists(dir / "a.0123.partial"));
  EXPECT_TRUE(fs::exists(dir / "b.4567.partial"));
  remove_partials(dir / "absent", 0);
}

TEST(File, RemoveTreeDoesNotFollowLinks) {
  const testing::Scratch dir;
  put(dir / "outside" / "f", "x");
  fs::create_directories(dir / "tree");
  fs::create_directory_symlink(dir / "outside", dir / "tree" / "link");
  remove_tree(dir / "tree");
  EXPECT_FALSE(fs::exists(dir / "tree"));
  EXPECT_TRUE(fs::exists(dir / "outside" / "f"));
}

TEST(File, AppendedLineStartsFreshAfterATornOne) {
  const testing::Scratch dir;
  append_line(dir / "log", "one");
  EXPECT_EQ(testing::in_child("SPECDEC_KILL_AT", "1", [&] { append_line(dir / "log", "torn-line"); }), 128 + SIGKILL);
  append_line(dir / "log", "two");
  EXPECT_EQ(get(dir / "log"), "one\ntorn-\ntwo\n");
  EXPECT_EQ(testing::in_child("SPECDEC_ENOSPC_AT", "1", [&] { append_line(dir / "log", "xx"); }), 74);
}

TEST(File, CopyIsWholeAndFollowsLinks) {
  const testing::Scratch dir;
  put(dir / "f", std::string(2'100'000, 'c'));
  fs::create_symlink(dir / "f", dir / "link");
  copy_regular_file(dir / "link", dir / "g");
  EXPECT_EQ(get(dir / "g"), get(dir / "f"));
  EXPECT_FALSE(fs::is_symlink(dir / "g"));
  expect_error(ErrorKind::kModel, {"cannot open"}, [&] { copy_regular_file(dir / "none", dir / "h", ErrorKind::kModel); });
  EXPECT_FALSE(fs::exists(dir / "h"));
}

TEST(File, LockIsExclusiveAndNamesItsOwner) {
  const testing::Scratch dir;
  {
    const FileLock lock(dir / "lock");
    expect_error(ErrorKind::kNetwork, {"lock held by process " + std::to_string(::getpid())}, [&] { FileLock again(dir / "lock"); });
  }
  EXPECT_NO_THROW(FileLock(dir / "lock"));
}

TEST(File, FreeSpaceOfAPathThatIsNotThereYet) { EXPECT_GT(free_disk_bytes(testing::Scratch().root() / "a/b/c"), 0u); }

TEST(File, AWriterThatResumesAppendsAndLeavesItsWork) {
  const testing::Scratch dir;
  put(dir / "f", "begun ");
  { OutputFile(dir / "f", OutputFile::Open::kResume).write(std::string(2 << 20, 'x')); }
  EXPECT_EQ(get(dir / "f").substr(0, 8), "begun xx");
  OutputFile more(dir / "f", OutputFile::Open::kResume);
  more.write("end");
  more.finish();
  EXPECT_TRUE(get(dir / "f").ends_with("xend"));
  { OutputFile(dir / "g").write("gone"); }
  EXPECT_FALSE(fs::exists(dir / "g"));
}

TEST(File, LinksAreReplacedInOneRename) {
  const testing::Scratch dir;
  put(dir / "sub" / "a", "a");
  put(dir / "sub" / "link", "a file before");
  const auto link = [&] { write_link_atomic(dir / "sub" / "link", "../sub/a"); };
  link();
  EXPECT_EQ(fs::read_symlink(dir / "sub" / "link"), fs::path("../sub/a"));
  EXPECT_EQ(get(dir / "sub" / "link"), "a");
  testing::for_each_kill_point([&] { put(dir / "sub" / "link", "before"); }, link,
                               [&](int n) { EXPECT_TRUE(get(dir / "sub" / "link") == "before" || get(dir / "sub" / "link") == "a") << n; });
  remove_tree(dir / "sub" / "link");
  fs::create_directory(dir / "sub" / "link");
  put(dir / "sub" / "link" / "x", "x");
  expect_error(ErrorKind::kIo, {"link"}, link);
  rename_file(dir / "sub" / "a", dir / "sub" / "b");
  EXPECT_EQ(get(dir / "sub" / "b"), "a");
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
