#include "cli/error_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>

#include "base/device_lost.h"

namespace specdec::cli {
namespace {

struct Reported {
  int code;
  std::string line;  // on stderr
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

}  // namespace
}  // namespace specdec::cli
