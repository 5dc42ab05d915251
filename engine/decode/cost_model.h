// What the passes of target and draft cost, in seconds, learned from the passes themselves. Reads no clock: seconds are
// given to it, so that recorded costs replay in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace specdec::decode {

// Shared by every request of a draft. A pass of the target costs what its rows cost, all sequences' together: plain
// decoding of twelve takes about as long as six that verify one drafted token each. So every pass teaches two curves of
// seconds over rows, the one of its batch size and the one of all batch sizes, and what a pass would cost is read from
// both, each weighted by how surely it is known. A batch size that was hardly ever seen, such as those that a burst
// passes through when its answers end, is then judged by what the others measured. Costs are compared, and measured at
// different times: what makes every pass slower or faster for a while (a clock, neighbours) must not look like a
// difference between them. So the logarithm of a sample is that of its cell plus a pace that wanders, plus noise, and
// both are followed by Kalman's filter (1960) with a diagonal covariance: a pass that is well known tells of the pace,
// one that is new tells of itself. Only ratios of the variances enter; of a sample's noise the pace's step is 0.2 and a
// cell's 0.003 a pass. Samples that are not positive are ignored, outliers are clipped at a quarter more or less than
// what was expected unless three agree that had passes of other sizes between them, and slow first calls are dropped.
class CostModel {
 public:
  CostModel() = default;
  CostModel(CostModel&&) = default;
  CostModel& operator=(CostModel&&) = default;
  CostModel another_draft() const;  // of the same target: what its passes cost is shared with this one, from both sides

  void record_draft(int batch, double seconds);      // one draft step
  void record_read(int64_t tokens, double seconds);  // the draft read so much of a text, to draft behind it
  void record_target(int batch, double rows,
                     double seconds);  // one pass of `rows` tokens a sequence (K + 1, their mean), sampling included
  // NaN until one was measured. `rows`: of all sequences together.
  double target_seconds(int batch, double rows) const;
  // Standard deviation of the logarithm of such a pass over a plain one, as far as passes tell.
  double target_doubt(int batch, double rows) const;
  double draft_seconds(int batch) const;  // by its ratio to a plain pass, at the nearest batch size that was measured
  double verify_seconds(int batch, int k) const { return target_seconds(batch, static_cast<double>(batch) * (k + 1)); }
  double read_cost(int batch) const;   // of a token that the draft reads / plain target step; 0 until measured
  double draft_cost(int batch) const;  // c = draft step / plain target step
  double verify_cost(int batch, int k) const { return verify_seconds(batch, k) / verify_seconds(batch, 0); }  // v(K, B)
  // a plain pass, a verifying pass and, if `drafting`, a draft step were measured
  bool ready(bool drafting = true) const;
  static constexpr int64_t kRefresh = 256;
  // Such a pass (rows a sequence) was measured less than twice, or not in the last `refresh` ones of this batch size;
  // asks: … and this is a step to make it, the same for every sequence of the step.
  bool is_stale(int batch, int rows, int64_t refresh = kRefresh) const;
  bool should_measure(int batch, int rows, int64_t refresh = kRefresh) const;

 private:
  struct Pace {
    double factor = 1, variance = 0;  // seconds of any pass now / those its cell says
    int64_t passes = 0;
  };
  // A sample that differs from what was expected by more than a factor of `most` is clipped, until several agree. Where
  // the same samples also tell the pace, those in a row cannot agree: only samples of other cells between them tell a
  // cell from the pace.
  struct Outliers {
    double most;
    bool tell_pace;
  };
  struct Cell {
    double seconds = 0, rows = 0;  // at a pace of 1, of a pass of about so many rows
    double variance = 0;           // of log seconds, in variances of a sample
    int64_t count = 0, at = 0;     // pass of any kind that was the last
    int64_t measured_at = 0;       // pass of its curve
    int clipped = 0;               // samples in a row that were clipped: above 0 upwards, below 0 downwards
    double variance_now(const Pace& pace) const;
    // `expected`: seconds at a pace of 1 for exactly this many rows. Returns whether the cell was known, so that the
    // sample tells of the pace too.
    bool add(double sample, double of_rows, double expected, const Pace& pace, const Outliers& outliers);
  };
  struct Estimate {
    double seconds = 0, variance = 0;  // at a pace of 1; infinite: nothing was measured
  };
  struct Curve {
    std::vector<Cell> cells;  // of ascending rows
    int64_t passes = 0;
    int measured = 0;  // of `cells`
    bool add(size_t cell, double rows, double seconds, const Pace& pace);
    Estimate line(double rows, const Pace& pace) const;
    Estimate at(double rows, const Pace& pace) const;
  };
  struct Target {
    std::vector<Curve> batches;  // [batch]; cells by half a row a sequence
    Curve all;                   // cells by rows, from 16 on 8 an octave
    Pace pace;
    double noise = 0.02;                    // variance of the logarithm of a sample, of late
    bool plain = false, verifying = false;  // passes that were measured
  };
  Estimate estimate(int batch, double rows) const;
  int draft_basis(int batch) const;
  std::shared_ptr<Target> target_ = std::make_shared<Target>();
  std::vector<Cell> draft_;  // [batch]
  Cell read_;                // of a token
};

}  // namespace specdec::decode
