// Chooses K from measured acceptance and measured cost; 0 when speculation does not pay. Reads no clock: costs are
// given to it, so that recorded costs replay in tests. Exactness: decisions depend on past rounds, on q at the position
// about to be drawn and on kept tokens, never on the value a drawn token turns out to have in the target (kept-token
// rule).
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
  int fixed_k = -1;  // >= 0: always this K
  int max_k = 8;
  double decay = 0.92;         // per step, of the overlap estimates
  int probe_interval = 64;     // plain steps between probes while K = 0; more where that many do not pay for a probe:
  double probe_share = 0.008;  // a probe may take so much more than a plain step, of the time between two
  // that drafting must promise beyond what answers that end unevenly cost: less is within what estimates err
  double least_gain = 0.03;
  double doubts = 1.0;                // … with so many standard deviations of what the target's passes cost taken off
  double confidence_floor = 0.0;      // 0 = derived from measured costs
  const OverlapMean* seen = nullptr;  // what all requests saw of this draft, those of the engine before this one too.
                                      // It outlives the controller
  double prior_overlap = 0.7;         // without `seen`: of every position before it was seen
  double prior_weight = 8.0;          // … in observations
  double seen_weight = 60.0;          // what all requests saw, in observations of one
  int plain_owed = -1;  // plain steps before the first probe, of a draft that others have tried; -1: a whole interval
  // [batch_lo, batch_hi, k] ascending: K until costs are measured; the last holds on
  std::vector<std::array<int, 3>> schedule = {};
  // of SpeculationOptions: a K of it is its first K levels, verified in a pass of all their nodes
  std::vector<int> tree = {};
  bool free_draft = false;          // drafting costs nothing: c = 0 (suffix_drafter.h)
  double assumed_draft_cost = 0.1;  // c where no costs are given (null CostModel); v is then 1
};

ControllerOptions controller_options(const SpeculationOptions& options);
ControllerOptions suffix_controller_options(const SpeculationOptions& options);  // of chains that cost nothing to draft

// Why the draft model drafts nothing for a sequence in a step.
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
// "no_draft", "request" (asked for), "draft_failed", "does_not_pay", "schedule" (the gate's, until costs are measured),
// "measuring" (a plain pass), "no_room" (the answer or the draft's context ends, or its caches are full), "catching_up"
// (the draft reads the text), "rules" (no token may follow), "from_text" (suffix_drafter.h drafted), "short_answer"
// (the draft would have to read more than the rest of the answer gains).
const char* to_string(PlainReason reason);

// What was chosen for one sequence of one step, and how it went.
struct KDecision {
  int k = 0;
  PlainReason plain = PlainReason::kNoDraft;  // where k is 0
  bool probe = false;                         // K = 0 looked better, but it is time to try again
  bool stopped_early = false;                 // stop_after() said so
};

// Per request: what it saw of late by position, drawn towards what all requests saw. One thread.
class KController {
 public:
  KController(ControllerOptions options, const CostModel* costs);  // of a tree K is at most its depth
  // K of the coming step for sequences that one draft drafts for, in a step of `batch` ones; their costs and trees are
  // the same. A pass of the draft takes as long for few as for all, so that they share a depth D, and the target's pass
  // costs what its rows cost together: D and K_i ≤ D maximise Σ_i tau_i(K_i) / (D·c + V(Σ_i (K_i + 1))) with tau_i(K) =
  // 1 + w_i Σ_{k≤K} Π_{j≤k} c_ij, where w_i = √(tokens to come / their mean). Now and then one more, where that pass's
  // cost is old, or one less. Where one probes, those for which it does not pay either go along. Sets decision() of
  // each.
  static void choose(std::span<KController* const> sequences, int batch);
  int choose_k(int batch);  // … of one alone
  // Before it chooses: tokens that the draft has to read before it can draft, and tokens that are likely to come. K > 0
  // where what these gain exceeds what reading takes, (tokens to come / batch) · (1 − 1 / rate) > tokens to read ·
  // read_cost, both in plain steps.
  void expect(int64_t to_read, int64_t to_come);
  const KDecision& decision() const { return decision_; }
  int plain_owed() const { return plain_owed_; }  // plain steps before the next probe
  // Asked after a token was drawn and kept, before the next draft pass: may drafting stop here? confidences[i] is the
  // draft's probability of kept token i (greedy: max_probability). Going on pays while (Π of acceptance given
  // confidence) × (expected overlap of the next position) > rate × (c · batch / drafting + v(k+1) − v(k)); `drafting`:
  // sequences that the next pass would be for.
  bool stop_after(std::span<const double> confidences, int batch, int drafting) const;
  // The step just verified. overlaps: reached positions; confidences as above; ratios[i] = min(1, p/q) of the token
  // drafted at reached position i. The last two teach what a confidence is worth and may be empty.
  void observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences = {},
               std::span<const double> ratios = {});
  double expected_overlap(int position) const;
  // Tokens per plain-step time and sequence; 1: of plain decoding. What the last choice expected of the whole step;
  // what choose_k would now, without choosing.
  double rate() const { return rate_; }
  double expected_rate(int batch) const;
  bool adaptive() const { return options_.fixed_k < 0; }
  const std::vector<int>& tree() const { return options_.tree; }  // empty: a chain
  int max_k() const { return options_.fixed_k < 0 ? options_.max_k : options_.fixed_k; }

 private:
  static constexpr int kBins = 8;
  double acceptance_given(double confidence) const;
  const OverlapMean& seen() const { return options_.seen ? *options_.seen : own_; }
  bool measured() const { return !costs_ || costs_->ready(!options_.free_draft); }
  double draft_cost(int batch) const;
  double verify_cost(int batch, int k) const;
  double pass_cost(int batch, int rows) const;  // of the target, so many rows more than plain
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
  OverlapMean own_;                                     // seen() where it is not shared
  std::array<double, kBins> bin_weight_{}, bin_sum_{};  // acceptance by confidence
  double rate_ = 1;                                     // tokens per plain-step time, predicted at the last choose_k
  KDecision decision_;
  int plain_owed_ = 0, batch_ = 1;
  int in_doubt_ = 0;  // the K that promises to pay, but not surely: a probe's
  int64_t to_read_ = 0, to_come_ = 0;
  double probed_ = -1;  // mean overlap that the probe just before saw; -1: the last step was none
  bool exploring_ = false, drafting_ = false;  // drafting_: in the last step, not as a probe
};

}  // namespace specdec::decode
