// Simulated traffic for the detectors: requests whose acceptance varies between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/acceptance.h"
#include "base/philox.h"
#include "monitor/detector.h"

namespace specdec::monitor {

struct Traffic {
  explicit Traffic(uint64_t stream) : random(20261121, stream) {}
  PhiloxStream random;

  double normal() {
    const double u = random.uniform(), v = random.uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }

  // 200 tested tokens at one position; the request's own rate is mean + sd·normal, and each token adds binomial noise.
  AcceptanceCounts request(double mean, double sd = 0.10, int64_t tested = 200) {
    const double rate = std::clamp(mean + sd * normal(), 0.0, 1.0);
    const double x = std::clamp(rate + std::sqrt(rate * (1 - rate) / static_cast<double>(tested)) * normal(), 0.0, 1.0);
    AcceptanceCounts counts;
    counts.steps = tested;
    counts.reached_at = {tested};
    counts.overlap_sum_at = {x * static_cast<double>(tested)};
    return counts;
  }

  // 60 verification steps of K drafted tokens whose acceptance falls with the position; a request's luck moves all positions.
  AcceptanceCounts chain(const std::vector<double>& hazards, size_t k, double sd = 0.08) {
    const double luck = sd * normal();
    AcceptanceCounts counts;
    for (int step = 0; step < 60; ++step) {
      std::vector<double> overlaps;
      int64_t accepted = 0;
      for (size_t i = 0; i < k; ++i) {
        overlaps.push_back(std::clamp(hazards[i] + luck, 0.0, 1.0));
        if (random.uniform() >= overlaps.back()) break;
        ++accepted;
      }
      counts.add_step(static_cast<int64_t>(k), accepted, overlaps);
    }
    return counts;
  }
};

inline StratumBaseline flat_baseline(double mean, double share = 1) { return {{mean}, mean, 0.0, share}; }

}  // namespace specdec::monitor
