// The baseline: the acceptance expected while nothing is wrong, by stratum (kind of request) and draft position. It
// comes from the gate's roll-outs or from recorded traffic; the detector and the charts compare traffic with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/schema/acceptance_record.h"
#include "base/schema/validation_report.h"

namespace specdec::monitor {

// The baseline of one stratum: its rolled-out acceptance (docs/glossary.md), the same quantity that the server exports.
struct StratumBaseline {
  static constexpr size_t kPositions = 8;  // positions in acceptance records; later positions are counted in the eighth
  // The expected overlap at each position (b_i in detector.h). If there are fewer than kPositions, the later positions
  // were not measured.
  std::vector<double> overlap;
  double mean = 0;  // mean of the requests' x (detector.h)
  double standard_error = 0;
  double share = 0;  // this stratum's share of the baseline's requests
  // Standard deviation of a request's x around the value expected for the positions it reached; 0 = unknown.
  double sd = 0;
  double wander = 0;  // standard deviation of the slow, benign variation of the mean
  int64_t n = 0;      // number of requests that it was measured on
};

struct Baseline {
  static constexpr int kVersion = 1;  // file schema "specdec.baseline/1"
  static constexpr size_t kMaxStrata = 30;
  using Stratum = std::pair<const std::string, StratumBaseline>;  // a stratum with its name
  std::map<std::string, StratumBaseline> strata;                  // "" holds the other requests; see find()
  std::set<std::string> folded;  // names of strata that were too small and became part of ""
  // True if made from a report: stratum "" then also covers unknown domains under the gate's conditions.
  bool open = true;
  std::string conditions;     // if `open`: the part of every stratum's name after the domain
  std::string draft, target;  // first 12 digits of the fingerprints, "" = not stated

  // Returns a pointer to the stratum whose baseline applies to `key`, or null if there is none.
  const Stratum* find(const std::string& key) const;
};

// Returns the stratum's name: domain × temperature bin {0, (0, .7], (.7, 1.2], > 1.2} × constrained or not × overlap or
// efficiency. Examples: "code", "code t0", "code t0.7 json", "- t1.2+ eff". "-" stands for no domain. The bin (.7, 1.2]
// and unconstrained text add nothing to the name; "eff" marks records that state only accepted / drafted.
std::string stratum_key(const AcceptanceRecord& record);
std::string stratum_conditions(double temperature, bool constrained, bool efficiency);

// Returns a stratum for each domain of the report, and a stratum "" from all roll-outs for requests of unknown domain
// (its share is 0 if there are domains). All have the gate's own conditions: its temperature, and free text. Throws
// Error(kData) if the report has no roll-out.
Baseline baselines(const ValidationReport& report);

// The least data for a baseline. With fewer requests, or over a shorter time, the slow variation of the mean (wander)
// cannot be told from noise.
struct BaselineNeeds {
  int64_t min_stratum = 200;  // requests needed for a stratum of its own; smaller strata become part of ""
  static constexpr int64_t kBucket = 50;
  int64_t min_buckets = 20;  // number of buckets of kBucket requests
  double min_days = 1;
};
struct EstimatedBaseline {
  Baseline baseline;
  int64_t requests = 0, skipped = 0;  // skipped: requests with fewer than 8 tested positions
  double days = 0, wander = 0;        // wander of all strata together
  std::string problem;                // why there is too little data for a baseline; "" = there is enough
};
// Estimates a baseline from requests. `for_each(take)` is called once, and again if there is enough data. Each call
// must pass every record to `take`, in any order.
// * overlap: b_{s,i} = Σ overlap_i / Σ reached_i. Then one constant is added to all b_{s,i} of a stratum, so that the
// requests' mean bet, Σ (b_t − x_t) / (1 − b_t + .01), is 0. Without it the estimate is biased, because requests that
// reach late positions are the lucky ones.
// * wander: the square root of the between-bucket variance component of the residuals in time order (one-way ANOVA). It
//   is the largest over the bucket lengths 20, 40, 80, … that leave min_buckets buckets, raised to its one-sided 95 %
//   upper bound. All strata share it; a stratum whose own wander is larger uses its own.
// * standard_error: the larger of the standard errors from bucket means and from independent requests.
EstimatedBaseline estimate_baseline(
    const std::function<void(const std::function<void(const AcceptanceRecord&)>&)>& for_each,
    const BaselineNeeds& needs = {});

Json to_json(const Baseline& baseline);
Baseline baseline_from_json(const Json& object, const std::string& where);

}  // namespace specdec::monitor
