#include "engine/decode/control/overlap_mean.h"

#include <algorithm>
#include <cmath>

namespace specdec::decode {

namespace {

constexpr double kDecay = 0.998, kLateDecay = 0.96;
constexpr double kShared = 8;  // in each position's mean, the mean over all positions counts as this many observations
constexpr double kContradicts = 4;  // the mean restarts if the recent error exceeds this many standard deviations
constexpr double kInRuns = 2;  // factor of the recent error's variance, because consecutive observations are correlated
constexpr double kLeastVariance = 0.01, kLeastSeen = 8;

}  // namespace

OverlapMean::OverlapMean(double prior, double weight) : sum_(prior * weight), weight_(weight) {}

double OverlapMean::at(size_t position) const {
  const Position& p = positions_[std::min(position, kPositions - 1)];
  return (p.sum + kShared * value()) / (p.weight + kShared);
}

void OverlapMean::add(std::span<const double> overlaps) {
  observed_ += static_cast<int64_t>(overlaps.size());
  for (size_t i = 0; i < overlaps.size(); ++i) {
    const double surprise = overlaps[i] - at(i);
    late_ = late_ * kLateDecay + surprise;
    late_squares_ = late_squares_ * kLateDecay + surprise * surprise;
    late_weight_ = late_weight_ * kLateDecay + 1;
    squares_ += (1 - kDecay) * (surprise * surprise - squares_);
    Position& p = positions_[std::min(i, kPositions - 1)];
    p.sum = p.sum * kDecay + overlaps[i];
    p.weight = p.weight * kDecay + 1;
    sum_ = sum_ * kDecay + overlaps[i];
    weight_ = weight_ * kDecay + 1;
  }
  if (late_weight_ < kLeastSeen) return;
  const double mean = late_ / late_weight_, of_late = late_squares_ / late_weight_ - mean * mean;
  const double error = std::sqrt(kInRuns * std::max(std::min(squares_, of_late), kLeastVariance) / late_weight_);
  if (std::abs(mean) > kContradicts * error) start_again();
}

void OverlapMean::start_again() {
  const double now = std::clamp(value() + late_ / late_weight_, 0.0, 1.0);
  positions_ = {};
  // Part of the recent observations may be from before the overlap changed. The new mean therefore gets a small weight,
  // so that the next observations dominate it.
  sum_ = now * kLeastSeen;
  weight_ = kLeastSeen;
  late_ = late_squares_ = late_weight_ = 0;
}

}  // namespace specdec::decode
