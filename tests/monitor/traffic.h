// Simulates traffic for tests of the detectors: requests whose acceptance varies.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "base/acceptance.h"
#include "base/philox.h"
#include "monitor/statistics/detector.h"

namespace specdec::monitor {

struct Traffic {
  explicit Traffic(uint64_t stream) : random(20261121, stream) {}
  PhiloxStream random;

  double normal() {  // standard normal, by the Box-Muller method
    if (std::exchange(has_spare_, false)) return spare_;
    const double radius = std::sqrt(-2 * std::log(random.uniform())), angle = 2 * std::numbers::pi * random.uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

  // Returns a request with `tested` tokens drafted at position 0. The request has its own acceptance rate, mean +
  // sd·normal(), and its measured overlap has binomial noise around that rate.
  AcceptanceCounts request(double mean, double sd = 0.10, int64_t tested = 200) {
    return request_at(std::clamp(mean + sd * normal(), 0.0, 1.0), tested);
  }
  AcceptanceCounts request_at(double rate, int64_t tested = 200) {
    const double room = std::min(rate, 1 - rate);  // clips the noise symmetrically, so that the mean stays `rate`
    const double x =
        rate + std::clamp(std::sqrt(rate * (1 - rate) / static_cast<double>(tested)) * normal(), -room, room);
    AcceptanceCounts counts;
    counts.steps = tested;
    counts.reached_at = {tested};
    counts.overlap_sum_at = {x * static_cast<double>(tested)};
    return counts;
  }

  // Returns a request of 60 verification steps with k draft tokens each. The acceptance at position i is hazards[i]
  // plus a normal random number of standard deviation `sd`, which all positions of the request share.
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

 private:
  double spare_ = 0;
  bool has_spare_ = false;
};

// Samples beta-distributed acceptance rates from a table of quantiles, which is shifted so that its mean is exactly
// `mean`. Each sample takes one uniform random number.
class BetaRates {
 public:
  BetaRates(double mean, double sd) {
    const double size = mean * (1 - mean) / (sd * sd) - 1, a = mean * size, b = (1 - mean) * size;
    constexpr int kGrid = 20000, kTable = 4096;
    std::vector<double> cumulative(kGrid + 1);
    for (int i = 0; i < kGrid; ++i) {
      const double x = (i + 0.5) / kGrid;
      cumulative[static_cast<size_t>(i) + 1] =
          cumulative[static_cast<size_t>(i)] + std::exp((a - 1) * std::log(x) + (b - 1) * std::log1p(-x));
    }
    double sum = 0;
    for (int q = 0, i = 0; q < kTable; ++q) {
      const double wanted = (q + 0.5) / kTable * cumulative.back();
      while (cumulative[static_cast<size_t>(i) + 1] < wanted) ++i;
      const auto at = static_cast<size_t>(i);
      rates_.push_back((i + (wanted - cumulative[at]) / (cumulative[at + 1] - cumulative[at])) / kGrid);
      sum += rates_.back();
    }
    for (double& rate : rates_) rate = std::clamp(rate + mean - sum / kTable, 0.0, 1.0);
  }
  double draw(PhiloxStream& random) const { return rates_[random.below(rates_.size())]; }

 private:
  std::vector<double> rates_;
};

inline StratumBaseline flat_baseline(double mean, double share = 1) {
  StratumBaseline b;
  b.overlap = {mean};
  b.mean = mean;
  b.share = share;
  return b;
}
inline Baseline by_domain(std::map<std::string, StratumBaseline> strata) {
  Baseline b;
  b.strata = std::move(strata);
  return b;
}
// Returns a baseline with a single stratum, "", which covers the requests of every domain.
inline Baseline flat(double mean) { return by_domain({{"", flat_baseline(mean)}}); }

}  // namespace specdec::monitor
