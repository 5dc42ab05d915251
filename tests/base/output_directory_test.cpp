#include "base/output_directory.h"

#include <unistd.h>

#include "base/file.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;
using testing::put;

const OutputRule kGate{.flag = "--out", .command = "specdec validate", .results = {{"report.json", "validate"}}};

TEST(OutputDirectory, MayBeMissingOrEmpty) {
  const testing::Scratch dir;
  EXPECT_FALSE(check_output_directory(dir / "new", kGate));
  EXPECT_FALSE(check_output_directory(dir / "new/below/it/", kGate));
  EXPECT_FALSE(fs::exists(dir / "new")) << "the check makes nothing";
  fs::create_directory(dir / "empty");
  EXPECT_FALSE(check_output_directory(dir / "empty", kGate));
  put(dir / "empty/report.json.0123456789abcdef.partial", "killed");
  put(dir / "empty/.lock", "");
  fs::create_directory(dir / "empty/lost+found");
  EXPECT_FALSE(check_output_directory(dir / "empty", kGate))
      << "what a killed run or a file system left counts as empty";
}

TEST(OutputDirectory, MayHaveAnEarlierResultOfTheSameCommand) {
  const testing::Scratch dir;
  fs::create_directory(dir / "gate");
  put(dir / "gate/report.html", "a page");
  for (const char* foreign : {"", "[]", "{", R"({"schema": 3})", R"({"schema": "specdec.bench/1"})",
                              R"({"schema": "specdec.validate"})", R"({"name": "my report"})"}) {
    put(dir / "gate/report.json", foreign);
    expect_error(ErrorKind::kUsage, {"--out", "gate: has report.html among 2 entries", "no result of specdec validate"},
                 [&] { check_output_directory(dir / "gate", kGate); });
  }
  put(dir / "gate/report.json", R"({"schema": "specdec.validate/9", "verdict": "pass"})");
  EXPECT_TRUE(check_output_directory(dir / "gate", kGate)) << "of any version: it is replaced, not read";
  fs::create_directory_symlink(dir / "gate", dir / "link");
  EXPECT_TRUE(check_output_directory(dir / "link", kGate));
}

TEST(OutputDirectory, IsNotSharedWithFilesOfOthers) {
  const testing::Scratch dir;
  fs::create_directory(dir / "logs");
  put(dir / "logs/day-1.jsonl", "{}");
  expect_error(ErrorKind::kUsage,
               {"--out", "logs: has day-1.jsonl and no result of specdec validate", "a new or an empty directory",
                "an earlier result of specdec validate"},
               [&] { check_output_directory(dir / "logs", kGate); });
  put(dir / "logs/\x1b[2J", "");
  expect_error(ErrorKind::kUsage, {"has  [2J among 2 entries"}, [&] { check_output_directory(dir / "logs", kGate); });
  OutputRule fresh{.flag = "--out", .command = "specdec package quantise", .results = {}};
  expect_error(ErrorKind::kUsage, {"give a new or an empty directory"},
               [&] { check_output_directory(dir / "logs", fresh); });
}

TEST(OutputDirectory, AReplacedDirectoryHasNothingElse) {
  const testing::Scratch dir;
  OutputRule rule = kGate;
  rule.writes = [](const std::string& name) { return name.starts_with("report."); };
  fs::create_directory(dir / "gate");
  put(dir / "gate/report.json", R"({"schema": "specdec.validate/1"})");
  EXPECT_TRUE(check_output_directory(dir / "gate", rule));
  fs::create_directory_symlink(dir / "gate", dir / "link");
  expect_error(ErrorKind::kUsage, {"link: is a link"}, [&] { check_output_directory(dir / "link", rule); });
  put(dir / "gate/notes.txt", "mine");
  expect_error(ErrorKind::kUsage, {"has notes.txt among 2 entries", "did not write and would remove"},
               [&] { check_output_directory(dir / "gate", rule); });
}

TEST(OutputDirectory, MustBeADirectoryThatCanBeWritten) {
  const testing::Scratch dir;
  put(dir / "file", "");
  fs::create_symlink(dir / "nowhere", dir / "dangling");
  for (const char* name : {"file", "file/below", "dangling", "dangling/below"})
    expect_error(ErrorKind::kUsage, {name, "is no directory", "the name of a new one"},
                 [&] { check_output_directory(dir / name, kGate); });
  expect_error(ErrorKind::kUsage, {"--out: found an empty name"}, [&] { check_output_directory("", kGate); });
  if (::geteuid() == 0) return;  // root may write everywhere, so the refusal below cannot be tested
  fs::create_directory(dir / "closed");
  fs::permissions(dir / "closed", fs::perms::owner_read | fs::perms::owner_exec);
  expect_error(ErrorKind::kIo, {"closed", "Permission denied"},
               [&] { check_output_directory(dir / "closed/new", kGate); });
}

}  // namespace
}  // namespace specdec
