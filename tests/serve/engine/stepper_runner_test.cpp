// Tests of StepperRunner over toy models: which sequences fail, that the others continue, and that no text depends on
// the other sequences in the batch.
#include "deploy/serve/engine/stepper_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/clock.h"
#include "base/device_lost.h"
#include "base/error.h"
#include "tests/lossless/toy.h"

namespace specdec::deploy {
namespace {

constexpr int64_t kTokens = 12, kLength = 200;
constexpr int32_t kPoison = 11;  // never drawn; fail_on_poison() makes a model fail on it

using decode::toy::Model;

// Makes a toy model. Models with different `noise` have a part of their logits in common and differ in the rest.
Model table(double noise = 0) {
  return Model(
      kTokens,
      [noise](std::span<const int32_t> context, std::span<float> logits) {
        const auto shared = decode::toy::random_logits(1), own = decode::toy::random_logits(2);
        std::vector<float> more(logits.size());
        shared(context, logits);
        own(context, more);
        for (size_t i = 0; i < logits.size(); ++i) logits[i] += static_cast<float>(noise) * more[i];
        logits[kPoison] = -50;
      },
      kLength);
}

// Makes the model throw in every pass that computes logits of a sequence that contains kPoison.
void fail_on_poison(Model& model, ErrorKind kind = ErrorKind::kDevice) {
  model.before_pass = [&model, kind](std::span<const decode::Extension> extensions) {
    for (const decode::Extension& e : extensions) {
      const auto& cache = model.cache(e.sequence);
      if (e.num_logits > 0 &&
          std::count(cache.begin(), cache.end(), kPoison) + std::count(e.tokens.begin(), e.tokens.end(), kPoison) > 0)
        throw Error(kind, "poisoned");
    }
  };
}

struct Bench {
  explicit Bench(int k = 3) : runner(target, &draft, {{k, 8, VerifyRule::kToken}, 0.7}, clock) {}

  SequenceKey start(std::vector<int32_t> prompt, uint64_t seed, int64_t max_tokens = 30) {
    SequenceSpec spec;
    spec.request.prompt = prompt;
    spec.request.options.max_tokens = max_tokens;
    spec.request.seed = seed;
    return start(spec);
  }
  SequenceKey start(const SequenceSpec& spec) {
    const SequenceKey key = runner.start(spec);
    while (!runner.prefill(key, 512).whole) {
    }
    left[key] = spec.request.options.max_tokens;
    return key;
  }
  // Runs steps until every sequence has all its tokens or has failed.
  void run() {
    while (!left.empty()) {
      std::vector<SequenceKey> batch;
      for (const auto& [key, tokens] : left) batch.push_back(key);
      std::vector<StepResult> results(batch.size());
      runner.step(batch, results);
      for (size_t i = 0; i < batch.size(); ++i) {
        std::vector<int32_t>& out = answers[batch[i]];
        out.insert(out.end(), results[i].emitted.begin(), results[i].emitted.end());
        left[batch[i]] -= static_cast<int64_t>(results[i].emitted.size());
        accepted += results[i].accepted;
        drafted += results[i].drafted;
        if (results[i].failed) failed.insert(batch[i]);
        device_failures += results[i].device_failed;
        if (!results[i].failed && left[batch[i]] > 0) continue;
        runner.finish(batch[i]);
        left.erase(batch[i]);
      }
    }
  }

  SystemClock clock;
  Model target = table(), draft = table(0.5);
  StepperRunner runner;
  std::map<SequenceKey, int64_t> left;
  std::map<SequenceKey, std::vector<int32_t>> answers;
  std::set<SequenceKey> failed;
  int64_t accepted = 0, drafted = 0, device_failures = 0;
};

TEST(StepperRunner, ABatchGivesWhatEachSequenceGivesAlone) {
  Bench together;
  for (int32_t i = 0; i < 7; ++i) together.start({1, i, 2}, static_cast<uint64_t>(i), 10 + 3 * i);
  together.run();
  EXPECT_GT(together.accepted, 0);
  EXPECT_LT(together.accepted, together.drafted);
  for (int32_t i = 0; i < 7; ++i) {
    Bench alone;
    alone.start({1, i, 2}, static_cast<uint64_t>(i), 10 + 3 * i);
    alone.run();
    EXPECT_EQ(together.answers[i], alone.answers[0]);
    EXPECT_EQ(alone.answers[0].size(), static_cast<size_t>(10 + 3 * i));
  }
  EXPECT_EQ(together.target.open_sequences() + together.draft.open_sequences(), 0u);
}

// Two answers to the same prompt share its KV cache, even if the first has already emitted tokens. The prompt is
// prefilled once, and each text equals that of the answer running alone.
TEST(StepperRunner, AnswersToOnePromptShareIt) {
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
  const auto start = [&prompt](Bench& b, uint64_t seed, SequenceKey same) {
    SequenceSpec spec;
    spec.request.prompt = prompt;
    spec.request.options.max_tokens = 30;
    spec.request.seed = seed;
    spec.same_prompt = same;
    return b.start(spec);
  };
  Bench shared;
  size_t longest_target = 0, longest_draft = 0;
  const SequenceKey first = start(shared, 1, -1);
  const auto watch = [](size_t& longest) {
    return [&longest](std::span<const decode::Extension> extensions) {
      for (const decode::Extension& e : extensions) longest = std::max(longest, e.tokens.size());
    };
  };
  shared.target.before_pass = watch(longest_target);
  start(shared, 2, first);
  EXPECT_EQ(longest_target, 0u) << "the prompt was run again";
  for (int step = 0; step < 3; ++step) {
    std::vector<StepResult> results(1);
    shared.runner.step({&first, 1}, results);
    auto& out = shared.answers[first];
    out.insert(out.end(), results[0].emitted.begin(), results[0].emitted.end());
    shared.left[first] -= static_cast<int64_t>(results[0].emitted.size());
  }
  shared.draft.before_pass = watch(longest_draft);
  start(shared, 3, first);
  EXPECT_LE(longest_target, 9u);
  start(shared, 4, 12345);  // there is no such sequence, so the prompt is prefilled
  EXPECT_EQ(longest_target, prompt.size() - 1);
  longest_target = 0;
  shared.run();
  EXPECT_LE(longest_target, 9u);
  EXPECT_EQ(longest_draft, prompt.size()) << "the draft of 2 and 4 reads it by itself, that of 3 does not";
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Bench alone;
    start(alone, seed, -1);
    alone.run();
    EXPECT_EQ(shared.answers[static_cast<SequenceKey>(seed - 1)], alone.answers[0]) << "seed " << seed;
  }
  EXPECT_EQ(shared.target.open_sequences() + shared.draft.open_sequences(), 0u);
}

TEST(StepperRunner, ATargetThatFailsOnOneSequenceFailsThatOneOnly) {
  Bench b;
  fail_on_poison(b.target);
  b.start({1, 2}, 1);
  const SequenceKey bad = b.start({1, kPoison, 2}, 2);
  b.start({1, 3}, 3);
  b.run();
  EXPECT_EQ(b.failed, std::set<SequenceKey>{bad});
  EXPECT_TRUE(b.answers[bad].empty());
  for (const SequenceKey good : {SequenceKey{0}, SequenceKey{2}}) EXPECT_EQ(b.answers[good].size(), 30u);
  EXPECT_EQ(b.target.open_sequences() + b.draft.open_sequences(), 0u);
}

// The runner must distinguish failures of the device or its library from failures that one sequence causes, whether or
// not this sequence is alone in its pass.
TEST(StepperRunner, OnlyTheDevicesFailuresAreTheDevices) {
  for (const ErrorKind kind : {ErrorKind::kDevice, ErrorKind::kInternal, ErrorKind::kModel})
    for (const bool alone : {true, false}) {
      Bench b;
      fail_on_poison(b.target, kind);
      b.start({1, kPoison, 2}, 2);
      if (!alone) b.start({1, 3}, 3);
      b.run();
      EXPECT_EQ(b.failed.size(), 1u);
      EXPECT_EQ(b.device_failures, kind == ErrorKind::kDevice) << alone;
    }
  Bench foreign;
  foreign.target.before_pass = [](std::span<const decode::Extension> extensions) {
    if (extensions[0].num_logits > 0) throw std::runtime_error("CUDA error: an illegal memory access");
  };
  foreign.start({1, 2}, 1);
  foreign.run();
  EXPECT_EQ(foreign.device_failures, 1);
  // A text for which the target computes NaN is no failure of the device, because a client may send any text.
  Bench nan;
  nan.target = Model(
      kTokens,
      [](std::span<const int32_t>, std::span<float> logits) {
        std::fill(logits.begin(), logits.end(), std::numeric_limits<float>::quiet_NaN());
      },
      kLength);
  nan.start({1, 2}, 1);
  nan.run();
  EXPECT_EQ(nan.failed.size(), 1u);
  EXPECT_EQ(nan.device_failures, 0);
}

TEST(StepperRunner, ADraftThatFailsCostsOnlyTheSpeculation) {
  Bench b;
  fail_on_poison(b.draft);
  b.start({1, 2}, 1);
  b.start({1, kPoison, 2}, 2);
  b.run();
  EXPECT_TRUE(b.failed.empty());
  EXPECT_EQ(b.answers[1].size(), 30u);
  EXPECT_EQ(b.runner.stage_seconds().draft_failures, 1);
  EXPECT_GT(b.accepted, 0) << "the other one still speculates";
}

// If the device is lost in any pass of the target or the draft, the step throws DeviceLost, and no sequence fails by
// itself.
TEST(StepperRunner, ALostDeviceIsNoFailureOfASequence) {
  for (const bool draft : {false, true})
    for (const bool alone : {false, true}) {
      Bench b;
      if (!alone) b.start({1, 3}, 3);
      b.start({1, 2}, 1);
      (draft ? b.draft : b.target).before_pass = [](auto) { throw DeviceLost("gone"); };
      EXPECT_THROW(b.run(), DeviceLost) << draft << alone;
      EXPECT_TRUE(b.failed.empty());
      EXPECT_EQ(b.runner.stage_seconds().draft_failures, 0);
    }
}

TEST(StepperRunner, AFailedStartLeavesNothingBehind) {
  Bench b;
  SequenceSpec spec;
  spec.request.options.max_tokens = 5;
  EXPECT_THROW(b.runner.start(spec), Error) << "no prompt";
  const std::vector<int32_t> foreign = {1, 12};
  spec.request.prompt = foreign;
  EXPECT_THROW(b.runner.start(spec), Error) << "outside the vocabulary";
  EXPECT_EQ(b.target.open_sequences(), 0u);
  b.start({1}, 1);
  b.run();
  EXPECT_EQ(b.answers.begin()->second.size(), 30u);
}

TEST(StepperRunner, WithoutADraftOrWithKZeroItDecodesPlainly) {
  Bench plain(0);
  plain.start({1, 2}, 5);
  plain.run();
  EXPECT_EQ(plain.drafted, 0);
  EXPECT_EQ(plain.draft.passes, 0);
  SystemClock clock;
  Model target = table();
  StepperRunner bare(target, nullptr, {{-1, 8, VerifyRule::kToken}, 0.7}, clock);
  const std::vector<int32_t> prompt = {1, 2};
  SequenceSpec spec;
  spec.request.prompt = prompt;
  spec.request.options.max_tokens = 30;
  spec.request.seed = 5;
  const SequenceKey key = bare.start(spec);
  EXPECT_TRUE(bare.prefill(key, 512).whole);
  std::vector<int32_t> answer;
  while (answer.size() < 30) {
    StepResult result;
    bare.step({&key, 1}, {&result, 1});
    ASSERT_EQ(result.emitted.size(), 1u);
    answer.push_back(result.emitted[0]);
  }
  EXPECT_EQ(answer, plain.answers[0]);
}

TEST(StepperRunner, TimeIsCountedByStage) {
  Bench b;
  b.start({1, 2, 3, 4}, 1);
  b.run();
  const StageSeconds s = b.runner.stage_seconds();
  EXPECT_GT(s.prompt, 0);
  EXPECT_GT(s.draft, 0);
  EXPECT_GT(s.verify, 0);
  EXPECT_GE(s.sample, 0);
}

}  // namespace
}  // namespace specdec::deploy
