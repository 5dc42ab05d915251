#include "distill/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "distill/run/draft_init.h"
#include "tests/base/manual_clock.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct Fixture {
  std::shared_ptr<model::Decoder> target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  std::vector<TokenRow> train = toy_rows(120, 5), selection = toy_rows(10, 6);
  TrainerOptions options;
  SystemClock clock;

  explicit Fixture(const fs::path& run, int64_t steps = 12) {
    options.run_directory = run;
    options.schedule = {5e-3, 0.05, 0.1, steps, 0};
    options.batch_tokens = 100;
    options.evaluate_every = 4;
    options.checkpoint_every = 3;
    options.seed = 9;
    fs::create_directories(run);
  }
  // Trains to the limit, from the newest intact checkpoint if there is one.
  TrainingSummary run(model::Decoder& draft, const Clock* other = nullptr, const ProgressFn& progress = {}) {
    ModelTeacher teacher(target, train, 1 << 20), judge(target, selection, 1 << 20);
    Trainer trainer(options, {&train, &selection, &teacher, &judge}, draft, other ? *other : clock, progress);
    if (const auto checkpoint = CheckpointStore(options.run_directory / "checkpoints").newest_good())
      trainer.resume(*checkpoint);
    return trainer.run();
  }
  model::Decoder draft() const { return keep_layers(*target, {0, 2}); }
};

TEST(FaultPolicyTest, SkipsRollsBackThenStops) {
  using Action = FaultPolicy::Action;
  FaultPolicy p;
  EXPECT_EQ(p.observe(true), Action::kStep);
  EXPECT_EQ(p.observe(false), Action::kSkip);
  EXPECT_EQ(p.observe(false), Action::kSkip);
  EXPECT_EQ(p.observe(true), Action::kStep) << "three in a row, not three in all";
  for (int round = 1; round <= 3; ++round) {
    EXPECT_EQ(p.observe(false), Action::kSkip);
    EXPECT_EQ(p.observe(false), Action::kSkip);
    EXPECT_EQ(p.observe(false), Action::kRollBack);
    EXPECT_EQ(p.rollbacks(), round);
  }
  p.observe(false);
  p.observe(false);
  EXPECT_EQ(p.observe(false), Action::kStop);
  FaultPolicy later(3);
  later.observe(false);
  later.observe(false);
  EXPECT_EQ(later.observe(false), Action::kStop) << "a resumed run keeps its count";
}

TEST(TrainerTest, RaisesAcceptanceAndWritesWhatItMeasured) {
  const Scratch scratch(true);
  Fixture f(scratch / "run", 150);
  f.options.evaluate_every = 50;
  model::Decoder draft = f.draft();
  int calls = 0;
  std::string last;
  const TrainingSummary s = f.run(draft, nullptr, [&](const Progress& p) {
    last = p.stage;
    if (p.stage != "distill") return;
    ++calls;
    EXPECT_EQ(p.total, 150);
    EXPECT_EQ(p.unit, "steps");
  });
  EXPECT_EQ(last, "measuring and saving the end") << "which takes a while at a real size";
  ASSERT_EQ(s.measured.size(), 4u);
  EXPECT_GT(s.measured.back().score, s.measured.front().score + 0.02);
  EXPECT_EQ(s.steps, 150);
  EXPECT_EQ(calls, 150);
  EXPECT_GT(s.tokens, 0);
  EXPECT_EQ(s.skipped_steps, 0);
  const std::string text = get(scratch / "run/metrics.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 150 + 4);
}

TEST(TrainerTest, EveryLossLowersItself) {
  for (const char* name : {"ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid", "0.1*ce+0.9*tv"}) {
    const Scratch scratch(true);
    Fixture f(scratch / "run", 60);
    f.options.loss.mix = parse_loss(name);
    f.options.accumulate = 2;
    f.options.checkpoint_every = 0;
    f.options.evaluate_every = 60;
    f.train = toy_rows(12, 5);  // few enough to be memorised
    f.selection = f.train;
    model::Decoder draft = f.draft();
    const bool ce = !f.options.loss.mix.needs_target();
    ModelTeacher teacher(f.target, f.train, 0), judge(f.target, f.selection, 0);
    Trainer trainer(f.options, {&f.train, &f.selection, ce ? nullptr : &teacher, ce ? nullptr : &judge}, draft, f.clock,
                    {});
    const TrainingSummary s = trainer.run();
    EXPECT_GT(s.measured.back().score, s.measured.front().score) << name;
  }
}

TEST(TrainerTest, StopsAtTheTimeLimit) {
  const Scratch scratch(true);
  Fixture f(scratch / "run");
  f.options.schedule.total_steps = 0;
  f.options.schedule.time_limit_seconds = 400;
  f.options.evaluate_every = f.options.checkpoint_every = 0;
  // Each reading advances the clock by 1 s, so that the time limit is deterministic.
  const specdec::testing::ManualClock clock(0, 1);
  model::Decoder draft = f.draft();
  const TrainingSummary s = f.run(draft, &clock);
  EXPECT_GE(s.seconds, 400);
  EXPECT_LT(s.seconds, 450);
  EXPECT_EQ(s.measured.front().step, 0);
  EXPECT_EQ(s.measured.back().step, s.steps) << "the last one is always measured";
  EXPECT_GE(s.measured.size(), 10u);
  EXPECT_LE(s.measured.size(), 12u);
}

// A run of six steps is killed (SIGKILL) at every possible change of the file system and then resumed. Its weights are
// bit-identical to those of an uninterrupted run.
TEST(TrainerTest, KilledAnywhereAndResumedGivesTheSameBits) {
  const Scratch scratch(true);
  const auto shorten = [](Fixture& fixture) {
    fixture.options.evaluate_every = 3;
    fixture.options.checkpoint_every = 2;
  };
  Fixture straight(scratch / "straight", 6), f(scratch / "run", 6);
  shorten(straight);
  shorten(f);
  model::Decoder expected = straight.draft();
  straight.run(expected);
  int64_t late = 0;
  const auto start_again = [&] {
    fs::remove_all(scratch / "run");
    fs::create_directories(scratch / "run");
  };
  const auto train = [&] {
    model::Decoder draft = f.draft();
    f.run(draft);
  };
  const int deaths = for_each_kill_point(start_again, train, [&](int) {
    const auto found = CheckpointStore(scratch / "run/checkpoints").newest_good();
    late += found && found->step > 0;
    model::Decoder draft = f.draft();
    const TrainingSummary s = f.run(draft);
    EXPECT_EQ(s.steps, 6);
    EXPECT_EQ(s.measured.size(), 3u);
    EXPECT_TRUE(same_weights(draft, expected));
  });
  EXPECT_GT(deaths, 50);
  EXPECT_GT(late, 20) << "most deaths leave a checkpoint to go on from";
  const std::string text = get(scratch / "run/metrics.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6 + 3) << "no line twice";
}

TEST(TrainerTest, AnotherSeedGivesOtherBits) {
  const Scratch scratch(true);
  Fixture a(scratch / "a"), b(scratch / "b");
  b.options.seed = 10;
  model::Decoder x = a.draft(), y = b.draft();
  a.run(x);
  b.run(y);
  EXPECT_FALSE(same_weights(x, y));
}

TEST(TrainerTest, StopRequestSavesAndSaysHowToGoOn) {
  const Scratch scratch;
  Fixture straight(scratch / "straight");
  model::Decoder expected = straight.draft();
  straight.run(expected);
  Fixture f(scratch / "run");
  // Runs in a child process, because a stop request of a process cannot be withdrawn.
  const int code = in_child(nullptr, "", [&] {
    model::Decoder draft = f.draft();
    f.run(draft, nullptr, [](const Progress& p) {
      if (p.done == 5) request_stop();
    });
  });
  EXPECT_EQ(code, 75);
  const auto found = CheckpointStore(scratch / "run/checkpoints").newest_good();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 5);
  model::Decoder draft = f.draft();
  f.run(draft);
  EXPECT_TRUE(same_weights(draft, expected));
}

// A clock that requests a stop at its n-th reading, so that the stop comes in the middle of a step or an evaluation.
struct StoppingClock final : Clock {
  explicit StoppingClock(int look) : left(look) {}
  double seconds() const override {
    if (--left == 0) request_stop();
    return 0;
  }
  int64_t unix_seconds() const override { return 1700000000; }
  mutable int left;
};

TEST(TrainerTest, AStopInTheMiddleOfAStepGivesTheStepUp) {
  const Scratch scratch;
  Fixture straight(scratch / "straight", 6);
  straight.options.accumulate = 2;
  model::Decoder expected = straight.draft();
  straight.run(expected);
  std::set<int64_t> steps;
  for (int look = 1; look < 40; look += 3) {
    fs::remove_all(scratch / "run");
    Fixture f(scratch / "run", 6);
    f.options.accumulate = 2;
    const StoppingClock clock(look);
    const int code = in_child(nullptr, "", [&] {
      model::Decoder draft = f.draft();
      f.run(draft, &clock);
    });
    if (code == 0) break;
    EXPECT_EQ(code, 75);
    const auto found = CheckpointStore(scratch / "run/checkpoints").newest_good();
    ASSERT_TRUE(found.has_value()) << look;
    steps.insert(found->step);
    model::Decoder draft = f.draft();
    f.run(draft);
    EXPECT_TRUE(same_weights(draft, expected)) << look;
  }
  EXPECT_GE(steps.size(), 4u) << "stopped at several places";
}

TEST(TrainerTest, DivergenceRollsBackThenGivesUp) {
  const Scratch scratch;
  Fixture f(scratch / "run", 200);
  f.options.schedule.peak = 1e30;
  f.options.evaluate_every = 100;
  f.options.checkpoint_every = 0;
  model::Decoder draft = f.draft();
  expect_error(ErrorKind::kInternal, {"diverged", "--lr"}, [&] { f.run(draft); });
  const std::string text = get(scratch / "run/metrics.jsonl");
  size_t rolled = 0;
  for (size_t at = 0; (at = text.find("roll_back", at)) != std::string::npos; ++at) ++rolled;
  EXPECT_EQ(rolled, 3u);
}

TEST(TrainerTest, RecoversWithAHalvedRate) {
  // Makes the weights in memory infinite once. The run recovers by rolling back, because the saved weights are finite.
  const Scratch scratch;
  Fixture f(scratch / "run", 30);
  model::Decoder draft = f.draft();
  ModelTeacher teacher(f.target, f.train, 1 << 20), judge(f.target, f.selection, 1 << 20);
  int64_t poisoned = 0;
  Trainer trainer(f.options, {&f.train, &f.selection, &teacher, &judge}, draft, f.clock, [&](const Progress& p) {
    if (p.done == 7 && poisoned++ == 0) {
      at::NoGradGuard guard;
      draft.weights.norm.fill_(std::numeric_limits<float>::infinity());  // simulates a hardware fault
    }
  });
  const TrainingSummary s = trainer.run();
  EXPECT_EQ(s.steps, 30);
  EXPECT_EQ(s.rollbacks, 1);
  EXPECT_EQ(s.skipped_steps, 2);
  const Json state = CheckpointStore(scratch / "run/checkpoints").newest_good()->state;
  EXPECT_EQ(state["rate_scale"], 0.5);
  EXPECT_EQ(state["rollbacks"], 1);
  draft.weights.visit(draft.config, [](const std::string& name, at::Tensor& t) {
    EXPECT_TRUE(at::isfinite(t).all().item<bool>()) << name;
  });
}

}  // namespace
}  // namespace specdec::distill
