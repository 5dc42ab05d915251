// What acceptance is while nothing is wrong, by stratum and position: from the gate's roll-outs or from recorded
// traffic.
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

// Of one stratum: the statistic that the server exports.
struct StratumBaseline {
  static constexpr size_t kPositions = 8;  // as in the records: later ones are folded into the eighth
  std::vector<double> overlap;  // b_i by position; where there are fewer than kPositions, later ones were not measured
  double mean = 0;              // of the requests' x
  double standard_error = 0;
  double share = 0;   // of the baseline's requests
  double sd = 0;      // of a request's x about what its positions promise; 0 = unknown
  double wander = 0;  // sd of the slow, benign movement of its mean
  int64_t n = 0;      // requests it was measured on
};

struct Baseline {
  static constexpr int kVersion = 1;  // file schema "specdec.baseline/1"
  static constexpr size_t kMaxStrata = 30;
  using Stratum = std::pair<const std::string, StratumBaseline>;  // with its name
  std::map<std::string, StratumBaseline> strata;                  // "" = other: see find()
  std::set<std::string> folded;                                   // strata too small for one of their own, in ""
  bool open = true;           // a report's: "" also takes domains never seen, under the conditions of the gate
  std::string conditions;     // of an open one: the rest of the key behind the domain
  std::string draft, target;  // first 12 digits, "" = not said

  // The stratum that judges `key`, nothing where it has no baseline. Pointer into strata.
  const Stratum* find(const std::string& key) const;
};

// domain × temperature bin {0, (0, .7], (.7, 1.2], > 1.2} × constrained or not × what x is: "code", "code t0", "code
// t0.7 json",
// "- t1.2+ eff". "-": no domain. The usual bin (.7, 1.2] has no mark, nor has free text; "eff" marks records that know
// accepted / drafted alone.
std::string stratum_key(const AcceptanceRecord& record);
std::string stratum_conditions(double temperature, bool constrained, bool efficiency);

// Strata by domain, and "" from the roll-outs of everything for requests of no domain known (share 0 beside domains);
// all under the gate's own conditions: its temperature, free text. Throws Error(kData) if the report has no roll-out.
Baseline baselines(const ValidationReport& report);

// Fewer requests, or over a shorter time, cannot tell wander from noise.
struct BaselineNeeds {
  int64_t min_stratum = 200;  // requests for a stratum of its own, else it is folded into ""
  static constexpr int64_t kBucket = 50;
  int64_t min_buckets = 20;  // of kBucket requests
  double min_days = 1;
};
struct EstimatedBaseline {
  Baseline baseline;
  int64_t requests = 0, skipped = 0;  // skipped: fewer than 8 tested positions
  double days = 0, wander = 0;        // of all strata together
  std::string problem;                // why it is none: too little; "" = good
};
// `for_each(take)` gives every record, twice over, in any order. b_{s,i} = Σ overlap_i / Σ reached_i, all moved by one
// number so that the requests' mean bet, Σ (b_t − x_t) / (1 − b_t + .01), is 0: reaching late positions is itself a
// piece of luck. Wander: square root of the between-bucket variance component of residuals in time order (one-way
// ANOVA), the largest over bucket lengths 20, 40, 80, … that leave min_buckets, with what so few swings of it leave
// unknown: of all residuals, or the stratum's own where larger. Standard error: that of bucket means where it is larger
// than that of independent requests.
EstimatedBaseline estimate_baseline(
    const std::function<void(const std::function<void(const AcceptanceRecord&)>&)>& for_each,
    const BaselineNeeds& needs = {});

Json to_json(const Baseline& baseline);
Baseline baseline_from_json(const Json& object, const std::string& where);

}  // namespace specdec::monitor
