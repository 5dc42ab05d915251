// Simulates ten thousand runs of the gate's speed check with recorded costs. The simulated machines have a drifting
// speed and bursts of other processes. Checks how often the gate passes a draft without a gain, and how often it
// refuses a draft without a loss. Pairing, repeats, interval and verdict are the gate's own code; steps, clock and CPU
// meter are simulated.
#include <gtest/gtest.h>

#include <cmath>

#include "deploy/validate/gate.h"
#include "deploy/validate/speed.h"
#include "tests/base/manual_clock.h"

namespace specdec::deploy {
namespace {

// Costs recorded by `validate` on an idle machine, in fp32 with two threads. The draft was llama2xs-279K; the target
// was stories260K made four times as wide and with six more layers. kVerifyCost[K] and kDraftCost are relative to a
// plain step. A plain step takes kPlainSeconds for the smallest models, and is simulated with 20 times that for a
// medium model.
constexpr double kPlainSeconds = 3.0e-4, kDraftCost = 0.062;
constexpr double kVerifyCost[] = {0, 1.178, 1.165, 1.171, 1.240};
constexpr size_t kPrompts = 8, kRounds = 3;
constexpr int kTokens = 64, kCpus = 2;

// The generator SplitMix64 (Steele, Lea and Flood 2014), which takes a few nanoseconds per number.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53 + 0x1.0p-54; }
  double noise() { return (uniform() + uniform() + uniform() - 1.5) * 2; }  // mean 0, standard deviation 1
  double exponential(double mean) { return -mean * std::log(uniform()); }
};

// A simulated machine: its model size and its disturbances while the gate runs.
struct World {
  const char* name;
  double plain_seconds;    // seconds per plain step
  double wander;           // drift of the machine's speed: standard deviation of log(speed) after one second
  double burst_every;      // mean seconds between two bursts; 0: there are none
  double burst_seconds;    // mean length of a burst in seconds
  double slices_a_second;  // 4 ms time slices lost to other processes per second, mean
};
constexpr World kWorlds[] = {{"idle, small model", kPlainSeconds, 0.02, 0, 0, 2},
                             {"wandering pace", kPlainSeconds * 20, 0.15, 0, 0, 1},
                             {"bursts, small model", kPlainSeconds, 0.05, 2, 0.6, 4},
                             {"bursts, larger model", kPlainSeconds * 20, 0.10, 5, 2, 4}};

// A machine whose clock advances with each simulated step. During a burst other processes take half of both CPUs. A
// burst slows plain and speculative steps by different factors, so times measured then do not show the true speed-up.
class Machine final : public CpuMeter {
 public:
  Machine(const World& world, uint64_t seed) : world_(world), random_{seed} {
    next_burst_ = world.burst_every > 0 ? random_.exponential(world.burst_every) : 1e18;
    slowed_[0] = 1.6 + 0.8 * random_.uniform(), slowed_[1] = 1.6 + 0.8 * random_.uniform();
  }
  int cpus() const override { return kCpus; }
  std::optional<CpuTime> read() const override {
    const auto ticks = [](double seconds) { return std::floor(seconds * 100) / 100; };
    return CpuTime{ticks(own_ + others_) + 1, own_, 0};
  }

  // Simulates a step that takes `plain` times as long as an undisturbed plain step. Returns its seconds.
  double step(double plain, bool speculative) {
    double seconds = plain * world_.plain_seconds * std::exp(pace_) * std::max(0.5, 1 + 0.02 * random_.noise());
    if (clock.now >= next_burst_)
      burst_ends_ = next_burst_ + random_.exponential(world_.burst_seconds),
      next_burst_ = burst_ends_ + random_.exponential(world_.burst_every);
    const bool burst = clock.now < burst_ends_;
    if (burst) seconds *= slowed_[speculative];
    if (random_.uniform() < world_.slices_a_second * seconds) seconds += 0.004, others_ += 0.004;
    pace_ += world_.wander * std::sqrt(seconds) * random_.noise() - 0.1 * pace_ * seconds;
    own_ += seconds * kCpus * (burst ? 0.5 : 1);
    others_ += seconds * kCpus * (burst ? 0.5 : 0);
    clock.now += seconds;
    return seconds;
  }
  Random& random() { return random_; }
  testing::ManualClock clock;

 private:
  const World& world_;
  Random random_;
  double pace_ = 0, own_ = 0, others_ = 0, next_burst_ = 0, burst_ends_ = 0, slowed_[2];
};

// One run of a pair that is timed side by side; `k` = 0 decodes plainly. The seed decides which tokens are accepted, so
// repeating the run with the same seed repeats the same work, as in the gate.
class SimulatedRun {
 public:
  SimulatedRun(Machine& machine, int k, double step_cost, double alpha, uint64_t seed)
      : machine_(machine), random_{seed}, k_(k), step_cost_(step_cost), alpha_(alpha) {}
  bool done() const { return tokens_ >= kTokens; }
  double share() const { return static_cast<double>(tokens_) / kTokens; }
  void step() {
    figures.seconds += machine_.step(step_cost_, k_ > 0);
    int accepted = 0;
    while (accepted < k_ && random_.uniform() < alpha_) ++accepted;
    tokens_ = std::min(kTokens, tokens_ + 1 + accepted);
    ++(k_ > 0 ? figures.counts.steps : figures.counts.plain_steps);
  }
  GroupFigures figures;

 private:
  Machine& machine_;
  Random random_;
  int k_, tokens_ = 0;
  double step_cost_, alpha_;
};

// Draws the mean overlap of a prompt. The standard deviation between prompts is 0.08 here; it was 0.03 in the recorded
// run, whose texts were all similar.
double overlap(Random& random) { return std::clamp(0.67 + 0.08 * random.noise(), 0.05, 0.98); }

// Returns the mean number of steps for an answer of kTokens tokens with K = k, over random prompts.
double mean_steps(int k) {
  static std::map<int, double> known;
  auto& steps = known[k];
  if (steps > 0) return steps;
  const World calm{"", kPlainSeconds, 0, 0, 0, 0};
  Machine machine(calm, 1);
  constexpr int kRuns = 200000;
  for (int i = 0; i < kRuns; ++i) {
    SimulatedRun run(machine, k, 1, overlap(machine.random()), machine.random().next());
    while (!run.done()) run.step();
    steps += static_cast<double>(run.figures.counts.steps) / kRuns;
  }
  return steps;
}

// Returns the cost of a step with K = k, relative to a plain step. The recorded cost is scaled so that the true
// speed-up (expected time of a plain answer / that of a speculative answer) is `speedup`.
double step_cost(int k, double speedup) {
  const double recorded = k * kDraftCost + kVerifyCost[k], gains = kTokens / (mean_steps(k) * recorded);
  return recorded * gains / speedup;
}

Verdict verdict(const World& world, int k, double cost, uint64_t seed, bool* busy = nullptr) {
  Machine machine(world, seed * 1000003 + 17);
  double alphas[kPrompts];
  for (double& alpha : alphas) alpha = overlap(machine.random());
  const auto pair = [&](size_t at) {
    SimulatedRun normal(machine, 0, 1, 0, 0),
        speculative(machine, k, cost, alphas[at % kPrompts], Random{seed * 977 + at}.next());
    run_side_by_side(normal, speculative);
    return PairFigures{normal.figures, speculative.figures};
  };
  const TimedPairs pairs =
      time_pairs(kPrompts * kRounds, gate_pairs(kCpus, kTokens * world.plain_seconds), pair, {machine.clock, machine});
  const SpeedupRuns runs = sum_by_prompt(pairs, kPrompts);
  ValidationReport report;
  report.alpha = {0.75, {0.72, 0.78}, 100};
  report.has_lossless = report.has_speed = true;
  report.sampled_p_value = 0.5;
  report.speedup = speedup(runs.normal, runs.speculative);
  report.machine = runs.machine;
  if (busy) *busy = runs.machine.busy;
  return judge(report).verdict;
}

struct Counts {
  int passed = 0, refused = 0, busy = 0;
};
Counts simulate(const World& world, double speedup, int gates) {
  Counts counts;
  for (int gate = 0; gate < gates; ++gate) {
    const int k = 1 + gate % 4;
    bool busy = false;
    const Verdict said = verdict(world, k, step_cost(k, speedup), static_cast<uint64_t>(gate), &busy);
    counts.passed += said == Verdict::kPass;
    counts.refused += said == Verdict::kNotWorthIt;
    counts.busy += busy;
  }
  return counts;
}

// At a true speed-up of exactly 1, "pass" and "not worth it" are both wrong, and each has its highest error rate: with
// a lower true speed-up fewer gates pass, with a higher one fewer refuse.
TEST(SpeedGate, AtATrueSpeedupOfOneEachVerdictComesInAtMostFivePercent) {
  constexpr int kGates = 10000, kEach = kGates / static_cast<int>(std::size(kWorlds));
  int passed = 0, refused = 0;
  for (const World& world : kWorlds) {
    const Counts counts = simulate(world, 1.0, kEach);
    passed += counts.passed, refused += counts.refused;
    EXPECT_LE(counts.passed, 0.06 * kEach) << world.name;  // two standard deviations above 5 %
    EXPECT_LE(counts.refused, 0.06 * kEach) << world.name;
  }
  EXPECT_LE(passed, 0.05 * kGates);
  EXPECT_LE(refused, 0.05 * kGates);
}

TEST(SpeedGate, DecidesWhereSomethingIsToBeDecided) {
  for (const World& world : kWorlds) {
    const Counts gain = simulate(world, 1.5, 100), loss = simulate(world, 0.75, 100);
    EXPECT_EQ(gain.refused + loss.passed, 0) << world.name;
    EXPECT_GE(gain.passed, 95) << world.name;
    EXPECT_GE(loss.refused, 95) << world.name;
  }
}

TEST(SpeedGate, AMachineThatIsAlwaysBusyDecidesNothing) {
  const World busy{"busy", kPlainSeconds, 0.05, 1e-6, 1e9, 10};
  for (const double speedup : {0.75, 1.0, 1.5}) {
    const Counts counts = simulate(busy, speedup, 100);
    EXPECT_EQ(counts.passed + counts.refused, 0) << speedup;
    EXPECT_EQ(counts.busy, 100) << speedup;
  }
}

}  // namespace
}  // namespace specdec::deploy
