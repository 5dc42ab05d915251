// Chooses K, the number of tokens to draft, from measured acceptance and measured costs. K is 0 if speculation does not
// pay. The controller reads no clock: the caller passes costs in, so that tests can replay recorded costs.
//
// To preserve the target's distribution, decisions depend only on past steps, on q and on drafted tokens that stay in
// the draft. They never depend on the target's probability of a token that was just drawn.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/control/cost_model.h"
#include "engine/decode/control/overlap_mean.h"
#include "engine/rules/draft_rules.h"

namespace specdec::decode {

struct ControllerOptions {
  int fixed_k = -1;  // >= 0: K always has this value
  int max_k = 8;
  double decay = 0.92;  // factor by which the weight of past overlaps is multiplied per step
  // While K = 0, one step in this many drafts to update the estimates (a probe), unless probe_share demands fewer
  // probes.
  int probe_interval = 64;
  // Maximum extra time of a probe (a step that drafts while K = 0), as a share of the time of the plain steps between
  // two probes. More expensive probes are made less often.
  double probe_share = 0.008;
  // Minimum gain for which drafting is chosen; 0.03: 3 % faster than plain decoding. The gain is counted after
  // subtracting the loss that arises because the answers of a batch end at different times. Smaller gains are within
  // the error of the estimates.
  double least_gain = 0.03;
  // The predicted gain is compared with least_gain after subtracting this many standard deviations of the target's pass
  // costs.
  double doubts = 1.0;
  double confidence_floor = 0.0;  // drafting stops below this confidence; 0: measured costs set the limit
  // The mean overlap over all requests that used this draft. Must outlive the controller. Null: the controller uses
  // only its own observations.
  const OverlapMean* seen = nullptr;
  double prior_overlap = 0.7;  // if `seen` is null: the overlap assumed at first for every position
  double prior_weight = 8.0;   // weight of prior_overlap, in observations
  double seen_weight = 60.0;   // weight of `seen`, in observations of the request itself
  // Number of plain steps before the first probe (a step that drafts while K = 0), if other requests have tried the
  // draft already. −1: as many as between two probes.
  int plain_owed = -1;
  // Ranges [batch_lo, batch_hi, k] in ascending order: the K to use for each batch size until costs are measured. The
  // last range also applies to larger batches.
  std::vector<std::array<int, 3>> schedule = {};
  // The shape of draft trees (SpeculationOptions::tree); empty: drafts are chains. With a tree, K is the number of
  // levels to draft, and one target pass verifies all nodes of these levels.
  std::vector<int> tree = {};
  bool free_draft = false;          // drafting needs no model and costs nothing (suffix_drafter.h)
  double assumed_draft_cost = 0.1;  // if CostModel is null: seconds of a draft pass / of a plain target pass
};

ControllerOptions controller_options(const SpeculationOptions& options);
ControllerOptions suffix_controller_options(const SpeculationOptions& options);  // options for drafts from the text

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
// "schedule" (the schedule, which applies until costs are measured, has K = 0), "measuring" (a plain pass is timed),
// "no_room" (the end of the answer or of the draft's context is reached, or the draft's caches are full), "catching_up"
// (the draft is prefilling the text), "rules" (the logits processors allow no token), "from_text" (suffix_drafter.h
// drafted instead), "short_answer" (the prefill of the draft would cost more than the rest of the answer gains).
const char* to_string(PlainReason reason);

// The K that was chosen for one sequence in one step, and the reason.
struct KDecision {
  int k = 0;
  PlainReason plain = PlainReason::kNoDraft;  // the reason if k is 0
  bool probe = false;                         // K = 0 seemed better, but drafting is tried to update the estimate
  bool stopped_early = false;                 // StopRule ended drafting before K
};

// Decides when drafting of a sequence's chain stops in the coming step. If `limits` is empty, drafting never stops
// early.
struct StopRule {
  rules::AcceptanceTable acceptance = {};
  std::vector<rules::StopLimits> limits;  // limits[i] apply after i + 1 tokens
  // Returns whether drafting stops now. confidences[i] is the draft's probability of drafted token i (greedy:
  // max_probability()); `drafting` is the number of sequences in the draft's last pass.
  bool stops(std::span<const double> confidences, int drafting) const;
};

// Chooses K for one request. Estimates the overlap at each position from the request's recent steps, shrunk towards the
// mean overlap over all requests. Not thread-safe.
class KController {
 public:
  KController(ControllerOptions options, const CostModel* costs);  // a tree limits K to its depth
  // Chooses K for the coming step and sets decision() of each sequence. The sequences share one draft, its costs and
  // its tree; the step has `batch` sequences. A draft pass takes as long for few sequences as for all, so all sequences
  // share a maximum depth D. The cost of a target pass depends on its total number of rows. Therefore D and K_i ≤ D
  // maximise Σ_i tau_i(K_i) / (D·c + V(Σ_i (K_i + 1))), with tau_i(K) = 1 + w_i Σ_{k≤K} Π_{j≤k} o_ij. Here o_ij is the
  // expected overlap at position j, and w_i = √(tokens to come / their mean). c is the cost of a draft pass and V(rows)
  // that of a target pass, both in plain steps.
  //
  // Sometimes K is one more or one less, to measure a pass whose measured cost is old. If one sequence probes (drafts
  // although K = 0 seems better), all other sequences for which drafting seems not to pay probe in the same step.
  static void choose(std::span<KController* const> sequences, int batch);
  int choose_k(int batch);  // chooses for this sequence alone
  // Optional; call it before choosing. `to_read` is the number of tokens that the draft must prefill before it can
  // draft, `to_come` the likely number of remaining tokens. K > 0 is then chosen only if the gain exceeds the cost of
  // this prefill: (to_come / batch) · (1 − 1 / rate) > to_read · read_cost, both in plain steps.
  void expect(int64_t to_read, int64_t to_come);
  const KDecision& decision() const { return decision_; }
  int plain_owed() const { return plain_owed_; }  // plain steps before the next probe (KDecision::probe)
  // Sets `out` to the rule by which a chain of up to `levels` tokens stops. Call it after choosing. Drafting continues
  // while (Π of P(accepted | confidence)) × (expected overlap of the next position) > rate × (c · batch / drafting +
  // v(k+1) − v(k)). Here c is the cost of a draft pass, `drafting` the number of sequences that share it, and v(k) the
  // cost of verifying k tokens. A round on a device verifies all planned rows even if drafting stops early, so it
  // ignores v (draft_levels.cpp).
  void stop_rule(int batch, int levels, StopRule& out) const;
  // Learns from the verified step. overlaps[i] = Σ min(p, q) at the reached draft position i, which is the probability
  // that a token drafted there is accepted. ratios[i] = min(1, p/q) of the token that was drafted there. `confidences`
  // is as in StopRule::stops(). If the verification rule accepts with other probabilities, as for trees, `overlaps` and
  // `ratios` are 1 for accepted and 0 for rejected tokens. From `confidences` and `ratios` the controller learns
  // P(accepted | confidence); both may be empty.
  void observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences = {},
               std::span<const double> ratios = {});
  double expected_overlap(int position) const;
  // rate() and expected_rate() return the expected number of tokens per sequence in the time of a plain step; plain
  // decoding has 1. rate() is the prediction of the last choice for the whole step. expected_rate() is what choose_k()
  // would predict now; it does not change the choice.
  double rate() const { return rate_; }
  double expected_rate(int batch) const;
  bool adaptive() const { return options_.fixed_k < 0; }
  const std::vector<int>& tree() const { return options_.tree; }  // an empty tree means a chain
  int max_k() const { return options_.fixed_k < 0 ? options_.max_k : options_.fixed_k; }

 private:
  static constexpr int kBins = rules::kConfidenceBins;
  bool may_stop() const;
  rules::StopLimits limits_after(int k, int batch) const;
  rules::AcceptanceTable acceptance_table() const;
  const OverlapMean& seen() const { return options_.seen ? *options_.seen : own_; }
  bool measured() const { return !costs_ || costs_->ready(!options_.free_draft); }
  double draft_cost(int batch) const;
  double verify_cost(int batch, int k) const;
  // Returns the seconds of a target pass with `rows` more rows than a plain pass.
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
  std::vector<double> weight_, sum_;                    // [max_k] by position: decayed number and sum of overlaps
  OverlapMean own_;                                     // used if options_.seen is null
  std::array<double, kBins> bin_weight_{}, bin_sum_{};  // acceptance per bin of confidence
  double rate_ = 1;                                     // tokens per plain-step time, as predicted by the last choice
  KDecision decision_;
  int plain_owed_ = 0, batch_ = 1;
  int in_doubt_ = 0;  // number of tokens that the next probe drafts, if drafting promises an uncertain gain; else 0
  int64_t to_read_ = 0, to_come_ = 0;
  double probed_ = -1;  // mean overlap of the last step if it was a probe, else −1
  // drafting_: the last step drafted and was not a probe. exploring_: K is a neighbour of the best K, to measure its
  // cost.
  bool exploring_ = false, drafting_ = false;
};

}  // namespace specdec::decode
