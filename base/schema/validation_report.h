// report.json of `validate` (schema "specdec.validate/1"): the gate's verdict and every figure that supports it.
// package and monitor read it. The JSON has verdict, reason, started, seconds, tool_version, inputs {target, draft,
// data, contexts, split, device, dtype, temperature, floor, goal}, judged_by, next, acceptance, segments, baseline,
// speed, predictions and lossless as in the contract; `speed` and `lossless` are absent if they were not measured.
// The JSON has the mean `overlap` of each position instead of the sums
// overlap_sum_at.
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
  Estimate alpha;  // mean overlap at reached positions; .n = number of conversations
  AcceptanceCounts counts;
};

struct SegmentFigure {
  std::string name;
  Estimate alpha;
  RolloutFigures rollout;            // the segment's acceptance by position, the monitor's baseline
  double entropy = 0;                // of the target's distribution at the measured positions, in nats per token
  std::optional<double> floor = {};  // the least acceptance that the segment must reach; none = no requirement
};

// The load on the machine while something was timed. Numbers of CPUs are means over the timed seconds.
struct MachineUse {
  int cpus = 0;       // CPUs that this program may use; 0 = the use of the machine is unknown
  int threads = 0;    // threads of this program
  double others = 0;  // CPUs that other processes used, including `stolen`
  // The part of `others` that the hypervisor gave to other machines or that a cgroup limit withheld from this program.
  double stolen = 0;
  // Share of the CPU time of this program's threads that other processes or machines took, in [0, 1].
  double taken = 0;
  int64_t runs = 0;         // number of timed runs, each with and without the draft
  int64_t disturbed = 0;    // runs that were repeated because others took too much CPU meanwhile
  int64_t disagreeing = 0;  // runs that were repeated because their cost per step differed from the other runs'
  bool busy = false;        // too few runs were undisturbed, so their times decide nothing
  bool known() const { return cpus > 0; }
};
void visit_fields(Fields& f, MachineUse& use);

// The K for batch sizes `low` to `high`, and the figure that supports or opposes it.
struct ScheduleRow {
  int low = 1, high = 1;
  int k = 0;              // 0 = plain decoding
  bool measured = false;  // false: predicted from costs and overlaps
  // The K that `speedup` was measured or predicted for, even if k is 0. 0 = there is no such figure.
  int figure_k = 0;
  double speedup = 0;
  Interval ci = {};  // only if `measured`
  bool validated() const { return measured && k > 0 && ci.low > 1; }
  bool operator==(const ScheduleRow& other) const {
    return std::array{low, high, k} == std::array{other.low, other.high, other.k};
  }
};
// [batch_lo, batch_hi, k], the form that engines and the controller take.
using ScheduleRanges = std::vector<std::array<int, 3>>;
ScheduleRanges ranges_of(const std::vector<ScheduleRow>& schedule);

struct ValidationReport {
  static constexpr int kVersion = 1;
  Verdict verdict = Verdict::kInconclusive;  // one of the gate's verdicts (is_gate_verdict())
  std::string reason;                        // one line
  struct Figure {                            // a figure that the verdict was judged by
    std::string check, segment;              // as in deploy/report/gate_checks.h
    double value = 0;
    Interval ci = {};
    double limit = 0;  // the limit that the interval was compared with
  };
  std::vector<Figure> judged_by;  // the decisive figures; for a pass, all figures
  std::string next;               // the one command to run next
  std::string started, tool_version;
  double seconds = 0;
  Fingerprint target, draft;  // of the two directories, as they were measured
  std::string target_path, draft_path, data_path, data_digest, contexts, split, device, dtype;
  std::vector<std::string> flags;  // validate's other flags, as --name=value or --name
  double temperature = 1, floor = 0.6, goal = 0.7;
  // Acceptance
  Estimate alpha;  // acceptance: the mean overlap per request; .n = number of requests
  double alpha_tokens = 0, greedy_agreement = 0;
  double entropy = 0;  // of the target's p at the same positions, in nats per token; no draft can lower it
  int64_t tokens = 0;
  RolloutFigures rollout;
  std::vector<SegmentFigure> segments;
  struct SequencePoint {
    int64_t requests = 0;
    double alpha = 0, low = 0, high = 0;
  };
  // alpha and its interval after growing numbers of scored requests; the last point is alpha itself.
  std::vector<SequencePoint> sequence;
  // Number of requests of the split that could be scored, including those that --max-requests left out. Requests
  // without an answer token inside the models' context cannot be scored and are known only once they were tried.
  int64_t requests_available = 0;
  int64_t requests_needed = 0;  // requests after which the verdict on acceptance was certain; 0 = never
  // Compares this draft with another on the same requests: the draft of an earlier report, or the serving draft
  // (--against).
  struct Baseline {
    Estimate difference;               // of alpha, this draft's minus the other's; .n = paired requests
    std::string draft_path, draft_id;  // the draft given by --against; "" = the baseline is a report
    std::optional<double> min_gain;    // the least difference that is required; none = the difference is only reported
    struct Segment {
      std::string name;
      Estimate difference;
      // True if the segment has enough requests to be judged. A judged segment fails if its alpha is certainly lower
      // than the other draft's by more than kSegmentLoss.
      bool judged = false;
    };
    std::vector<Segment> segments;
  };
  static constexpr double kSegmentLoss = 0.02;
  std::optional<Baseline> baseline;
  // Speed
  bool has_speed = false;
  double draft_cost = 0;                                   // c: cost of one draft token at batch 1
  std::map<int, double> verify_cost;                       // batch size → v: cost of the rest of a step with best_k
  std::map<int, std::map<int, double>> verify_cost_table;  // batch size → K → v, may be empty
  Estimate speedup;                                        // measured at batch 1; .n = number of prompts
  double predicted_speedup = 0;
  int best_k = 0;  // the K that `speedup` was measured with
  struct TableRow {
    int batch = 1, k = 0;
    double speedup = 0;
  };
  std::vector<TableRow> table;
  std::vector<ScheduleRow> schedule;
  std::optional<MachineUse> machine;  // load while the speed-up was measured; absent in reports of earlier versions
  bool prediction_fits() const { return predicted_speedup >= speedup.ci.low && predicted_speedup <= speedup.ci.high; }
  // Batch size → the lowest acceptance, equal at all positions, with which some K has a predicted speed-up above 1. A
  // batch size has no entry if not even an acceptance of 1 is enough.
  std::map<int, double> break_even;
  // A prediction for another engine, from that engine's costs and the acceptance measured here.
  struct Prediction {
    int batch = 1;
    double draft_cost = 0, verify_cost = 0;  // c and v, in plain steps of that engine
    int k = 1;                               // the K with the best speed-up
    double speedup = 0;
    std::optional<double> break_even;
  };
  std::vector<Prediction> predictions;
  // Exactness
  bool has_lossless = false;
  int64_t greedy_prompts = 0, greedy_identical = 0, near_ties = 0, differences = 0;
  double sampled_p_value = 1;
  std::vector<double> request_alphas;  // one per scored request, in the order of request_ids; for paired comparisons
  std::vector<std::string> request_ids;

  void validate(const std::string& where) const;
};
void visit_fields(Fields& f, ValidationReport::Figure& figure);
// The fields "schedule", which engines read, and "schedule_figures", which has the figure that supports each row.
void visit_schedule(Fields& f, std::vector<ScheduleRow>& schedule, Presence presence);
void visit_fields(Fields& f, ValidationReport& report);
Json to_json(const ValidationReport& report);
ValidationReport validation_report_from_json(const Json& object, const std::string& where);

}  // namespace specdec
