// Chooses K from measured acceptance and measured cost; 0 when speculation does not pay. Reads no clock: costs are given to
// it, so that recorded costs replay in tests. Exactness: decisions depend on past rounds, on q at the position about to be
// drawn and on kept tokens, never on the value a drawn token turns out to have in the target (kept-token rule).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"

namespace specdec::decode {

struct ControllerOptions {
  int fixed_k = -1;           // >= 0: always this K
  int max_k = 8;
  double decay = 0.98;        // per step, of the overlap estimates
  int probe_interval = 64;    // plain steps between probes while K = 0
  double confidence_floor = 0.0;  // 0 = derived from measured costs
  double prior_overlap = 0.7;     // of every position before it was seen; an engine may give its running mean
  double prior_weight = 4.0;      // in observations
  std::vector<std::array<int, 3>> schedule = {};  // [batch_lo, batch_hi, k] ascending: K until costs are measured; the last holds on
  std::vector<int> tree = {};     // of SpeculationOptions: a K of it is its first K levels, verified in a pass of all their nodes
  bool free_draft = false;        // drafting costs nothing: c = 0 (suffix_drafter.h)
  double assumed_draft_cost = 0.1;  // c where no costs are given (null CostModel); v is then 1
};

ControllerOptions controller_options(const SpeculationOptions& options);
ControllerOptions suffix_controller_options(const SpeculationOptions& options);  // of chains that cost nothing to draft

// Seconds of one call by batch size, moving averages; shared by every request of an engine. Samples that are not positive are
// ignored, outliers clipped at twice the average; the first three count by their least, since first calls are slow. A figure
// that was not renewed for 256 passes of its batch size is forgotten when the next sample comes: it may be of a busier hour.
class CostModel {
 public:
  void record_draft(int batch, double seconds);            // one draft step
  void record_target(int batch, int rows, double seconds); // one pass of `rows` tokens a sequence (rows = K + 1), sampling included
  double draft_cost(int batch) const;                      // c = draft step / plain target step; NaN until both measured
  double verify_cost(int batch, int k) const;              // v(K, B); interpolated over measured rows; NaN until measured
  bool ready(bool drafting = true) const;                  // a plain pass, a verifying pass and, if `drafting`, a draft step were measured
  bool wants(int batch, int rows) const;  // such a pass was measured less than twice, or not in the last 256 of this batch size
 private:
  struct Cell {
    double seconds = 0;
    int64_t count = 0;
    int64_t measured_at = 0;  // pass of its batch size
    void add(double sample);
  };
  int nearest(int batch, const std::vector<bool>& usable) const;
  double target_seconds(int batch, int rows) const;
  std::vector<std::vector<Cell>> target_;  // [batch][rows]
  std::vector<Cell> draft_;                // [batch]
  std::vector<int64_t> passes_;            // [batch] of the target
};

// What a new request expects of the draft: the mean overlap of an engine's requests so far, older ones fading. One thread.
class OverlapMean {
 public:
  explicit OverlapMean(double prior = ControllerOptions{}.prior_overlap) : sum_(prior * kPriorWeight) {}
  void add(std::span<const double> overlaps);  // of one step, by reached position
  double value() const { return sum_ / weight_; }

 private:
  static constexpr double kPriorWeight = 50;  // reached positions that the prior counts for
  double sum_, weight_ = kPriorWeight;
};

// Per request: overlap by position with decay, started from a shared prior. One thread.
class KController {
 public:
  KController(ControllerOptions options, const CostModel* costs);  // of a tree K is at most its depth
  // K of the coming step: argmax of (1 + Σ_{i≤K} Π_{j≤i} c_j) / (K·c + v(K)); now and then one more, where that pass's cost is old.
  int choose_k(int batch);
  // Asked after a token was drawn and kept, before the next draft pass: may drafting stop here? confidences[i] is the draft's
  // probability of kept token i (greedy: max_probability). Going on pays while (Π of acceptance given confidence) × (expected
  // overlap of the next position) > rate × (c + v(k+1) − v(k)).
  bool stop_after(std::span<const double> confidences, int batch) const;
  // The step just verified. overlaps: reached positions; confidences as above; ratios[i] = min(1, p/q) of the token drafted at
  // reached position i. The last two teach what a confidence is worth and may be empty.
  void observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences = {},
               std::span<const double> ratios = {});
  double expected_overlap(int position) const;
  // Tokens per plain-step time; 1: of plain decoding. What the last choose_k expected; what choose_k would now, without choosing.
  double rate() const { return rate_; }
  double expected_rate(int batch) const;
  bool adaptive() const { return options_.fixed_k < 0; }
  const std::vector<int>& tree() const { return options_.tree; }  // empty: a chain
  int max_k() const { return options_.fixed_k < 0 ? options_.max_k : options_.fixed_k; }

 private:
  static constexpr int kBins = 8;
  double acceptance_given(double confidence) const;
  double pooled() const;
  bool measured() const { return !costs_ || costs_->ready(!options_.free_draft); }
  double draft_cost(int batch) const;
  double verify_cost(int batch, int k) const;
  int unmeasured_k(int batch) const;
  int best_k(int batch, const std::vector<double>& overlap, double* rate) const;
  std::vector<double> expected_overlaps() const;

  ControllerOptions options_;
  const CostModel* costs_;
  std::vector<double> weight_, sum_;               // [max_k] observations, decayed
  double prior_weight_;                            // decays with them
  std::array<double, kBins> bin_weight_{}, bin_sum_{};  // acceptance by confidence
  double rate_ = 1;                                // tokens per plain-step time, predicted at the last choose_k
  int plain_since_probe_ = 0, plain_asked_ = 0, longer_asked_ = 0, batch_ = 1;
  bool probing_ = false, probe_paid_ = false, exploring_ = false;
};

}  // namespace specdec::decode
