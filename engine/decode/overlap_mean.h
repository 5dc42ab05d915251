// What many steps saw of a draft's overlap with its target, by position of the draft.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace specdec::decode {

// A mean over some five hundred observations a position, which tells a gain of a few hundredths from none. Where the
// last few dozen contradict it, it starts again from these: the draft, the target or the texts are others now. One
// thread.
class OverlapMean {
 public:
  // The prior is that of every position, and counts for so many observations.
  explicit OverlapMean(double prior = 0.7, double weight = 50);
  void add(std::span<const double> overlaps);      // of one step, by reached position
  double value() const { return sum_ / weight_; }  // of all positions
  double at(size_t position) const;                // positions from kPositions on are one

  static constexpr size_t kPositions = 16;

 private:
  struct Position {
    double sum = 0, weight = 0;
  };
  void start_again();
  std::array<Position, kPositions> positions_{};
  double sum_, weight_;
  double late_ = 0, late_squares_ = 0, late_weight_ = 0;  // of late: what was seen less what was expected
  double squares_ = 0.1;                                  // of that, over a long time
};

}  // namespace specdec::decode
