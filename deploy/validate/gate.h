// The gate: a pure function from measured figures to a verdict, in the order of the contract (docs/contract.md, Default
// gate), and the confidence sequences that acceptance is measured by, request after request.
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
  Verdict verdict;     // is one that is_gate_verdict() knows
  std::string reason;  // one line
  // of the check that failed, of those that are open, or of all that passed
  std::vector<ValidationReport::Figure> judged_by = {};
};

// stale (why the draft is, "" if it is not or that was allowed) · not lossless · fail · not worth it · pass · else
// inconclusive. A part that was not measured (alpha.n = 0, has_speed or has_lossless false) cannot fail, and without it
// there is no pass.
GateVerdict judge(const ValidationReport& report, const std::string& stale = "");

// Throws Error(kUsage): outside [0, 1], or a floor below 0.5 without --force. `flag`: whose value it is.
void check_floor(const std::string& flag, double floor, bool force);

struct AcceptanceRules {
  double floor = 0.60, goal = 0.70;              // of alpha; the goal is only reported
  std::map<std::string, double> segment_floors;  // of the segments that are judged
  bool paired = false;                           // every request has the other draft's alpha, too
  std::optional<double> min_gain;                // of the paired difference
  std::set<std::string> big_segments;            // that may not be worse than the other draft by more than kSegmentLoss
};

// A request that was scored; `other` is another draft's alpha on the same text.
struct ScoredRequest {
  std::string segment;  // "" = none
  double alpha = 0;
  double other = 0;
};

// Acceptance of one draft, one conversation after another in random order: a confidence sequence for all, one a
// segment, and the same of the differences to another draft, d in [-1, 1] as (1 + d) / 2. One may look after every
// conversation and stop. On several judgements at once: a pass needs every floor to be passed, so a draft that is below
// any of them passes with probability <= 5 % however many there are (an intersection-union test, no correction needed);
// a draft that is above all k of them fails with probability <= k · 5 %.
class AcceptanceGate {
 public:
  explicit AcceptanceGate(AcceptanceRules rules);
  void observe(std::span<const ScoredRequest> conversation);  // at least one request
  bool sure() const { return needed_ > 0; }  // every judgement of acceptance is made, or one has failed

  // alpha, segments (name, alpha, floor), baseline (difference, segments, min_gain), sequence, requests_needed, floor
  // and goal.
  void fill(ValidationReport& report) const;

 private:
  struct Track {
    ConfidenceSequence sequence;  // of conversations
    double sum = 0;               // of requests
    int64_t requests = 0;
    Estimate estimate(double scale = 1,
                      double shift = 0) const;  // mean of requests; the interval is widened to hold it
  };
  bool decided() const;  // as judge() would say, were nothing more to come

  AcceptanceRules rules_;
  Track all_;
  std::map<std::string, Track> segments_;
  Track difference_;
  std::map<std::string, Track> segment_differences_;
  std::vector<ValidationReport::SequencePoint> points_;
  int64_t needed_ = 0;
};

// Alpha now minus alpha of an earlier report on the same request ids, as a sequence over conversations (of the ids; a
// request that is not in the map is its own). Without any pair .n is 0 and the interval [-1, 1].
Estimate paired_difference(const ValidationReport& now, const ValidationReport& baseline,
                           const std::map<std::string, std::string>& conversations = {});

}  // namespace specdec::deploy
