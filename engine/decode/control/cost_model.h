// Learns the cost in seconds of target and draft passes from measurements. It reads no clock: the caller passes seconds
// in, so that tests can replay recorded costs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace specdec::decode {

// The costs of one draft and its target; all requests that use the draft share them. The cost of a target pass depends
// on its rows, summed over all sequences: plain decoding of twelve sequences takes about as long as verifying one
// drafted token for each of six sequences. So every pass updates two curves of seconds over rows: one for its batch
// size and one for all batch sizes. An estimate combines both, each weighted by its certainty. A batch size with few
// samples, for example one that occurs briefly while the last answers of a burst end, thus relies on the samples of
// other batch sizes.
//
// Costs that are compared with each other were measured at different times. A temporary change that affects all passes
// (clock rate, other load) must not look like a difference between them. The logarithm of a sample is therefore
// modelled as the logarithm of its cell's cost, plus a pace that drifts, plus noise. A Kalman filter (1960) with a
// diagonal covariance tracks both cost and pace: a pass with a well known cost updates the pace, and a new kind of pass
// updates its own cell. Only ratios of the variances matter: in units of a sample's noise variance, each pass adds 0.2
// to the variance of the pace and 0.003 to that of a cell.
//
// Samples that are not positive are ignored. A sample that differs from the expected value by more than a factor of
// 1.25 (draft passes and prefill: 2) is clipped, unless it is the third in a row that is too slow or too fast. For
// target passes, a sample counts towards these three only if a pass of another size came in between. If the second or
// third sample of a cell is 1.5 times faster than the cell's estimate, it replaces the estimate, because first calls
// are slow.
class CostModel {
 public:
  CostModel() = default;
  CostModel(CostModel&&) = default;
  CostModel& operator=(CostModel&&) = default;
  // Returns a model for another draft of the same target. Both models share and update the costs of target passes.
  CostModel another_draft() const;

  void record_draft(int batch, double seconds);      // records one draft pass
  void record_read(int64_t tokens, double seconds);  // records a prefill of this many tokens by the draft
  // Records one pass over `rows` tokens per sequence (the mean of K + 1), including sampling.
  void record_target(int batch, double rows, double seconds);
  // Returns the seconds of a target pass over `rows` rows, summed over all sequences; NaN until a pass was measured.
  double target_seconds(int batch, double rows) const;
  // Returns the standard deviation of the estimate of log(cost of this pass / cost of a plain pass).
  double target_doubt(int batch, double rows) const;
  // Returns the seconds of a draft pass, computed from its ratio to a plain target pass at the nearest measured batch
  // size.
  double draft_seconds(int batch) const;
  double verify_seconds(int batch, int k) const { return target_seconds(batch, static_cast<double>(batch) * (k + 1)); }
  // Returns the cost of prefilling one token with the draft, in plain target steps; 0 until measured.
  double read_cost(int batch) const;
  double draft_cost(int batch) const;  // c = draft pass / plain target pass
  double verify_cost(int batch, int k) const { return verify_seconds(batch, k) / verify_seconds(batch, 0); }  // v(K, B)
  // Returns whether a plain pass, a verifying pass and, if `drafting`, a draft pass were measured.
  bool ready(bool drafting = true) const;
  static constexpr int64_t kRefresh = 256;
  // is_stale() returns whether a pass with `rows` rows per sequence was measured fewer than two times, or not within
  // the last `refresh` passes of this batch size. should_measure() returns whether is_stale() is true and the coming
  // step should run a pass of this size to measure it. Within one step, equal arguments give the same result for every
  // sequence.
  bool is_stale(int batch, int rows, int64_t refresh = kRefresh) const;
  bool should_measure(int batch, int rows, int64_t refresh = kRefresh) const;

 private:
  struct Pace {
    double factor = 1, variance = 0;  // factor: seconds of a pass now / its usual seconds (Cell::seconds)
    int64_t passes = 0;
  };
  // A sample that differs from the expected value by more than the factor `most` is clipped until several samples
  // agree. If the samples also update the pace, the factor of all costs (tell_pace), samples of consecutive passes do
  // not count as agreeing: they may be slow together only because the machine is.
  struct Outliers {
    double most;
    bool tell_pace;
  };
  struct Cell {
    double seconds = 0, rows = 0;  // means over the cell's passes; seconds are those at pace 1 (Pace::factor)
    double variance = 0;           // of log seconds, in units of a sample's noise variance
    int64_t count = 0, at = 0;     // at: number of all target passes (Pace::passes) at the last sample
    int64_t measured_at = 0;       // number of the curve's passes (Curve::passes) at the last sample
    int clipped = 0;               // samples clipped in a row: positive if too slow, negative if too fast
    double variance_now(const Pace& pace) const;
    // `expected` is the expected seconds for exactly this many rows at pace 1 (the machine's usual speed). Returns
    // whether the cell had a valid cost before.
    bool add(double sample, double of_rows, double expected, const Pace& pace, const Outliers& outliers);
  };
  struct Estimate {
    double seconds = 0, variance = 0;  // seconds at pace 1 (Pace::factor); variance is infinite if nothing was measured
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
    std::vector<Curve> batches;  // by batch size; cells at 0.5, 1, 1.5, … rows per sequence
    Curve all;                   // all batch sizes; one cell per number of rows up to 16, then 8 cells per doubling
    Pace pace;
    double noise = 0.02;                    // recent variance of the logarithm of a sample
    bool plain = false, verifying = false;  // whether a plain and a verifying pass were measured
  };
  // Whether an estimate is at most the cost of passes of more rows (Curve::at()). New samples are compared with an
  // estimate without this limit, because some passes really take longer than a pass of more rows. Each sample of such a
  // pass would exceed a limited estimate and raise the pass's cost further.
  enum class Cap { kNo, kYes };
  Estimate estimate(int batch, double rows, Cap cap = Cap::kYes) const;
  int draft_basis(int batch) const;
  std::shared_ptr<Target> target_ = std::make_shared<Target>();
  std::vector<Cell> draft_;  // seconds per draft pass, by batch size
  Cell read_;                // seconds per prefilled token
};

}  // namespace specdec::decode
