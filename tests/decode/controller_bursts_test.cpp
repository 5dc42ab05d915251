// Simulates the controller of K with recorded costs under bursts: 1 to 16 answers of 128 tokens that begin together and
// end one after the other. The compared figure is the time until the last answer of a burst ends. Each simulated engine
// serves bursts of all sizes, mixed, from its first step on. The figure therefore includes the time that the controller
// needs to learn the costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/philox.h"
#include "engine/decode/control/controller.h"

namespace specdec::decode {
namespace {

constexpr int kAnswerTokens = 128, kBursts = 8, kMostAnswers = 16, kBurstServers = 3;

// Recorded costs in milliseconds. `passes`: (rows of a target pass, its time), interpolated linearly. A draft pass
// takes draft + draft_per_answer · answers.
struct Machine {
  const char* name;
  std::vector<std::pair<double, double>> passes;
  double draft, draft_per_answer;

  double pass(double rows) const {
    size_t i = 1;
    while (i + 1 < passes.size() && passes[i].first < rows) ++i;
    const auto [x0, y0] = passes[i - 1];
    const auto [x1, y1] = passes[i];
    return y0 + (y1 - y0) * (rows - x0) / (x1 - x0);
  }
  double draft_pass(int answers) const { return draft + draft_per_answer * answers; }
};

// First machine: measured in the server with a target of 93 M weights in bf16 and a draft of 0.3 M, on two threads.
// Second machine: the figures by number of rows in docs/benchmarks.md, on one thread.
const std::array<Machine, 2> kMachines = {
    Machine{"AVX-512",
            {{1, 5.9},
             {7, 5.9},
             {8, 6.4},
             {9, 6.9},
             {10, 7.0},
             {12, 7.5},
             {16, 9.5},
             {20, 11.3},
             {24, 13.1},
             {28, 15.5},
             {32, 17.6},
             {40, 21.6},
             {48, 25.9},
             {56, 29.8},
             {64, 34},
             {80, 46},
             {144, 84}},
            0.02,
            0.012},
    Machine{
        "AVX2", {{1, 1.25}, {2, 1.52}, {3, 1.76}, {4, 2.23}, {5, 2.63}, {8, 4.0}, {16, 7.73}, {144, 67}}, 0.01, 0.006}};

// How much other processes on the machine slow passes down. In addition, each recorded time varies randomly by about a
// tenth.
struct Weather {
  // Standard deviation of x in the factor e^x by which all passes slow down for about 25 steps.
  double wander = 0;
  // Standard deviation of x in the factor (rows / 12)^x by which passes slow down for about 100 steps, because other
  // processes use memory bandwidth or arithmetic units.
  double tilt = 0;
  double hiccups = 0;  // probability per step that the next four passes take twice as long
};

// A simulated server with a draft, and what its controllers of K have learned.
struct Server {
  const Machine& machine;
  double overlap;  // mean over answers; within an answer, runs of tokens have an overlap of almost 1 or almost 0
  Weather weather = {};
  int fixed_k = -1;
  uint64_t seed = 1;
  CostModel costs = {};
  OverlapMean seen = OverlapMean();
  int plain_owed = -1;
  uint64_t steps = 0, bursts = 0;
  // The logarithm of the factor of Weather::wander. The times that step() returns exclude this factor, but include
  // those of tilt and hiccups. The times that the cost model gets include all three.
  double pace = 0;
  double tilt = 0;
  int slow = 0;  // passes left in a hiccup

  struct Answer {
    KController controller;
    double overlap;
    PhiloxStream random;
    int left = kAnswerTokens;
    bool easy = false;
    int k = 0;
  };

  double burst(int size) {
    std::vector<Answer> answers;
    for (int i = 0; i < size; ++i) {
      PhiloxStream random(seed, 64 * bursts + static_cast<uint64_t>(i));
      const double own = overlap + 0.05 * std::sqrt(12.0) * (random.uniform() - 0.5);
      answers.push_back({KController({.fixed_k = fixed_k, .seen = &seen, .plain_owed = plain_owed}, &costs),
                         std::clamp(own, 0.0, 0.97), random});
    }
    ++bursts;
    double milliseconds = 0;
    while (!answers.empty()) {
      milliseconds += step(answers);
      std::erase_if(answers, [](const Answer& a) { return a.left <= 0; });
    }
    return milliseconds;
  }
  double step(std::vector<Answer>& answers) {
    const int batch = static_cast<int>(answers.size());
    std::vector<KController*> controllers;
    for (Answer& a : answers) {
      a.controller.expect(0, a.left);
      controllers.push_back(&a.controller);
    }
    KController::choose(controllers, batch);
    int depth = 0, rows = batch;
    for (Answer& a : answers) {
      a.k = std::min(a.controller.decision().k, a.left - 1);
      depth = std::max(depth, a.k);
      rows += a.k;
    }
    PhiloxStream noise(seed + 100, steps++);
    const auto timed = [&](double of) {
      return of * std::exp(pace + 0.2 * (noise.uniform() + noise.uniform() + noise.uniform() - 1.5));
    };
    pace = 0.96 * pace + weather.wander * std::sqrt((1 - 0.96 * 0.96) * 12) * (noise.uniform() - 0.5);
    tilt = 0.99 * tilt + weather.tilt * std::sqrt((1 - 0.99 * 0.99) * 12) * (noise.uniform() - 0.5);
    if (slow > 0)
      --slow;
    else if (weather.hiccups > 0 && noise.uniform() < weather.hiccups)
      slow = 4;
    const double pass = machine.pass(rows) * std::pow(rows / 12.0, tilt) * (slow > 0 ? 2 : 1);
    for (int i = 0; i < depth; ++i) costs.record_draft(batch, timed(machine.draft_pass(batch)));
    costs.record_target(batch, static_cast<double>(rows) / batch, timed(pass));
    for (Answer& a : answers) verify(a);
    return depth * machine.draft_pass(batch) + pass;
  }
  void verify(Answer& a) {
    constexpr double kHard = 0.05, kEasy = 0.97;
    std::vector<double> overlaps;
    int accepted = 0;
    while (static_cast<int>(overlaps.size()) < a.k && accepted == static_cast<int>(overlaps.size())) {
      if (a.random.uniform() > 0.5) a.easy = a.random.uniform() < (a.overlap - kHard) / (kEasy - kHard);
      overlaps.push_back(a.overlap <= kHard ? a.overlap : a.easy ? kEasy : kHard);
      accepted += a.random.uniform() < overlaps.back();
    }
    a.controller.observe(a.k, accepted, overlaps);
    seen.add(overlaps);
    plain_owed = a.controller.plain_owed();
    a.left -= accepted + 1;
  }
};

// Returns the total milliseconds of all bursts by burst size (index 1 to kMostAnswers), summed over `servers` servers.
std::vector<double> bursts(const Machine& machine, double overlap, const Weather& weather, int fixed_k,
                           uint64_t servers = kBurstServers) {
  std::vector<double> out(kMostAnswers + 1, 0.0);
  for (uint64_t server = 0; server < servers; ++server) {
    Server s{.machine = machine, .overlap = overlap, .weather = weather, .fixed_k = fixed_k, .seed = 1000 * server + 1};
    for (int i = 0; i < kBursts * kMostAnswers; ++i) {
      const int size = 1 + 7 * i % kMostAnswers;
      out[static_cast<size_t>(size)] += s.burst(size);
    }
  }
  return out;
}

TEST(ControllerBursts, NeverALossAndNearTheBestFixedK) {
  for (const Machine& machine : kMachines)
    for (const double overlap : {0.8, 0.64, 0.4, 0.02}) {
      std::vector<double> best(kMostAnswers + 1, HUGE_VAL);
      for (int k = 0; k <= 6; ++k) {
        const std::vector<double> fixed = bursts(machine, overlap, {}, k);
        for (size_t i = 1; i < best.size(); ++i) best[i] = std::min(best[i], fixed[i]);
      }
      for (const double wander : {0.0, 0.15}) {
        const std::vector<double> took = bursts(machine, overlap, {.wander = wander}, -1);
        for (int size = 1; size <= kMostAnswers; ++size) {
          const auto i = static_cast<size_t>(size);
          const double plain = kBurstServers * kBursts * kAnswerTokens * machine.pass(size);
          const std::string where = std::string(machine.name) + ", overlap " + std::to_string(overlap) + ", wander " +
                                    std::to_string(wander) + ", bursts of " + std::to_string(size);
          EXPECT_GE(plain / took[i], 0.97) << where;
          if (plain > 1.2 * best[i]) {
            EXPECT_GE(best[i] / took[i], 0.95) << where << ", where the best fixed K gains " << plain / best[i];
          }
        }
      }
    }
}

// Simulates disturbances that can mislead the cost model. In one, the cost of a pass with many rows relative to a pass
// with few rows changes slowly. In another, all passes are slow for a short time. Plain decoding is simulated with the
// same disturbances instead of computed, so this test needs more servers and a looser bound.
TEST(ControllerBursts, HardlyALossInBadWeather) {
  constexpr uint64_t kServers = 12;
  for (const Weather& weather :
       {Weather{.wander = 0.15, .tilt = 0.2}, Weather{.wander = 0.1, .tilt = 0.1, .hiccups = 0.01}})
    for (const double overlap : {0.74, 0.64}) {
      const std::vector<double> plain = bursts(kMachines[0], overlap, weather, 0, kServers),
                                took = bursts(kMachines[0], overlap, weather, -1, kServers);
      for (size_t size = 1; size <= kMostAnswers; ++size)
        EXPECT_GE(plain[size] / took[size], 0.96) << "overlap " << overlap << ", tilt " << weather.tilt << ", hiccups "
                                                  << weather.hiccups << ", bursts of " << size;
    }
}

}  // namespace
}  // namespace specdec::decode
