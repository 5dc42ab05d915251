// Averages a draft's overlap with its target, Σ min(p, q), over many steps, by position in the draft. Controllers of K
// use the mean as their prior.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace specdec::decode {

// A mean over about five hundred observations per position, enough to distinguish a gain of a few hundredths from none.
// It restarts when the last few dozen observations contradict it, because then the draft, the target or the texts have
// changed. Not thread-safe.
class OverlapMean {
 public:
  // `prior` is assumed for every position and counts as `weight` observations.
  explicit OverlapMean(double prior = 0.7, double weight = kAssumed);
  void add(std::span<const double> overlaps);      // overlaps of one step, by reached position
  double value() const { return sum_ / weight_; }  // mean over all positions
  // Returns how many overlaps were added. Below kAssumed, the mean is mostly the prior.
  int64_t observed() const { return observed_; }
  static constexpr int64_t kAssumed = 50;
  double at(size_t position) const;  // positions from kPositions − 1 on share one mean

  static constexpr size_t kPositions = 16;

 private:
  struct Position {
    double sum = 0, weight = 0;
  };
  void start_again();
  std::array<Position, kPositions> positions_{};
  double sum_, weight_;
  int64_t observed_ = 0;
  // Decayed sums over recent observations. late_ sums the observed minus the expected overlap, late_squares_ the square
  // of this difference.
  double late_ = 0, late_squares_ = 0, late_weight_ = 0;
  double squares_ = 0.1;  // long-run mean square of observed minus expected overlap
};

}  // namespace specdec::decode
