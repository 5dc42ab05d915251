// The gate: a pure function from measured figures to a verdict (docs/contract.md, Default gate), and the confidence
// sequences that measure acceptance one conversation after another.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/schema/validation_report.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "deploy/report/gate_checks.h"

namespace specdec::deploy {

struct GateVerdict {
  Verdict verdict;     // a verdict for which is_gate_verdict() is true
  std::string reason;  // one line
  // Figures of the failed check if a check failed, else of the undecided checks, else of all passed checks.
  std::vector<ValidationReport::Figure> judged_by = {};
};

// Decides the verdict: the first that applies in the order stale, not_lossless, fail, not_worth_it, pass, inconclusive.
// `stale` says why the draft is stale; "" if the draft is not stale, or if stale drafts are allowed. A part that was
// not measured (alpha.n = 0, has_speed or has_lossless false) cannot fail, but it prevents the verdict pass.
GateVerdict judge(const ValidationReport& report, const std::string& stale = "");

// Throws Error(kUsage) if `floor` is outside [0, 1], or below 0.5 without --force. `flag` is the option's name for the
// message.
void check_floor(const std::string& flag, double floor, bool force);

struct AcceptanceRules {
  double floor = 0.60, goal = 0.70;              // floor and goal of alpha; the goal is only reported, never judged
  std::map<std::string, double> segment_floors;  // name → floor, for the segments that are judged
  bool paired = false;                           // every request also has the alpha of the draft to compare with
  std::optional<double> min_gain;                // smallest allowed paired difference of alpha; none: not judged
  // Segments in which alpha may be lower than the other draft's by at most kSegmentLoss.
  std::set<std::string> big_segments;
};

// A request that was scored. `other` is the alpha of the draft to compare with, on the same text.
struct ScoredRequest {
  std::string segment;  // "" = none
  double alpha = 0;
  double other = 0;
};

// Measures the acceptance of one draft over conversations in random order. Keeps a confidence sequence for all requests
// and one per segment. With --against it keeps the same sequences for the difference d to the other draft, which lies
// in [-1, 1] and is stored as (1 + d) / 2. The result may be read after every conversation, and measuring may stop at
// any time. A draft passes only if it passes every floor. So a draft below any floor passes with probability <= 5 %,
// for any number of floors (an intersection-union test, which needs no correction). A draft above all k floors fails
// with probability <= k · 5 %.
class AcceptanceGate {
 public:
  explicit AcceptanceGate(AcceptanceRules rules);
  void observe(std::span<const ScoredRequest> conversation);  // must hold at least one request
  bool sure() const { return needed_ > 0; }  // true once all floors are decided or any floor has failed

  // Fills these fields of the report: alpha, segments (name, alpha, floor), baseline (difference, segments, min_gain),
  // sequence, requests_needed, floor and goal.
  void fill(ValidationReport& report) const;

 private:
  struct Track {
    ConfidenceSequence sequence;  // gets the mean alpha of each conversation
    double sum = 0;               // sum of alpha over requests
    int64_t requests = 0;
    // Returns the mean over requests. The interval is over conversations, so it is widened if it does not contain this
    // mean.
    Estimate estimate(double scale = 1, double shift = 0) const;
  };
  bool decided() const;  // true if all floors are decided or any floor has failed

  AcceptanceRules rules_;
  Track all_;
  std::map<std::string, Track> segments_;
  Track difference_;
  std::map<std::string, Track> segment_differences_;
  std::vector<ValidationReport::SequencePoint> points_;
  int64_t needed_ = 0;
};

// Estimates the change of alpha since an earlier report, over the request ids that both reports have, as a confidence
// sequence over conversations. `conversations` maps request ids to conversations; a request without an entry is a
// conversation of its own. If the reports have no request id in common, n is 0 and the interval is [-1, 1].
Estimate paired_difference(const ValidationReport& now, const ValidationReport& baseline,
                           const std::map<std::string, std::string>& conversations = {});

}  // namespace specdec::deploy
