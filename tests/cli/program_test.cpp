#include "cli/program.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/device_lost.h"
#include "base/error.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

[[noreturn]] void end_with(int (*generate)(const Global&, const deploy::GenerateOptions&),
                           const std::vector<std::string>& flags = {}) {
  EngineRunners runners;
  runners.generate = generate;
  std::vector<std::string> words = {"specdec", "generate", "--target", "t", "--prompt", "x"};
  words.insert(words.end(), flags.begin(), flags.end());
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

int runs(const Global&, const deploy::GenerateOptions&) { return 0; }

TEST(Program, ASeedThatIsNoneEndsTheCommandWithTwo) {
  EXPECT_EXIT(end_with(runs, {"--seed", "18446744073709551615"}), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(end_with(runs, {"--seed", "-1"}), ::testing::ExitedWithCode(2),
              "--seed: expected an integer from 0 to 18446744073709551615, found '-1'");
}

// The error comes from the program without LibTorch, while it parses the command line, so no server starts.
TEST(Program, AModelDirectoryIsNoPackageToServe) {
  const testing::Scratch scratch;
  testing::put(scratch / "my model/config.json", "{}");
  std::vector<std::string> words = {"specdec", "serve", (scratch / "my model").string()};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  EngineRunners runners;
  runners.serve = [](const Global&, const deploy::ServeOptions&) { return 0; };
  EXPECT_EXIT(std::exit(run_program(static_cast<int>(words.size()), argv.data(), runners)),
              ::testing::ExitedWithCode(2), "is a model directory, not a package: use --target '.*/my model'");
}

// Counts the flags --seed of the commands below `app`, and expects each to accept exactly the integers from 0 to 2^64 -
// 1.
int check_seeds(CLI::App& app) {
  int found = 0;
  if (CLI::Option* seed = app.get_option_no_throw("--seed")) {
    ++found;
    const auto taken = [&](const std::string& text) {
      seed->clear();
      seed->add_result(text);
      try {
        seed->run_callback();
        return true;
      } catch (const CLI::ParseError&) {
        return false;
      }
    };
    for (const char* text : {"0", "1", "18446744073709551615"}) EXPECT_TRUE(taken(text)) << app.get_name() << text;
    for (const char* text :
         {"-1", " -1", "-0", "18446744073709551616", "99999999999999999999999", "1.5", "1e3", "x", ""})
      EXPECT_FALSE(taken(text)) << app.get_name() << ": '" << text << "'";
  }
  for (CLI::App* sub : app.get_subcommands({})) found += check_seeds(*sub);
  return found;
}

// Passes every numeric flag a number far below its range. Returns the error messages.
std::string errors_of_numbers(CLI::App& app) {
  std::string errors;
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (!type.starts_with("INT") && !type.starts_with("FLOAT")) continue;
    option->clear();
    option->add_result("-123456");
    try {
      option->run_callback();
    } catch (const CLI::ParseError& e) {
      errors += std::string(e.what()) + "\n";
    }
  }
  for (CLI::App* sub : app.get_subcommands({})) errors += errors_of_numbers(*sub);
  return errors;
}

class AllCommands : public ::testing::Test {
 protected:
  AllCommands() { declare_commands(cli_); }
  CLI::App app_{"", "specdec"};
  Global global_;
  const EngineRunners runners_;
  Cli cli_{app_, global_, runners_, {}};
};

TEST_F(AllCommands, TakeTheSameSeeds) { EXPECT_GE(check_seeds(app_), 9); }

TEST_F(AllCommands, PrintTheTrafficOfTheEditionThatIsNamed) {
  const auto printed = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"demo", "traffic", "--count", "8"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::reverse(words.begin(), words.end());  // CLI11 expects the arguments in reverse order
    app_.parse(std::move(words));
    ::testing::internal::CaptureStdout();
    cli_.selected();
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string first = printed({}), updated = printed({"--edition", "updated"});
  EXPECT_EQ(std::count(updated.begin(), updated.end(), '\n'), 8);
  EXPECT_NE(updated, first);
  EXPECT_EQ(printed({"--edition", "first"}), first);
}

TEST_F(AllCommands, WriteRangesAsPeopleDo) {
  const std::string errors = errors_of_numbers(app_);
  for (const char* line : {"--distill-seconds: expected a number from 1 to 86400, found -123456\n",
                           "--gpus: expected a number from 1 to 1000000, found -123456\n",
                           "--target-every: expected a number from 0.01 to 8760, found -123456\n",
                           "--min-fresh: expected a number >= 0, found -123456\n"})
    EXPECT_NE(errors.find(line), std::string::npos) << line << errors;
  EXPECT_EQ(errors.find(".000"), std::string::npos) << errors;
  EXPECT_EQ(errors.find("not in range"), std::string::npos) << errors;
}

}  // namespace
}  // namespace specdec::cli
