// Chooses K from measured acceptance and measured costs; K is 0 when speculation does not pay. It reads no clock: the
// caller passes costs in, so that tests can replay recorded ones. Exactness: decisions depend on past rounds, on q at
// the position about to be drawn and on kept tokens, but never on the target's probability of a token that was just
// drawn (kept-token rule).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/cost_model.h"
#include "engine/decode/overlap_mean.h"

namespace specdec::decode {

struct ControllerOptions {
  int fixed_k = -1;  // >= 0: K is always this
  int max_k = 8;
  double decay = 0.92;      // factor per step by which past overlaps lose weight
  int probe_interval = 64;  // least number of plain steps between two probes while K = 0
  // The extra time of a probe may be at most this share of the plain steps between two probes; if it is more, probes
  // are made further apart.
  double probe_share = 0.008;
  // Drafting must promise at least this gain beyond what is lost because answers end unevenly. Less is within the error
  // of the estimates.
  double least_gain = 0.03;
  // Number of standard deviations of the target's pass costs that is subtracted from the promised gain before that
  // comparison.
  double doubts = 1.0;
  double confidence_floor = 0.0;  // drafting stops below this confidence; 0: the limit follows from measured costs
  // The overlap that all requests saw with this draft, including those of an earlier engine. Must outlive the
  // controller.
  const OverlapMean* seen = nullptr;
  double prior_overlap = 0.7;  // without `seen`: the overlap assumed for every position at first
  double prior_weight = 8.0;   // number of observations that prior_overlap counts for
  double seen_weight = 60.0;   // number of the request's own observations that `seen` counts for
  // Plain steps before the first probe when other requests have tried the draft already; −1: a whole probe interval.
  int plain_owed = -1;
  // Ranges [batch_lo, batch_hi, k], ascending: the K to use until costs are measured. The last range also holds for
  // larger batches.
  std::vector<std::array<int, 3>> schedule = {};
  // The tree of SpeculationOptions; empty: a chain. A K means its first K levels, verified in one pass over all their
  // nodes.
  std::vector<int> tree = {};
  bool free_draft = false;          // drafting costs nothing: c = 0 (suffix_drafter.h)
  double assumed_draft_cost = 0.1;  // c where no costs are given (null CostModel); v is then 1
};

ControllerOptions controller_options(const SpeculationOptions& options);
ControllerOptions suffix_controller_options(const SpeculationOptions& options);  // for drafts from the text

// The reasons why the draft model drafts nothing for a sequence in a step.
enum class PlainReason {
  kNoDraft,
  kRequest,
  kDraftFailed,
  kDoesNotPay,
  kSchedule,
  kMeasuring,
  kNoRoom,
  kCatchingUp,
  kRules,
  kFromText,
  kShortAnswer
};
inline constexpr int kPlainReasons = 11;
// Returns the reason's name: "no_draft", "request" (the client asked for it), "draft_failed", "does_not_pay",
// "schedule" (the gate's, until costs are measured), "measuring" (a plain pass is timed), "no_room" (the end of the
// answer or of the draft's context is reached, or its caches are full), "catching_up" (the draft is prefilling the
// text), "rules" (no token may follow), "from_text" (suffix_drafter.h drafted instead), "short_answer" (prefilling the
// draft would cost more than the rest of the answer gains).
const char* to_string(PlainReason reason);

// The K that was chosen for one sequence in one step, and why.
struct KDecision {
  int k = 0;
  PlainReason plain = PlainReason::kNoDraft;  // the reason if k is 0
  bool probe = false;                         // K = 0 looked better, but drafting is tried again
  bool stopped_early = false;                 // stop_after() ended drafting before K
};

// Controller of one request. Estimates overlap by position from the request's recent steps, shrunk towards what all
// requests saw. Not thread-safe.
class KController {
 public:
  KController(ControllerOptions options, const CostModel* costs);  // a tree limits K to its depth
  // Chooses K for the coming step, for the sequences that share one draft in a step of `batch` sequences; they have the
  // same costs and tree. A draft pass takes as long for few sequences as for all, so they share a depth D, and a target
  // pass costs what all its rows cost together. D and K_i ≤ D therefore maximise Σ_i tau_i(K_i) / (D·c + V(Σ_i (K_i +
  // 1))) with tau_i(K) = 1 + w_i Σ_{k≤K} Π_{j≤k} c_ij and w_i = √(tokens to come / their mean). Now and then K is one
  // more or one less, to measure a pass whose cost is old. When one sequence probes, the others for which drafting does
  // not pay probe with it. Sets decision() of each.
  static void choose(std::span<KController* const> sequences, int batch);
  int choose_k(int batch);  // chooses for this sequence alone
  // Optional, before choosing: `to_read` is the number of tokens that the draft must prefill before it can draft,
  // `to_come` the number of tokens that are likely to follow. K > 0 is then chosen only if the gain exceeds the cost of
  // that prefill: (to_come / batch) · (1 − 1 / rate) > to_read · read_cost, both in plain steps.
  void expect(int64_t to_read, int64_t to_come);
  const KDecision& decision() const { return decision_; }
  int plain_owed() const { return plain_owed_; }  // plain steps before the next probe
  // Returns whether drafting may stop here. Called after a token was drawn and kept, before the next draft pass.
  // confidences[i] is the draft's probability of kept token i (greedy: max_probability). Continuing pays while (Π of
  // acceptance given confidence) × (expected overlap of the next position) > rate × (c · batch / drafting + v(k+1) −
  // v(k)), where `drafting` is the number of sequences in the next draft pass.
  bool stop_after(std::span<const double> confidences, int batch, int drafting) const;
  // Learns from the step just verified. overlaps: one per reached position; confidences: as above; ratios[i] = min(1,
  // p/q) of the token drafted at reached position i. The last two teach how likely a token of a given confidence is
  // accepted; they may be empty.
  void observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences = {},
               std::span<const double> ratios = {});
  double expected_overlap(int position) const;
  // Both return expected tokens per plain-step time and sequence; plain decoding has 1. rate() is what the last choice
  // expected of the whole step; expected_rate() is what choose_k() would expect now, without choosing.
  double rate() const { return rate_; }
  double expected_rate(int batch) const;
  bool adaptive() const { return options_.fixed_k < 0; }
  const std::vector<int>& tree() const { return options_.tree; }  // an empty tree means a chain
  int max_k() const { return options_.fixed_k < 0 ? options_.max_k : options_.fixed_k; }

 private:
  static constexpr int kBins = 8;
  double acceptance_given(double confidence) const;
  const OverlapMean& seen() const { return options_.seen ? *options_.seen : own_; }
  bool measured() const { return !costs_ || costs_->ready(!options_.free_draft); }
  double draft_cost(int batch) const;
  double verify_cost(int batch, int k) const;
  // Seconds of a target pass with `rows` rows more than a plain one.
  double pass_cost(int batch, int rows) const;
  int unmeasured_k(int batch) const;
  int probe_interval() const;
  void probe();
  bool sure(double rate, int batch, int rows, bool drafts) const;
  double unevenness(std::span<KController* const> open, int batch, int rows) const;
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
  std::vector<double> weight_, sum_;                    // [max_k] observations, decayed
  OverlapMean own_;                                     // what seen() returns if no `seen` is shared
  std::array<double, kBins> bin_weight_{}, bin_sum_{};  // acceptance by confidence
  double rate_ = 1;                                     // tokens per plain-step time, predicted at the last choose_k
  KDecision decision_;
  int plain_owed_ = 0, batch_ = 1;
  int in_doubt_ = 0;  // 0, or the K to probe with, because it promises to pay but not surely enough
  int64_t to_read_ = 0, to_come_ = 0;
  double probed_ = -1;  // mean overlap in the last step if that was a probe, else −1
  // drafting_: the last step drafted and was no probe.
  bool exploring_ = false, drafting_ = false;
};

}  // namespace specdec::decode
