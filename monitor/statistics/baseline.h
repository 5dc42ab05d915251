// The baseline: the acceptance expected while nothing is wrong, by stratum (kind of request) and draft position. It
// comes from the gate's roll-outs or from recorded traffic. The detector and the charts compare traffic with the
// baseline.
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

// The baseline of one stratum, in terms of rolled-out acceptance (docs/glossary.md), which is what the server exports.
struct StratumBaseline {
  static constexpr size_t kPositions = 8;  // positions in acceptance records; later positions are counted in the eighth
  // The expected overlap at each draft position (b_i in detector.h). If `overlap` is shorter than kPositions, the later
  // positions were not measured.
  std::vector<double> overlap;
  double mean = 0;  // mean over the stratum's requests of x = Σ overlap / Σ reached
  double standard_error = 0;
  double share = 0;  // this stratum's share of the baseline's requests
  // Standard deviation of a request's x = Σ overlap / Σ reached around the value expected for the draft positions that
  // the request reached; 0 = unknown.
  double sd = 0;
  double wander = 0;  // standard deviation of the slow, benign variation of the mean
  int64_t n = 0;      // number of requests from which these figures were computed
};

struct Baseline {
  static constexpr int kVersion = 1;  // file schema "specdec.baseline/1"
  static constexpr size_t kMaxStrata = 30;
  using Stratum = std::pair<const std::string, StratumBaseline>;  // a stratum with its name
  std::map<std::string, StratumBaseline> strata;                  // "" has the requests of no other stratum; see find()
  std::set<std::string> folded;                                   // names of small strata that were merged into ""
  // True if the baseline comes from a validation report. Then stratum "" also covers requests of domains that the
  // report does not have, if they have the gate's temperature and no grammar.
  bool open = true;
  std::string conditions;     // if `open`: the part of every stratum's name after the domain
  std::string draft, target;  // first 12 digits of the fingerprints, "" = not stated

  // Returns the stratum (kind of request) for the name that stratum_key() gives a request, or null if the baseline does
  // not cover such requests.
  const Stratum* find(const std::string& key) const;
};

// Returns the name of a record's stratum: domain × temperature bin {0, (0, .7], (.7, 1.2], > 1.2} × constrained by a
// grammar or not × overlap or efficiency. Examples: "code", "code t0", "code t0.7 json", "- t1.2+ eff". "-" stands for
// no domain. The bin (.7, 1.2] and unconstrained text add nothing to the name. "eff" marks records that state only
// accepted / drafted.
std::string stratum_key(const AcceptanceRecord& record);
std::string stratum_conditions(double temperature, bool constrained, bool efficiency);

// Returns a stratum for each domain of the report, and a stratum "" from all roll-outs, for requests of unknown domain
// (its share is 0 if there are domains). All strata have the gate's own conditions: its temperature, and no grammar.
// Throws Error(kData) if the report has no roll-outs.
Baseline baselines(const ValidationReport& report);

// The least data from which a baseline is estimated. With fewer requests, or over a shorter time, the slow variation of
// the mean (wander) cannot be told from noise.
struct BaselineNeeds {
  int64_t min_stratum = 200;  // requests needed for a stratum of its own; smaller strata are merged into ""
  static constexpr int64_t kBucket = 50;
  int64_t min_buckets = 20;  // least number of buckets of kBucket consecutive requests
  double min_days = 1;
};
struct EstimatedBaseline {
  Baseline baseline;
  int64_t requests = 0, skipped = 0;  // skipped: requests that reached fewer than 8 draft positions
  double days = 0, wander = 0;        // wander: slow variation of the mean acceptance over all requests
  std::string problem;                // why there is too little data for a baseline; "" = there is enough
};
// Estimates a baseline from requests. for_each(take) must pass every record to `take`, in any order. It is called once,
// and a second time if there is enough data.
// * overlap: for stratum s (kind of request) and draft position i, b_{s,i} = Σ overlap_i / Σ reached_i over the
//   stratum's requests. One constant is then added to all b_{s,i} of a stratum, so that the mean of (b_t − x_t) / (1 −
//   b_t + .01) over its requests t is 0. Without this constant the estimate is biased, because the late positions are
//   reached mostly by requests with a high acceptance.
// * wander: the standard deviation of the slow variation of the mean. It is the square root of the variance component
//   between buckets of consecutive residuals (one-way ANOVA), the largest over the bucket lengths 20, 40, 80, … that
//   leave min_buckets buckets, raised to its one-sided 95 % upper bound. All strata share it, except that a stratum
//   with a larger wander uses its own.
// * standard_error: the larger of the standard errors computed from bucket means and from independent requests.
EstimatedBaseline estimate_baseline(
    const std::function<void(const std::function<void(const AcceptanceRecord&)>&)>& for_each,
    const BaselineNeeds& needs = {});

Json to_json(const Baseline& baseline);
Baseline baseline_from_json(const Json& object, const std::string& where);

}  // namespace specdec::monitor
