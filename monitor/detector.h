// Drift of acceptance, request by request: the stratified Shiryaev–Roberts e-detector (Shin, Ramdas, Rinaldo 2024) with a baseline
// that follows the positions reached. Under "the conditional mean is at least the bound" the mean time to a false alarm is at
// least A for any dependence and variance between requests.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/json.h"
#include "base/schema/validation_report.h"

namespace specdec::monitor {

// What the gate's roll-outs measured for one stratum: the statistic that the server exports.
struct StratumBaseline {
  std::vector<double> overlap;   // b_i by position; the last one stands for all later positions
  double mean = 0;               // rolled-out acceptance
  double standard_error = 0;
  double share = 0;              // of the baseline's requests
};

// Strata by domain, and "" from the roll-outs of everything for requests of no domain known (share 0 beside domains). Throws
// Error(kData) if the report has no roll-out.
std::map<std::string, StratumBaseline> baselines(const ValidationReport& report);

// One request's evidence. b is the bound of its own positions: Σ_i reached_i·b_i / Σ reached_i − tolerance.
struct Observation {
  double x = 0;      // Σ overlap / Σ reached, in [0, 1]
  double b = 0;      // in [0, 1)
  double expected = 0;  // b before the tolerance
  int64_t reached = 0;
};
Observation observe(const AcceptanceCounts& counts, const StratumBaseline& baseline, double tolerance);

// max(0.01, 2·standard error, 1.5·wander): what may move without being drift.
double tolerance(const StratumBaseline& baseline, double wander_sd);

// Sums over requests of x, of the expected x, and of the stratum's baseline mean.
struct Sums {
  int64_t n = 0;
  double x = 0, expected = 0, mean = 0;
};

// The recursion M_j ← (M_j + 1)·(1 + λ_j (b − x)), λ_j = φ_j / (1 − b), over the bets φ = {.25, .5, .9}; in logarithms.
struct ShiryaevRoberts {
  std::array<double, 3> log_m{};      // −inf at the start
  double log_sum = 0, lowest = 0;     // Σ log L of the middle bet, and its minimum: the start with the largest product, the change point
  Sums total, at_change;              // at_change: the total when log_sum was lowest
  int64_t change_time = 0;            // time of the last request before the change point

  ShiryaevRoberts();
  void add(const Observation& observation, double baseline_mean, int64_t time);
  double log_evidence() const;        // log of the mean M_j
  Sums since_change() const;
};

// When the evidence stood highest: an alarm is a first crossing and is not taken back because the next requests are better.
struct Peak {
  double log_evidence = -1e300;
  int64_t requests = 0, time = 0;
  std::string stratum;                // the largest term, "" = the pooled stream
  Sums since_change;                  // of that stream then
  int64_t change_time = 0, change_requests = 0;
};

// Weight 1/2 on the pooled stream, 1/2 shared by the strata.
class Detector {
 public:
  static constexpr int64_t kMinReached = 8;   // requests with fewer tested positions say nothing

  explicit Detector(std::map<std::string, StratumBaseline> baselines, double wander_sd = 0);

  // Returns false for a request that is not watched: too short, or of a stratum without baseline.
  bool add(const std::string& stratum, const AcceptanceCounts& counts, int64_t time);

  double log_evidence() const;                // log Σ w M now
  const Peak& peak() const { return peak_; }  // alarm when its log_evidence ≥ log A
  std::string guilty_stratum() const;         // the largest term now; "" when it is the pooled one
  const ShiryaevRoberts& pooled() const { return pooled_; }
  const std::map<std::string, ShiryaevRoberts>& strata() const { return strata_; }
  const std::map<std::string, StratumBaseline>& baselines() const { return baselines_; }
  double tolerance_of(const std::string& stratum) const;

  // Change of the overall acceptance against the baseline, split into the traffic's mix and the strata themselves:
  // Σ (q_s − p_s)·b_s and Σ q_s·(a_s − b_s), over all requests or those since the pooled change point.
  double mix_part(bool since_change) const;
  double within_part(bool since_change) const;

  Json state() const;                         // bit-exact (numbers as hexadecimal floats)
  void restore(const Json& state, const std::string& where);

 private:
  std::map<std::string, StratumBaseline> baselines_;
  std::map<std::string, ShiryaevRoberts> strata_;
  ShiryaevRoberts pooled_;
  Peak peak_;
  double wander_sd_;
};

}  // namespace specdec::monitor
