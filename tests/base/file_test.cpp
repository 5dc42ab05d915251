#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "base/file_lock.h"
#include "base/log.h"
#include "tests/base/scratch.h"
#include "tests/faults/points.h"

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
  expect_error(ErrorKind::kConfig, {"f", "5 bytes, the limit is 4"},
               [&] { read_file(dir / "f", 4, ErrorKind::kConfig); });
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
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(50);  // permissions do not restrict root
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
    expect_error(ErrorKind::kInternal, {"finished"}, [&] { file.write("x"); });
  }
  EXPECT_EQ(get(dir / "f"), "head" + big + "tail");
  {
    OutputFile(dir / "g").write("x");
  }
  EXPECT_FALSE(fs::exists(dir / "g"));
  expect_error(ErrorKind::kIo, {"cannot create"}, [&] { OutputFile(dir / "none" / "g"); });
}

TEST(File, AtomicWriteIsOldOrNewAtEveryKillPoint) {
  const testing::Scratch dir;
  const std::string fresh(5000, 'f');
  const int points =
      testing::for_each_kill_point([&] { put(dir / "f", "old"); }, [&] { write_file_atomic(dir / "f", fresh); },
                                   [&](int n) {
                                     const std::string found = get(dir / "f");
                                     EXPECT_TRUE(found == "old" || found == fresh) << n;
                                   });
  EXPECT_EQ(points, 5);  // the kill points: create, write, fsync, rename, fsync of the directory
  EXPECT_EQ(get(dir / "f"), fresh);
  remove_partials(dir.root(), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.root()), fs::directory_iterator()), 1);
}

TEST(File, FullDiskIsAnErrorThatLeavesTheOldFile) {
  const testing::Scratch dir;
  put(dir / "f", "old");
  for (int n = 1; n <= 3; ++n) {  // the disk becomes full at the create (1), the write (2) or the rename (3)
    EXPECT_EQ(testing::in_child("SPECDEC_ENOSPC_AT", std::to_string(n), [&] { write_file_atomic(dir / "f", "new"); }),
              74);
    EXPECT_EQ(get(dir / "f"), "old");
  }
  EXPECT_EQ(testing::in_child("SPECDEC_ENOSPC_AT", "4", [&] { write_file_atomic(dir / "f", "new"); }), 0);
  EXPECT_EQ(get(dir / "f"), "new");
  for (int n = 1; n <= 2; ++n)
    EXPECT_EQ(
        testing::in_child("SPECDEC_ENOSPC_AT", std::to_string(n), [&] { publish_directory(dir / "d", fill_new); }), 74);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.root()), fs::directory_iterator()), 1)
      << "only f: nothing half-made is left";
}

TEST(File, PublishNeverReplaces) {
  const testing::Scratch dir;
  EXPECT_TRUE(publish_directory(dir / "deep/er/d/", fill_new));
  EXPECT_TRUE(is_new(dir / "deep/er/d"));
  EXPECT_FALSE(
      publish_directory(dir / "deep/er/d", [](const fs::path& tmp) { write_file_atomic(tmp / "a", "other"); }));
  EXPECT_TRUE(is_new(dir / "deep/er/d"));
  expect_error(ErrorKind::kData, {"from fill"}, [&] {
    publish_directory(dir / "e", [](const fs::path&) { throw Error(ErrorKind::kData, "from fill"); });
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "deep/er"), fs::directory_iterator()), 1);
  EXPECT_FALSE(fs::exists(dir / "e"));
}

TEST(File, PublishedDirectoryIsWholeOrAbsentAtEveryKillPoint) {
  const testing::Scratch dir;
  const int points = testing::for_each_kill_point(
      [&] { remove_tree(dir / "s"); }, [&] { publish_directory(dir / "s" / "d", fill_new); },
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

TEST(File, LinesAreAppendedToRegularFilesAlone) {
  const testing::Scratch dir;
  put(dir / "mine", "mine\n");
  fs::create_symlink(dir / "mine", dir / "link");
  expect_error(ErrorKind::kIo, {"link", "cannot create"}, [&] { append_line(dir / "link", "x"); });
  EXPECT_EQ(get(dir / "mine"), "mine\n");
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  expect_error(ErrorKind::kIo, {"fifo", "regular file"}, [&] { append_line(dir / "fifo", "x"); });
}

TEST(File, CopyIsWholeAndFollowsLinks) {
  const testing::Scratch dir;
  put(dir / "f", std::string(2'100'000, 'c'));
  fs::create_symlink(dir / "f", dir / "link");
  copy_regular_file(dir / "link", dir / "g");
  EXPECT_EQ(get(dir / "g"), get(dir / "f"));
  EXPECT_FALSE(fs::is_symlink(dir / "g"));
  expect_error(ErrorKind::kModel, {"cannot open"},
               [&] { copy_regular_file(dir / "none", dir / "h", ErrorKind::kModel); });
  EXPECT_FALSE(fs::exists(dir / "h"));
}

TEST(File, WhatIsWrittenFollowsNoLink) {
  const testing::Scratch dir;
  put(dir / "precious", "precious");
  fs::create_symlink(dir / "precious", dir / "link");
  expect_error(ErrorKind::kIo, {"link"}, [&] { OutputFile(dir / "link").finish(); });
  expect_error(ErrorKind::kIo, {"link"}, [&] { OutputFile(dir / "link", OutputFile::Open::kResume).finish(); });
  expect_error(ErrorKind::kIo, {"link"}, [&] { FileLock lock(dir / "link"); });
  expect_error(ErrorKind::kIo, {"link"}, [&] { copy_regular_file(dir / "precious", dir / "link"); });
  write_file_atomic(dir / "link", "new");  // replaces the link, not the file it points to
  EXPECT_EQ(get(dir / "precious"), "precious");
  EXPECT_EQ(get(dir / "link"), "new");
}

TEST(File, FreeSpaceOfAPathThatIsNotThereYet) { EXPECT_GT(free_disk_bytes(testing::Scratch().root() / "a/b/c"), 0u); }

TEST(File, AWriterThatResumesAppendsAndLeavesItsWork) {
  const testing::Scratch dir;
  put(dir / "f", "begun ");
  {
    OutputFile(dir / "f", OutputFile::Open::kResume).write(std::string(2 << 20, 'x'));
  }
  EXPECT_EQ(get(dir / "f").substr(0, 8), "begun xx");
  OutputFile more(dir / "f", OutputFile::Open::kResume);
  more.write("end");
  more.finish();
  EXPECT_TRUE(get(dir / "f").ends_with("xend"));
  {
    OutputFile(dir / "g").write("gone");
  }
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
  testing::for_each_kill_point(
      [&] { put(dir / "sub" / "link", "before"); }, link,
      [&](int n) { EXPECT_TRUE(get(dir / "sub" / "link") == "before" || get(dir / "sub" / "link") == "a") << n; });
  remove_tree(dir / "sub" / "link");
  fs::create_directory(dir / "sub" / "link");
  put(dir / "sub" / "link" / "x", "x");
  expect_error(ErrorKind::kIo, {"link"}, link);
  rename_file(dir / "sub" / "a", dir / "sub" / "b");
  EXPECT_EQ(get(dir / "sub" / "b"), "a");
}

// ---- permissions ----

mode_t mode_of(const fs::path& path) {
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

TEST(File, IsPrivateWhateverTheUmaskUnlessItIsPublic) {
  const testing::Scratch dir;
  for (const mode_t mask : {0, 022, 027}) {
    const mode_t before = ::umask(mask);
    make_directories(dir / "private/deep");
    write_file_atomic(dir / "private/f", "x");
    append_line(dir / "private/log", "x", true);
    {
      OutputFile(dir / "private/out").finish();
    }
    copy_regular_file(dir / "private/f", dir / "private/copy");
    const FileLock lock(dir / "private/lock");
    ::close(open_file(dir / "private/opened", O_WRONLY | O_CREAT));
    publish_directory(dir / "private/d", fill_new);
    EXPECT_TRUE(publish_file(dir / "private/published", "first"));
    EXPECT_FALSE(publish_file(dir / "private/published", "second"));
    EXPECT_EQ(get(dir / "private/published"), "first");
    replace_directory(dir / "private/d", fill_new);
    {
      const PublicFiles scope;
      make_directories(dir / "public/deep");
      write_file_atomic(dir / "public/f", "x");
      publish_directory(dir / "public/d", fill_new);
    }
    write_file_atomic(dir / "public/mine", "x");
    ::umask(before);
    int seen = 0;
    for (const auto& entry : fs::recursive_directory_iterator(dir / "private"))
      EXPECT_EQ(mode_of(entry.path()), fs::is_directory(entry.path()) ? 0700u : 0600u) << entry.path() << ++seen;
    EXPECT_EQ(mode_of(dir / "private"), 0700u);
    EXPECT_EQ(mode_of(dir / "public/mine"), 0600u);
    remove_tree(dir / "public/mine");
    for (const auto& entry : fs::recursive_directory_iterator(dir / "public"))
      EXPECT_EQ(mode_of(entry.path()), (fs::is_directory(entry.path()) ? 0775u : 0664u) & ~mask) << entry.path();
    remove_tree(dir / "private");
    remove_tree(dir / "public");
  }
}

TEST(File, APrivateDirectoryThatOthersCanLookIntoIsSaidOnce) {
  const testing::Scratch dir;
  std::vector<std::string> said;
  set_log_sink([&](LogLevel level, const std::string& text) {
    if (level == LogLevel::kWarn) said.push_back(text);
  });
  make_private_directory(dir / "fresh");
  make_private_directory(dir / "fresh");
  EXPECT_TRUE(said.empty());
  fs::create_directory(dir / "open");
  ASSERT_EQ(::chmod((dir / "open").c_str(), 0755), 0);
  make_private_directory(dir / "open");
  make_private_directory(dir / "open/");
  fs::create_directory(dir / "wide");
  ASSERT_EQ(::chmod((dir / "wide").c_str(), 0777), 0);
  make_private_directory(dir / "wide");
  set_log_sink({});
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[0].find("look into this directory (mode 0755)"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("write to this directory (mode 0777)"), std::string::npos) << said[1];
}

// ---- faults and power cuts ----

struct Action {
  const char* name;
  std::function<void(const fs::path& root)> before, run;
  std::function<bool(const fs::path& root)> old_state, new_state;
};

std::vector<Action> actions() {
  const auto has_old = [](const fs::path& d) { return get(d / "a") == "old a" && get(d / "gone") == "x"; };
  const auto old_directory = [](const fs::path& root) {
    put(root / "d" / "a", "old a"), put(root / "d" / "gone", "x");
  };
  return {
      {"write_file_atomic", [](const fs::path& r) { put(r / "f", "old"); },
       [](const fs::path& r) { write_file_atomic(r / "f", std::string(5000, 'f')); },
       [](const fs::path& r) { return get(r / "f") == "old"; },
       [](const fs::path& r) { return get(r / "f") == std::string(5000, 'f'); }},
      {"publish_file", [](const fs::path&) {}, [](const fs::path& r) { publish_file(r / "f", std::string(5000, 'f')); },
       [](const fs::path& r) { return !fs::exists(r / "f"); },
       [](const fs::path& r) { return get(r / "f") == std::string(5000, 'f'); }},
      {"publish_directory", [](const fs::path&) {}, [](const fs::path& r) { publish_directory(r / "s/t/d", fill_new); },
       [](const fs::path& r) { return !fs::exists(r / "s/t/d"); },
       [](const fs::path& r) { return is_new(r / "s/t/d"); }},
      {"publish_from", [](const fs::path&) {},
       [](const fs::path& r) {
         publish_from(r / "tmp", [&](const fs::path& tmp) {
           fill_new(tmp);
           return r / "packages/d";
         });
       },
       [](const fs::path& r) { return !fs::exists(r / "packages/d"); },
       [](const fs::path& r) { return is_new(r / "packages/d"); }},
      {"replace_directory", old_directory, [](const fs::path& r) { replace_directory(r / "d", fill_new); },
       [=](const fs::path& r) { return has_old(r / "d"); },
       [](const fs::path& r) { return is_new(r / "d") && !fs::exists(r / "d/gone"); }},
      {"append_line", [](const fs::path&) {}, [](const fs::path& r) { append_line(r / "log", "line", true); },
       [](const fs::path& r) { return !get(r / "log").ends_with("line\n"); },
       [](const fs::path& r) { return get(r / "log").ends_with("line\n"); }},
      {"write_link_atomic", [](const fs::path& r) { put(r / "a", "a"), put(r / "link", "before"); },
       [](const fs::path& r) { write_link_atomic(r / "link", "a"); },
       [](const fs::path& r) { return get(r / "link") == "before"; },
       [](const fs::path& r) { return get(r / "link") == "a"; }},
      {"make_directories", [](const fs::path&) {}, [](const fs::path& r) { make_directories(r / "a/b/c"); },
       [](const fs::path& r) { return !fs::exists(r / "a/b/c"); },
       [](const fs::path& r) { return fs::is_directory(r / "a/b/c"); }},
      {"copy_regular_file", [](const fs::path& r) { put(r / "f", std::string(3'000'000, 'c')); },
       [](const fs::path& r) {
         copy_regular_file(r / "f", r / "g");
         fsync_directory(r);
       },
       [](const fs::path& r) { return get(r / "f") == std::string(3'000'000, 'c'); },
       [](const fs::path& r) { return get(r / "g") == get(r / "f"); }}};
}

// After any injected fault the old or the new state exists, and the new state if the action reported success. Repeating
// the action succeeds.
TEST(Faults, LeaveTheOldOrTheNew) {
  const testing::Scratch dir(/*in_memory=*/true);
  testing::Points points;
  for (const Action& action : actions()) {
    SCOPED_TRACE(action.name);
    const fs::path root = dir / action.name;
    const auto before = [&] {
      fs::remove_all(root);
      fs::create_directories(root);
      action.before(root);
    };
    testing::for_each_fault(
        points, before, [&] { action.run(root); },
        [&](bool done) {
          EXPECT_TRUE(action.new_state(root) || (!done && action.old_state(root)));
          action.run(root);
          EXPECT_TRUE(action.new_state(root));
        });
  }
}

TEST(PowerCuts, LeaveTheOldOrTheNewAndWhatWasDoneIsDurable) {
  const testing::Scratch dir(/*in_memory=*/true);
  testing::Points points;
  for (const Action& action : actions()) {
    SCOPED_TRACE(action.name);
    const fs::path root = dir / action.name;
    fs::create_directories(root);
    const int changes = testing::for_each_power_cut(
        points, root, [&] { action.before(root); }, [&] { action.run(root); },
        [&](bool done) {
          EXPECT_TRUE(action.new_state(root) || (!done && action.old_state(root)));
          action.run(root);
          EXPECT_TRUE(action.new_state(root));
        });
    EXPECT_GE(changes, 3);
  }
}

// Checks the simulation of power cuts itself: it must catch an action that forgets one of its flushes.
TEST(PowerCuts, FindAForgottenFlush) {
  const testing::Scratch dir(/*in_memory=*/true);
  const auto lost = [&](const std::function<void(const fs::path&)>& write, testing::Lost how) {
    const fs::path root = dir / "root";
    fs::remove_all(root);
    put(root / "f", "old");
    fs::remove_all(dir / "start");
    fs::remove(dir / "journal");
    fs::copy(root, dir / "start", fs::copy_options::recursive);
    EXPECT_EQ(testing::in_child("SPECDEC_FAULT_JOURNAL", (dir / "journal").string(),
                                [&] {
                                  ::setenv("SPECDEC_FAULT_BELOW", root.c_str(), 1);
                                  write(root);
                                }),
              0);
    const testing::PowerCut cut(dir / "journal", dir / "start", root.string());
    cut.restore(cut.changes(), how, 1, root);
    return get(root / "f");
  };
  const auto no_flush = [](const fs::path& r) {
    const int fd = open_file(r / "new", O_WRONLY | O_CREAT);
    write_all(fd, "new", r / "new");
    ::close(fd);
    rename_file(r / "new", r / "f");
  };
  const auto no_directory = [](const fs::path& r) {
    {
      OutputFile(r / "new").finish();
    }
    EXPECT_EQ(::rename((r / "new").c_str(), (r / "f").c_str()), 0);
  };
  EXPECT_EQ(lost(no_flush, testing::Lost::kContents), "") << "the name without its bytes";
  EXPECT_EQ(lost(no_directory, testing::Lost::kAll), "old") << "the rename is lost";
  EXPECT_EQ(lost([](const fs::path& r) { write_file_atomic(r / "f", "new"); }, testing::Lost::kAll), "new");
}

TEST(Faults, AFlushThatFailedIsNeverReportedAsDone) {
  const testing::Scratch dir;
  for (int n = 1; n <= 2; ++n) {  // the fsync of the file (1) or of its directory (2) fails
    put(dir / "f", "old");
    EXPECT_EQ(testing::in_child("SPECDEC_FSYNC_AT", std::to_string(n), [&] { write_file_atomic(dir / "f", "new"); }),
              74)
        << n;
    EXPECT_EQ(get(dir / "f"), n == 1 ? "old" : "new");
  }
  put(dir / "part", "begun");
  EXPECT_EQ(
      testing::in_child("SPECDEC_FSYNC_AT", "1", [&] { OutputFile(dir / "part", OutputFile::Open::kResume).finish(); }),
      74);
  EXPECT_FALSE(fs::exists(dir / "part")) << "a file that could not be flushed is not continued";
}

}  // namespace
}  // namespace specdec
