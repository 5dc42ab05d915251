// Detects drift of acceptance, request by request, with the stratified Shiryaev–Roberts e-detector (Shin, Ramdas,
// Rinaldo 2024). The baseline depends on the positions that a request reached. Let A be the alarm level. If the
// conditional mean of x is at least the bound b, the mean time to a false alarm is at least A, whatever the dependence
// and variance of the requests. A risk-adjusted CUSUM (struct Amber) runs in parallel; it warns earlier but has no such
// guarantee.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/json.h"
#include "monitor/statistics/baseline.h"

namespace specdec::monitor {

// The evidence of one request, over the positions that the baseline covers. The request's bound b is Σ_i reached_i·b_i
// / Σ_i reached_i − tolerance, where b_i is the baseline's expected overlap at position i.
struct RequestEvidence {
  double x = 0;         // Σ overlap / Σ reached, in [0, 1]
  double b = 0;         // the detector bets that the mean of x is below b; in [0, 1)
  double expected = 0;  // expected value of x: b plus the tolerance
  int64_t reached = 0;
};
RequestEvidence observe(const AcceptanceCounts& counts, const StratumBaseline& baseline, double tolerance);

// Returns how far acceptance may fall without counting as drift: max(0.01, 2·standard error, 1.5·wander). The wander
// (standard deviation of the mean's slow, benign variation) is the larger of baseline.wander and `wander_sd`.
double tolerance(const StratumBaseline& baseline, double wander_sd);

// Sums over `n` requests: of x, of the expected x, and of the stratum's baseline mean.
struct Sums {
  int64_t n = 0;
  double x = 0, expected = 0, mean = 0;
};

// The Shiryaev–Roberts e-detector of one stream of requests. It has one statistic M_j for each bet size φ_j of {.25,
// .5, .9}. Each request, with x and b of RequestEvidence, updates M_j ← (M_j + 1)·(1 + λ_j (b − x)), where λ_j = φ_j /
// (1 − b). M_j is capped at kMost.
struct ShiryaevRoberts {
  static constexpr double kMost = 1e300;
  // Finds the change point of one bet, the request after which acceptance was lower. With L_t = 1 + λ_j (b_t − x_t) for
  // request t, M_j is the sum over starts k of Π_{t ≥ k} L_t. The start with the largest product is the estimate of the
  // change point: there the running sum Σ log L was lowest.
  struct Start {
    double log_sum = 0, lowest = 0;  // the running sum Σ log L, and its minimum so far
    Sums before;                     // ShiryaevRoberts::total when the running sum was lowest
    int64_t time = 0;                // unix time of the last request before the change point
  };
  std::array<double, 3> m{};
  std::array<Start, 3> starts;
  Sums total;

  void add(const RequestEvidence& observation, double baseline_mean, int64_t time);
  double evidence() const { return (m[0] + m[1] + m[2]) / 3; }
  double log_evidence() const;  // −inf before the first request
  const Start& change() const;
  Sums since_change() const;
};

// The moment of the strongest evidence so far. Evidence that once reached the alarm level is an alarm, which later
// evidence does not revoke, so the peak is kept.
struct Peak {
  double log_evidence = -1e300;
  int64_t requests = 0, time = 0;
  std::string stratum;  // the stream that contributes most to the evidence, "" = the stream of all requests
  Sums since_change;    // sums since the change point of the stream `stratum`, at the time of the peak
  int64_t change_time = 0, change_requests = 0;
};

// The early warning: a CUSUM (cusum.h) with z = (expected − x) / sd and k = δ / (2·sd), where sd is that of the
// request's stratum (kind of request). One CUSUM covers all strata whose baseline has at least kPhaseOne requests. If
// 1.5·wander exceeds .01, the excess is subtracted from the expected value (wander: slow, benign variation of the
// mean). `limit` is 0 if no stratum has enough requests.
struct Amber {
  static constexpr double kDrop = 0.03;  // δ, the smallest drop of acceptance that is worth acting on
  static constexpr int64_t kPhaseOne = 2000;
  double cusum = 0, limit = 0;
  bool on() const { return limit > 0 && cusum > limit; }
};

// Counts the newest 2,000 to 4,000 requests by stratum (kind of request), for comparison with the strata's shares in
// the baseline. The comparison helps to explain a change, and never causes a warning or an alarm.
struct Mix {
  static constexpr int64_t kBlock = 2000;
  std::map<std::string, int64_t> newest, block_before;
  int64_t n = 0, n_before = 0;

  void add(const std::string& stratum);
};
struct MixTest {
  int64_t requests = 0;
  // `g` is the statistic of the G-test. p_value is the probability of a `g` at least this large if the strata's shares
  // are unchanged; it is 1 if the baseline does not state its number of requests.
  double g = 0, p_value = 1;
  double psi = 0;  // Σ (q − p) ln(q / p); rule of thumb: watch at .1, act at .2
};

// The e-detector over all requests. Its evidence is a weighted sum over several streams: the stream of all requests
// (pooled) has weight 1/2, and the streams of the strata (kinds of requests) share the other 1/2.
class Detector {
 public:
  static constexpr int64_t kMinReached = 8;  // requests that reached fewer draft positions are not judged

  // `wander_sd` is the standard deviation of the slow, benign variation of the mean in all strata, 0 = unknown. The
  // early warning (Amber) raises one false warning per `requests_between_false_alarms` requests on average.
  explicit Detector(Baseline baseline, double wander_sd = 0, double requests_between_false_alarms = 1e6);

  // Adds a request to the stratum (kind of request) with this name. Returns false if the request is not judged, because
  // it reached too few draft positions or Baseline::find() finds no stratum.
  bool add(const std::string& stratum, const AcceptanceCounts& counts, int64_t time);
  // Adds a request to a stratum that baseline().find() returned.
  bool add(const Baseline::Stratum& stratum, const AcceptanceCounts& counts, int64_t time);

  double log_evidence() const;                // current log of Σ weight · M over the streams
  const Peak& peak() const { return peak_; }  // an alarm if its log_evidence ≥ log of the alarm level
  // Returns the stratum (kind of request) that contributes most to the current evidence; "" = the stream of all
  // requests.
  std::string guilty_stratum() const;
  const ShiryaevRoberts& pooled() const { return pooled_; }
  const std::map<std::string, ShiryaevRoberts>& strata() const { return strata_; }
  const std::map<std::string, StratumBaseline>& baselines() const { return baseline_.strata; }
  const Baseline& baseline() const { return baseline_; }
  double tolerance_of(const std::string& stratum) const;
  const Amber& amber() const { return amber_; }
  MixTest mix_test() const;

  // The difference between the overall acceptance and the baseline is the sum of two parts. mix_part() comes from
  // changed shares of the strata (kinds of requests): Σ (q_s − p_s)·b_s. within_part() comes from changes within the
  // strata: Σ q_s·(a_s − b_s). q_s and p_s are the shares of stratum s now and in the baseline; a_s is its acceptance
  // now, b_s its expected acceptance. With `since_change`, both parts cover only the requests since the change point of
  // all requests together.
  double mix_part(bool since_change) const;
  double within_part(bool since_change) const;

  Json state() const;  // bit-exact (numbers are hexadecimal floats)
  // Returns false and restores nothing if the state belongs to another baseline or is of version 1. Throws Error(kData)
  // if `state` is not a detector's state.
  bool restore(const Json& state, const std::string& where);

 private:
  double evidence() const;

  Baseline baseline_;
  std::string digest_;  // digest of the baseline
  std::map<std::string, ShiryaevRoberts> strata_;
  ShiryaevRoberts pooled_;
  Peak peak_;
  double peak_evidence_ = 0, wander_sd_;
  Amber amber_;
  Mix mix_;
};

}  // namespace specdec::monitor
