#include "cli/program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/device_lost.h"
#include "base/error.h"

namespace specdec::cli {
namespace {

[[noreturn]] void end_with(int (*generate)(const Global&, const deploy::GenerateOptions&)) {
  EngineRunners runners;
  runners.generate = generate;
  std::vector<std::string> words = {"specdec", "generate", "--target", "t", "--prompt", "x"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::exit(run_program(static_cast<int>(words.size()), argv.data(), runners));
}

TEST(Program, ADeviceThatFailsEndsTheCommandWithEight) {
  EXPECT_EXIT(end_with([](const Global&, const deploy::GenerateOptions&) -> int {
                throw DeviceLost("an illegal memory access was encountered");
              }),
              ::testing::ExitedWithCode(8), "can no longer be used by this process: an illegal memory access");
  EXPECT_EXIT(end_with([](const Global&, const deploy::GenerateOptions&) -> int {
                throw Error(ErrorKind::kDevice, "the GPU's memory is used up");
              }),
              ::testing::ExitedWithCode(8), "memory is used up");
}

}  // namespace
}  // namespace specdec::cli
