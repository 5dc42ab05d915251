// Tests of the log that explains K: the prevailing K, the log line, and the figures that a runner with two drafts
// reports for each draft.
#include "deploy/serve/engine/k_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <set>

#include "base/log.h"
#include "deploy/serve/engine/stepper_runner.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/toy.h"

namespace specdec::deploy {
namespace {

using specdec::testing::ManualClock;

DepthEvidence sixteen(int k) {
  return {"abc", 16, k, 0.0012, {0.0091, 0.0105, 0.0118, 0.013, 0.0142}, {0.41, 0.33, 0.3, 0.3}};
}

TEST(KLog, TheKOfMostSequencesPrevails) {
  KLog log;
  const std::vector<int> mostly_four = {4, 4, 3, 4, 0}, mostly_none = {0, 0, 4}, even = {0, 4};
  for (int i = 0; i < 10; ++i) log.chose(mostly_four);
  EXPECT_EQ(log.prevailing(), 4);
  log.chose(mostly_none);
  EXPECT_EQ(log.prevailing(), 4) << "one step is no trend";
  for (int i = 0; i < 30; ++i) log.chose(mostly_none);
  EXPECT_EQ(log.prevailing(), 0);
  for (int i = 0; i < 200; ++i) log.chose(even);
  EXPECT_EQ(log.prevailing(), 0) << "it stays while nothing clearly beats it";
  log.chose({});
  EXPECT_EQ(log.prevailing(), 0);
}

TEST(KLog, SaysTheNumbersThatDecidedAndIsQuietBetween) {
  KLog log;
  EXPECT_EQ(log.line(sixteen(4), 100),
            "K 4 at batch 16 (draft abc): draft 1.2 ms/token, verify 9.1 ms at K = 0 and 14.2 ms at K = 4, overlap "
            "0.41 0.33 0.30 0.30, "
            "expected 1346 tok/s at K = 4 against 1758 plain");
  EXPECT_EQ(log.line(sixteen(4), 200), std::nullopt) << "nothing has changed";
  const auto down = log.line(sixteen(0), 201);
  ASSERT_TRUE(down);
  EXPECT_TRUE(down->starts_with("K 4 → 0 at batch 16 (draft abc): ")) << *down;
  EXPECT_NE(down->find("at K = 4 against"), std::string::npos) << "what was left, against plain: " << *down;
  EXPECT_EQ(log.line(sixteen(3), 201 + KLog::kQuiet - 0.1), std::nullopt);
  EXPECT_TRUE(log.line(sixteen(3), 201 + KLog::kQuiet)->starts_with("K 0 → 3 "));
  DepthEvidence unmeasured = sixteen(1);
  unmeasured.draft_seconds = std::nan("");
  EXPECT_EQ(log.line(unmeasured, 1000), std::nullopt);
}

TEST(KLog, WhatIsAssumedIsCalledAssumed) {
  KLog log;
  DepthEvidence basis = sixteen(2);
  basis.assumed_after = 1;
  EXPECT_EQ(
      log.line(basis, 100),
      "trying K 2 at batch 16 (draft abc): draft 1.2 ms/token, verify 9.1 ms at K = 0 and 11.8 ms at K = 2, "
      "overlap assumed 0.41 0.33 (1 drafted token seen), which would give 1741 tok/s at K = 2 against 1758 plain");
}

decode::toy::Model timed(ManualClock& clock, double seconds) {
  decode::toy::Model model(8, [](std::span<const int32_t> context, std::span<float> logits) {
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = i == static_cast<size_t>(context.back() % 3) ? 1.f : 0.f;
  });
  model.before_pass = [&clock, seconds](auto) { clock.now += seconds; };
  return model;
}

// Half of the conversations use the draft on trial, whose passes take four times as long. The costs of each draft must
// include only its own passes.
TEST(KLog, DraftsSideBySideHaveTheirOwnCosts) {
  ManualClock clock;
  decode::toy::Model target = timed(clock, 1), first = timed(clock, 0.1), second = timed(clock, 0.4);
  const auto held = [](const char* id, decode::toy::Model& model) {
    return NamedDraft{id, id, std::shared_ptr<decode::CausalModel>(std::shared_ptr<void>(), &model)};
  };
  StepperRunner runner(target, held("first", first), {{-1, 8, VerifyRule::kToken}, 0.7}, clock);
  runner.drafts().set_loader([&](const std::string&) { return held("second", second); });
  std::vector<std::string> lines;
  set_log_sink(
      [&lines](LogLevel level, const std::string& line) { lines.insert(lines.end(), level == LogLevel::kInfo, line); });
  std::promise<void> loaded;
  runner.drafts().order({DraftOrder::Action::kLoad, "second", 0.0, 0.5}, [&](const auto& error) {
    EXPECT_FALSE(error);
    loaded.set_value();
  });
  loaded.get_future().wait();
  std::vector<SequenceKey> batch;
  const std::vector<int32_t> prompt = {1, 2};
  for (int i = 0; i < 8; ++i) {
    SequenceSpec spec;
    spec.request.prompt = prompt;
    spec.request.options.max_tokens = 4000;
    spec.conversation = "c" + std::to_string(i);
    batch.push_back(runner.start(spec));
    while (!runner.prefill(batch.back(), 512).whole) {
    }
  }
  std::set<std::string> drafted;
  for (int step = 0; step < 100; ++step) {
    std::vector<StepResult> results(batch.size());
    runner.step(batch, results);
    for (const StepResult& r : results) drafted.insert(r.draft);
  }
  set_log_sink({});
  ASSERT_EQ(drafted, (std::set<std::string>{"first", "second"}));
  const std::vector<DepthEvidence> bases = runner.depth_evidence();
  ASSERT_EQ(bases.size(), 2u);
  EXPECT_NEAR(bases[0].draft_seconds, 0.1, 1e-9);
  EXPECT_NEAR(bases[1].draft_seconds, 0.4, 1e-9);
  for (const DepthEvidence& basis : bases) {
    EXPECT_EQ(basis.batch, 8);
    EXPECT_NEAR(basis.verify_seconds[0], 1, 1e-9);
    EXPECT_NEAR(basis.tokens_per_second(0), 8, 1e-6);
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find("(draft " + basis.draft + ")") != std::string::npos;
    }));
  }
  EXPECT_GE(bases[0].k, bases[1].k) << "the dear draft drafts no more than the cheap one";
  for (const SequenceKey key : batch) runner.finish(key);
}

}  // namespace
}  // namespace specdec::deploy
