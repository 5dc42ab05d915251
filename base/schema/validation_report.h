// report.json of `validate` (schema "specdec.validate/1"): what the gate decided and every figure behind it. Read by
// package and monitor. In JSON: verdict, reason, started, seconds, tool_version, inputs {target, draft, data, contexts,
// split, device, dtype, temperature, floor, goal}, judged_by, next, acceptance, segments, baseline, speed, predictions
// and lossless as in the contract; `speed` and `lossless` are absent where they were not measured. overlap_sum_at is
// stored as its mean, `overlap`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/statistics.h"
#include "base/verdict.h"

namespace specdec {

struct RolloutFigures {
  int k = 0;
  std::string verify;
  Estimate alpha;  // mean overlap over reached positions, per conversation
  AcceptanceCounts counts;
};

struct SegmentFigure {
  std::string name;
  Estimate alpha;
  RolloutFigures rollout;            // per-position baseline of the segment, for the monitor
  double entropy = 0;                // of the target's distribution at the measured positions, nats a token
  std::optional<double> floor = {};  // that its acceptance is judged by; none: reported only
};

// What else ran on the machine while something was timed. CPUs are means over the timed seconds.
struct MachineUse {
  int cpus = 0;       // that this program may use; 0: the system does not tell what others use
  int threads = 0;    // of this program
  double others = 0;  // CPUs that other processes used, `stolen` included
  // of these: what the hypervisor gave to other machines, and what a cgroup's limit kept from this program
  double stolen = 0;
  double taken = 0;         // share of its threads' CPU that this left too little for, in [0, 1]
  int64_t runs = 0;         // timed, each one with and without the draft
  int64_t disturbed = 0;    // of these: others took too much meanwhile, so that they were repeated
  int64_t disagreeing = 0;  // of these: repeated because the cost of a step was unlike that of the other runs
  bool busy = false;        // too few runs were left alone: their times decide nothing
  bool known() const { return cpus > 0; }
};
Json to_json(const MachineUse& use);

// The K for batch sizes `low` to `high`, and the figure that speaks for it or against it.
struct ScheduleRow {
  int low = 1, high = 1;
  int k = 0;              // 0: plain decoding
  bool measured = false;  // else predicted from costs and overlaps
  int figure_k = 0;       // K that the figure is of, also where k is 0; 0: there is no figure
  double speedup = 0;
  Interval ci = {};  // where measured
  bool validated() const { return measured && k > 0 && ci.low > 1; }
  bool operator==(const ScheduleRow& other) const {
    return std::array{low, high, k} == std::array{other.low, other.high, other.k};
  }
};
// [batch_lo, batch_hi, k], as engines and the controller take it
using ScheduleRanges = std::vector<std::array<int, 3>>;
ScheduleRanges ranges_of(const std::vector<ScheduleRow>& schedule);

struct ValidationReport {
  static constexpr int kVersion = 1;
  Verdict verdict = Verdict::kInconclusive;  // is one that is_gate_verdict() knows
  std::string reason;                        // one line
  struct Figure {                            // that the verdict was judged by
    std::string check, segment;              // as in deploy/report/gate_checks.h
    double value = 0;
    Interval ci = {};
    double limit = 0;  // that the interval was compared with
  };
  std::vector<Figure> judged_by;  // the decisive ones; of a pass all
  std::string next;               // the one command to run next
  std::string started, tool_version;
  double seconds = 0;
  Fingerprint target, draft;  // of the two directories, as measured
  std::string target_path, draft_path, data_path, data_digest, contexts, split, device, dtype;
  double temperature = 1, floor = 0.6, goal = 0.7;
  // acceptance
  Estimate alpha;  // .n = requests
  double alpha_tokens = 0, greedy_agreement = 0;
  double entropy = 0;  // of p at the same positions, nats a token: what any draft is up against
  int64_t tokens = 0;
  RolloutFigures rollout;
  std::vector<SegmentFigure> segments;
  struct SequencePoint {
    int64_t requests;
    double alpha, low, high;
  };
  std::vector<SequencePoint> sequence;  // how alpha and its interval came to be; the last point is alpha itself
  int64_t requests_available = 0;       // that could have been scored: the split, at most --max-requests
  int64_t requests_needed = 0;          // after which the verdict on acceptance was sure; 0: it is not
  // The same requests with another draft: an earlier report's, or the one that serves (--against).
  struct Baseline {
    Estimate difference;               // of alpha, this draft's minus the other's; .n = paired requests
    std::string draft_path, draft_id;  // of --against; "": a report
    std::optional<double> min_gain;    // that the difference is judged by; none: reported only
    struct Segment {
      std::string name;
      Estimate difference;
      bool judged;  // has requests enough: fails where it is surely worse than kSegmentLoss
    };
    std::vector<Segment> segments;
  };
  static constexpr double kSegmentLoss = 0.02;
  std::optional<Baseline> baseline;
  // speed
  bool has_speed = false;
  double draft_cost = 0;                                   // c at batch 1
  std::map<int, double> verify_cost;                       // batch → v
  std::map<int, std::map<int, double>> verify_cost_table;  // batch → K → v, may be empty
  Estimate speedup;                                        // measured at batch 1, .n = prompts
  double predicted_speedup = 0;
  int best_k = 0;  // the K it was measured with
  struct TableRow {
    int batch, k;
    double speedup;
  };
  std::vector<TableRow> table;
  std::vector<ScheduleRow> schedule;
  std::optional<MachineUse> machine;  // while the speed-up was measured; absent in reports of earlier programs
  bool prediction_fits() const { return predicted_speedup >= speedup.ci.low && predicted_speedup <= speedup.ci.high; }
  std::map<int, double> break_even;  // batch → the least constant acceptance that pays; absent: none does
  struct Prediction {                // for an engine that is not here, from its costs and the acceptance measured here
    int batch;
    double draft_cost, verify_cost;  // c and v
    int k;                           // the best one
    double speedup;
    std::optional<double> break_even;
  };
  std::vector<Prediction> predictions;
  // exactness
  bool has_lossless = false;
  int64_t greedy_prompts = 0, greedy_identical = 0, near_ties = 0, differences = 0;
  double sampled_p_value = 1;
  std::vector<double> request_alphas;  // one a request as scored, with request_ids: for paired comparison
  std::vector<std::string> request_ids;

  void validate(const std::string& where) const;
};
Json to_json(const ValidationReport& report);
ValidationReport validation_report_from_json(const Json& object, const std::string& where);

}  // namespace specdec
