#include "cli/error_report.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <stdexcept>

#include "base/device_lost.h"
#include "cli/output.h"

namespace specdec::cli {
namespace {

struct Reported {
  int code;
  std::string line;  // the error line on stderr
};

Reported run(const std::function<int()>& work) {
  ::testing::internal::CaptureStderr();
  const int code = run_reported(work, Global(), "serve");
  return {code, ::testing::internal::GetCapturedStderr()};
}

template <class Thrown>
Reported thrown(const Thrown& what) {
  return run([&]() -> int { throw what; });
}

TEST(RunReported, WhatTheWorkThrowsHasTheExitCodeOfItsKind) {
  EXPECT_EQ(run([] { return 4; }).code, 4);
  EXPECT_EQ(thrown(Error(ErrorKind::kData, "a file")).code, 7);
  EXPECT_EQ(thrown(DeviceLost("a rank is gone", ErrorKind::kNetwork)).code, 75);
  EXPECT_EQ(thrown(DeviceLost("an illegal access")).code, 8);
  EXPECT_EQ(thrown(std::bad_alloc()).code, 8);
  EXPECT_EQ(thrown(std::runtime_error("a defect")).code, 1);
  const auto missing = std::make_error_code(std::errc::no_such_file_or_directory);
  const Reported io = thrown(std::filesystem::filesystem_error("rename", "/a/b", missing));
  EXPECT_EQ(io.code, 74);
  EXPECT_EQ(io.line, "specdec: error: /a/b: No such file or directory\n");
}

// While an object of this class exists, every write to standard output fails.
class FullOutput {
 public:
  FullOutput() : saved_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    const int full = ::open("/dev/full", O_WRONLY);
    ::dup2(full, STDOUT_FILENO);
    ::close(full);
  }
  ~FullOutput() {
    ::dup2(saved_, STDOUT_FILENO);
    ::close(saved_);
    std::clearerr(stdout);
    std::cout.clear();
  }

 private:
  int saved_;
};

// A result that could not be written is an error, whichever function printed it and whatever the verdict was.
TEST(RunReported, AResultThatCannotBeWrittenIsAnError) {
  const std::pair<const char*, std::function<int()>> works[] = {
      {"printf", [] { return std::printf("{}\n") > 0 ? 0 : 0; }},
      {"fputs", [] { return std::fputs("table", stdout) == EOF ? 0 : 3; }},
      {"cout",
       [] {
         std::cout << "help";
         return 0;
       }},
      {"write_output",
       [] {
         write_output("text");
         return 0;
       }},
      {"much", [] {
         for (int i = 0; i < 10000; ++i) std::printf("line %d\n", i);
         return 0;
       }}};
  for (const auto& [name, work] : works) {
    Reported reported;
    {
      const FullOutput full;
      reported = run(work);
    }
    EXPECT_EQ(reported.code, 74) << name;
    EXPECT_NE(reported.line.find("specdec: error: standard output: write failed"), std::string::npos)
        << name << reported.line;
  }
  EXPECT_EQ(run([] { return 0; }).code, 0);
}

}  // namespace
}  // namespace specdec::cli
