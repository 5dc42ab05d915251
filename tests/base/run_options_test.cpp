#include "base/run_options.h"

#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;

TEST(RunOptions, EachFlagIsNamedWhenOutOfRange) {
  EXPECT_NO_THROW(validate(SamplingOptions{}));
  EXPECT_NO_THROW(validate(SamplingOptions{.temperature = 0, .top_k = 5, .top_p = 0.1, .min_p = 0.99}));
  for (double t : {-0.1, 1e-40, 10.1, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    expect_error(ErrorKind::kUsage, {"--temperature", "0, or a number from 1.17549e-38 to 10"},
                 [&] { validate(SamplingOptions{.temperature = t}); });
  expect_error(ErrorKind::kUsage, {"--top-k", "-1"}, [] { validate(SamplingOptions{.top_k = -1}); });
  for (double p : {0.0, 1e-40, 1.1, static_cast<double>(NAN)})
    expect_error(ErrorKind::kUsage, {"--top-p"}, [&] { validate(SamplingOptions{.top_p = p}); });
  for (double p : {-0.1, 1.0})
    expect_error(ErrorKind::kUsage, {"--min-p"}, [&] { validate(SamplingOptions{.min_p = p}); });
  for (int k : {-2, 33}) expect_error(ErrorKind::kUsage, {"--k"}, [&] { validate(SpeculationOptions{.k = k}); });
  expect_error(ErrorKind::kUsage, {"--max-k"}, [] { validate(SpeculationOptions{.max_k = -1}); });
  for (const char* d : {"auto", "cpu", "cuda", "cuda:0", "cuda:15"})
    EXPECT_NO_THROW(validate(DeviceOptions{.device = d}));
  for (const char* d : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "cpu:0"})
    expect_error(ErrorKind::kUsage, {"--device"}, [&] { validate(DeviceOptions{.device = d}); });
  expect_error(ErrorKind::kUsage, {"--dtype", "int4"}, [] { validate(DeviceOptions{.dtype = "int4"}); });
  expect_error(ErrorKind::kUsage, {"--draft-dtype", "fp64"}, [] { validate(DeviceOptions{.draft_dtype = "fp64"}); });
  EXPECT_NO_THROW(validate(DeviceOptions{.dtype = "int8", .draft_dtype = "bf16"}));
  EXPECT_EQ((DeviceOptions{.dtype = "int8"}.dtype_of_draft()), "int8");
  expect_error(ErrorKind::kUsage, {"--threads"}, [] { validate(DeviceOptions{.threads = -1}); });
}

TEST(RunOptions, VerifyRules) {
  for (VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget, VerifyRule::kCoupled})
    EXPECT_EQ(parse_verify_rule(to_string(rule)), rule);
  expect_error(ErrorKind::kUsage, {"--verify", "token, block, target or coupled", "fast"},
               [] { parse_verify_rule("fast"); });
}

TEST(RunOptions, Trees) {
  EXPECT_EQ(parse_tree("2,2,1"), (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(tree_nodes(std::vector{2, 2, 1}, 0), 0);
  EXPECT_EQ(tree_nodes(std::vector{2, 2, 1}, 2), 6);
  EXPECT_EQ(tree_nodes(std::vector{2, 2, 1}, 9), 10);
  EXPECT_EQ(tree_nodes({}, 5), 5);
  for (const char* text : {"", "0", "9", "2,", ",2", "2,,2", "2x", "-1", "2 2", "8,8", "1e1", "99999999999999999999"})
    expect_error(ErrorKind::kUsage, {"--tree", "2,2,1"}, [&] { parse_tree(text); });
}

TEST(ErrorType, ExitCodesOfTheContract) {
  const std::vector<std::pair<ErrorKind, int>> codes = {
      {ErrorKind::kUsage, 2}, {ErrorKind::kConfig, 2},   {ErrorKind::kData, 7},   {ErrorKind::kModel, 7},
      {ErrorKind::kIo, 74},   {ErrorKind::kNetwork, 75}, {ErrorKind::kDevice, 8}, {ErrorKind::kInternal, 1}};
  for (const auto& [kind, code] : codes) EXPECT_EQ(exit_code(kind), code);
}

TEST(ErrorType, ContextGoesInFront) {
  expect_error(ErrorKind::kModel, {"outer: inner: x"}, [] {
    with_context("outer", [] { with_context("inner", [] { throw Error(ErrorKind::kModel, "x"); }); });
  });
  EXPECT_EQ(with_context("w", [] { return 5; }), 5);
}

TEST(Log, GoesToTheSinkAndNowhereWithoutOne) {
  std::vector<std::string> lines;
  // Lines logged before any sink is set are kept for the first sink (tested by tests/e2e/monitor_story_test.py). Here
  // the first sink is an empty one, so later lines are lost.
  set_log_sink({});
  log(LogLevel::kError, "lost");
  set_log_sink([&](LogLevel level, const std::string& text) {
    lines.push_back(std::to_string(static_cast<int>(level)) + text);
  });
  log(LogLevel::kWarn, "kept");
  set_log_sink({});
  log(LogLevel::kError, "lost");
  EXPECT_EQ(lines, std::vector<std::string>{"2kept"});
}

TEST(Progress, StopIsRemembered) {
  EXPECT_EQ(testing::in_child(nullptr, "",
                              [] {
                                if (stop_requested()) ::_exit(40);
                                request_stop();
                                if (!stop_requested()) ::_exit(41);
                              }),
            0);
}

}  // namespace
}  // namespace specdec
