// Learns what passes of target and draft cost, in seconds, from the passes themselves. It reads no clock: the caller
// passes seconds in, so that tests can replay recorded costs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace specdec::decode {

// All requests that use a draft share one. A pass of the target costs what its rows cost, summed over all sequences:
// plain decoding of twelve takes about as long as six sequences that verify one drafted token each. So every pass
// updates two curves of seconds over rows, one for its batch size and one for all batch sizes. An estimate combines
// both, each weighted by how certain it is. A batch size that was hardly ever seen, such as those that occur briefly
// when the answers of a burst end, is thus judged by what the others measured.
//
// Costs that are compared were measured at different times, so whatever makes every pass slower or faster for a while
// (the clock rate, neighbours) must not look like a difference between them. The logarithm of a sample is therefore
// modelled as that of its cell, plus a pace that wanders, plus noise, and a Kalman filter (1960) with a diagonal
// covariance follows both: a pass with a well known cost teaches the pace, a new one teaches its own cell. Only ratios
// of the variances matter: in units of a sample's noise, each pass adds 0.2 to the pace's variance and 0.003 to a
// cell's.
//
// Samples that are not positive are ignored. Samples more than a quarter above or below the expected value are clipped,
// unless three agree that had passes of other sizes between them. Slow first calls are dropped.
class CostModel {
 public:
  CostModel() = default;
  CostModel(CostModel&&) = default;
  CostModel& operator=(CostModel&&) = default;
  // Returns a model for another draft of the same target. Both share and update the costs of the target's passes.
  CostModel another_draft() const;

  void record_draft(int batch, double seconds);      // records one draft step
  void record_read(int64_t tokens, double seconds);  // records that the draft prefilled this many tokens
  // Records one pass over `rows` tokens per sequence (the mean of K + 1), including sampling.
  void record_target(int batch, double rows, double seconds);
  // Returns NaN until a pass was measured. `rows` is the sum over all sequences.
  double target_seconds(int batch, double rows) const;
  // Standard deviation of the logarithm of this pass's cost relative to a plain one, as far as samples show it.
  double target_doubt(int batch, double rows) const;
  // Returns the seconds of a draft step, from its ratio to a plain pass at the nearest batch size that was measured.
  double draft_seconds(int batch) const;
  double verify_seconds(int batch, int k) const { return target_seconds(batch, static_cast<double>(batch) * (k + 1)); }
  // Cost of prefilling one token with the draft, in plain target steps; 0 until measured.
  double read_cost(int batch) const;
  double draft_cost(int batch) const;  // c = draft step / plain target step
  double verify_cost(int batch, int k) const { return verify_seconds(batch, k) / verify_seconds(batch, 0); }  // v(K, B)
  // Whether a plain pass, a verifying pass and, if `drafting`, a draft step were measured.
  bool ready(bool drafting = true) const;
  static constexpr int64_t kRefresh = 256;
  // is_stale: whether such a pass (`rows` per sequence) was measured less than twice, or not within the last `refresh`
  // passes of this batch size. should_measure: whether it is stale and this step should measure it; the same for every
  // sequence of the step.
  bool is_stale(int batch, int rows, int64_t refresh = kRefresh) const;
  bool should_measure(int batch, int rows, int64_t refresh = kRefresh) const;

 private:
  struct Pace {
    double factor = 1, variance = 0;  // seconds of a pass now, divided by the seconds of its cell
    int64_t passes = 0;
  };
  // A sample that differs from the expected value by more than the factor `most` is clipped, until several agree. If
  // the same samples also teach the pace, consecutive ones cannot agree: only samples of other cells between them can
  // tell a change of the cell from one of the pace.
  struct Outliers {
    double most;
    bool tell_pace;
  };
  struct Cell {
    double seconds = 0, rows = 0;  // mean rows of its passes, and their seconds at pace 1
    double variance = 0;           // of log seconds, in units of a sample's noise variance
    int64_t count = 0, at = 0;     // at: the pace's pass number at the last sample
    int64_t measured_at = 0;       // the curve's pass number at the last sample
    int clipped = 0;               // samples clipped in a row: positive if too slow, negative if too fast
    double variance_now(const Pace& pace) const;
    // `expected` is the expected seconds at pace 1 for exactly this many rows. Returns whether the cell was known
    // before, in which case the sample teaches the pace too.
    bool add(double sample, double of_rows, double expected, const Pace& pace, const Outliers& outliers);
  };
  struct Estimate {
    double seconds = 0, variance = 0;  // at pace 1; variance is infinite if nothing was measured
  };
  struct Curve {
    std::vector<Cell> cells;  // by ascending rows
    int64_t passes = 0;
    int measured = 0;  // number of cells with a sample
    bool add(size_t cell, double rows, double seconds, const Pace& pace);
    Estimate line(double rows, const Pace& pace) const;
    Estimate at(double rows, const Pace& pace) const;
  };
  struct Target {
    std::vector<Curve> batches;  // [batch]; two cells per row of each sequence
    Curve all;                   // one cell per row up to 16, then 8 per octave
    Pace pace;
    double noise = 0.02;                    // recent variance of the logarithm of a sample
    bool plain = false, verifying = false;  // whether such a pass was measured
  };
  Estimate estimate(int batch, double rows) const;
  int draft_basis(int batch) const;
  std::shared_ptr<Target> target_ = std::make_shared<Target>();
  std::vector<Cell> draft_;  // [batch]
  Cell read_;                // seconds per prefilled token
};

}  // namespace specdec::decode
