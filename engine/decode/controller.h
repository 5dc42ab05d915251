// Chooses K from measured acceptance and measured cost; 0 when speculation does not pay. Reads no clock: costs are given to
// it, so that recorded costs replay in tests. Exactness: decisions depend on past rounds, on q at the position about to be
// drawn and on kept tokens, never on the value a drawn token turns out to have in the target (kept-token rule).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/run_options.h"

namespace specdec::decode {

struct ControllerOptions {
  int fixed_k = -1;           // >= 0: always this K
  int max_k = 8;
  double decay = 0.92;        // per step, of the overlap estimates
  int probe_interval = 64;    // plain steps between probes while K = 0; more where that many do not pay for a probe:
  double probe_share = 0.008; // a probe may take so much more than a plain step, of the time between two
  double least_gain = 0.03;   // that drafting must promise before plain steps are left: less is within what estimates err and changing over costs
  double confidence_floor = 0.0;  // 0 = derived from measured costs
  double prior_overlap = 0.7;     // of every position before it was seen; an engine may give its running mean
  double prior_weight = 8.0;      // in observations
  int plain_owed = -1;        // plain steps before the first probe, of a draft that others have tried; -1: a whole interval
  std::vector<std::array<int, 3>> schedule = {};  // [batch_lo, batch_hi, k] ascending: K until costs are measured; the last holds on
  std::vector<int> tree = {};     // of SpeculationOptions: a K of it is its first K levels, verified in a pass of all their nodes
  bool free_draft = false;        // drafting costs nothing: c = 0 (suffix_drafter.h)
  double assumed_draft_cost = 0.1;  // c where no costs are given (null CostModel); v is then 1
};

ControllerOptions controller_options(const SpeculationOptions& options);
ControllerOptions suffix_controller_options(const SpeculationOptions& options);  // of chains that cost nothing to draft

// Seconds of one call by batch size; shared by every request of a draft. Costs are compared, and measured at different times: what makes
// every pass slower or faster for a while (a clock, neighbours) must not look like a difference between them. So the logarithm of a sample is
// that of its cell plus a pace that wanders, plus noise, and both are followed by Kalman's filter (1960) with a diagonal covariance: a pass
// that is well known tells of the pace, one that is new tells of itself. Only ratios of the variances enter; of this file's noise the
// pace's step is 0.2 and a cell's 0.001 a pass. Samples that are not positive are ignored, outliers clipped at twice what was expected, slow
// first calls dropped; a figure that was not renewed for 256 passes of its batch size is forgotten when the next sample comes.
class CostModel {
 public:
  CostModel() = default;
  CostModel(CostModel&&) = default;
  CostModel& operator=(CostModel&&) = default;
  CostModel another_draft() const;  // of the same target: what its passes cost is shared with this one, from both sides

  void record_draft(int batch, double seconds);            // one draft step
  void record_read(int64_t tokens, double seconds);        // the draft read so much of a text, to draft behind it
  void record_target(int batch, double rows, double seconds);  // one pass of `rows` tokens a sequence (K + 1, their mean), sampling included
  // Of the nearest batch size that was measured, NaN until one was; interpolated over measured rows.
  double draft_seconds(int batch) const;
  double verify_seconds(int batch, int k) const;
  double read_cost(int batch) const;                       // of a token that the draft reads / plain target step; 0 until measured
  double draft_cost(int batch) const;                      // c = draft step / plain target step
  double verify_cost(int batch, int k) const;              // v(K, B)
  bool ready(bool drafting = true) const;                  // a plain pass, a verifying pass and, if `drafting`, a draft step were measured
  static constexpr int64_t kRefresh = 256;
  static constexpr size_t kCellsPerRow = 2;
  // Such a pass was measured less than twice, or not in the last `refresh` ones of this batch size; asks: … and this is a step to make
  // it, the same for every sequence of the step.
  bool wants(int batch, int rows, int64_t refresh = kRefresh) const;
  bool asks(int batch, int rows, int64_t refresh = kRefresh) const;
 private:
  struct Pace {
    double factor = 1, variance = 0;  // seconds of any pass now / those its cell says
    int64_t passes = 0;
  };
  struct Cell {
    double seconds = 0, rows = 0;  // at a pace of 1; of the target's: of about so many rows
    double variance = 0;           // of log seconds, in variances of a sample
    int64_t count = 0, at = 0;     // pass of any kind that was the last
    int64_t measured_at = 0;       // pass of its batch size
    // `expected`: seconds at a pace of 1 for exactly this many rows. Moves the pace too, if `tells`.
    void add(double sample, double of_rows, double expected, Pace& pace, bool tells);
  };
  struct Batch {
    std::vector<Cell> cells;       // by rows · kCellsPerRow, rounded
    int64_t passes = 0;
    int measured = 0;              // of `cells`
    double interpolated(double rows) const;
    double seconds(int rows) const;
  };
  struct Target {
    std::vector<Batch> batches;    // [batch]
    Pace pace;
  };
  const Batch* basis(int batch) const;
  int draft_basis(int batch) const;
  std::shared_ptr<Target> target_ = std::make_shared<Target>();
  std::vector<Cell> draft_;        // [batch]
  Cell read_;                      // of a token
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

// Why the draft model drafts nothing for a sequence in a step.
enum class PlainReason { kNoDraft, kRequest, kDraftFailed, kDoesNotPay, kSchedule, kMeasuring, kNoRoom, kCatchingUp, kRules, kFromText, kShortAnswer };
inline constexpr int kPlainReasons = 11;
// "no_draft", "request" (asked for), "draft_failed", "does_not_pay", "schedule" (the gate's, until costs are measured), "measuring" (a plain
// pass), "no_room" (the answer or the draft's context ends, or its caches are full), "catching_up" (the draft reads the text), "rules" (no
// token may follow), "from_text" (suffix_drafter.h drafted), "short_answer" (the draft would have to read more than the rest of the
// answer gains).
const char* to_string(PlainReason reason);

// What was chosen for one sequence of one step, and how it went.
struct KDecision {
  int k = 0;
  PlainReason plain = PlainReason::kNoDraft;  // where k is 0
  bool probe = false;          // K = 0 looked better, but it is time to try again
  bool stopped_early = false;  // stop_after() said so
};

// Per request: overlap by position with decay, started from a shared prior. One thread.
class KController {
 public:
  KController(ControllerOptions options, const CostModel* costs);  // of a tree K is at most its depth
  // K of the coming step for sequences that one draft drafts for, in a step of `batch` ones; their costs and trees are the same. A pass of the
  // draft takes as long for few as for all, so that they share a depth D: D and K_i ≤ D maximise Σ_i tau_i(K_i) / Σ_i (D·c + v(K_i)) with
  // tau_i(K) = 1 + Σ_{k≤K} Π_{j≤k} c_ij. Now and then one more, where that pass's cost is old. Where one probes, those for which it does not
  // pay either go along. Sets decision() of each.
  static void choose(std::span<KController* const> sequences, int batch);
  int choose_k(int batch);                                 // … of one alone
  // Before it chooses: tokens that the draft has to read before it can draft, and tokens that are likely to come. K > 0 where what these gain
  // exceeds what reading takes, (tokens to come / batch) · (1 − 1 / rate) > tokens to read · read_cost, both in plain steps.
  void expect(int64_t to_read, int64_t to_come);
  const KDecision& decision() const { return decision_; }
  int plain_owed() const { return plain_owed_; }           // plain steps before the next probe
  // Asked after a token was drawn and kept, before the next draft pass: may drafting stop here? confidences[i] is the draft's
  // probability of kept token i (greedy: max_probability). Going on pays while (Π of acceptance given confidence) × (expected
  // overlap of the next position) > rate × (c · batch / drafting + v(k+1) − v(k)); `drafting`: sequences that the next pass would be for.
  bool stop_after(std::span<const double> confidences, int batch, int drafting) const;
  // The step just verified. overlaps: reached positions; confidences as above; ratios[i] = min(1, p/q) of the token drafted at
  // reached position i. The last two teach what a confidence is worth and may be empty.
  void observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences = {},
               std::span<const double> ratios = {});
  double expected_overlap(int position) const;
  // Tokens per plain-step time and sequence; 1: of plain decoding. What the last choice expected of the whole step; what choose_k would now,
  // without choosing.
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
  int probe_interval() const;
  void probe();
  static bool probe_again(std::span<KController* const> sequences, int batch);
  static void share_depth(std::span<KController* const> open, int batch);
  bool settled(int batch);
  void settle(int k, PlainReason plain);
  double reading() const;
  double rate_of(int batch, std::span<const double> overlap, int k) const;
  double best_rate(int batch, std::span<const double> overlap) const;
  void expected_overlaps(std::span<double> out) const;

  ControllerOptions options_;
  const CostModel* costs_;
  std::vector<double> weight_, sum_;               // [max_k] observations, decayed
  double prior_weight_;                            // decays with them
  std::array<double, kBins> bin_weight_{}, bin_sum_{};  // acceptance by confidence
  double rate_ = 1;                                // tokens per plain-step time, predicted at the last choose_k
  KDecision decision_;
  int plain_owed_ = 0, batch_ = 1;
  int64_t to_read_ = 0, to_come_ = 0;
  double probed_ = -1;                             // mean overlap that the probe just before saw; -1: the last step was none
  bool exploring_ = false, drafting_ = false;      // drafting_: in the last step, not as a probe
};

}  // namespace specdec::decode
