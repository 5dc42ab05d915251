#include "monitor/statistics/detector.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/sha256.h"
#include "base/statistics.h"
#include "monitor/statistics/cusum.h"

namespace specdec::monitor {

namespace {

constexpr std::array<double, 3> kBets = {0.25, 0.5, 0.9};

Sums minus(const Sums& a, const Sums& b) { return {a.n - b.n, a.x - b.x, a.expected - b.expected, a.mean - b.mean}; }

int64_t count_in(const std::map<std::string, int64_t>& counts, const std::string& name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

}  // namespace

double tolerance(const StratumBaseline& baseline, double wander_sd) {
  return std::max({0.01, 2 * baseline.standard_error, 1.5 * std::max(wander_sd, baseline.wander)});
}

RequestEvidence observe(const AcceptanceCounts& counts, const StratumBaseline& baseline, double tolerance) {
  RequestEvidence o;
  double overlap = 0, expected = 0;
  for (size_t i = 0; i < counts.reached_at.size() && i < counts.overlap_sum_at.size(); ++i) {
    const size_t at = std::min(i, StratumBaseline::kPositions - 1);
    if (at >= baseline.overlap.size()) break;
    o.reached += counts.reached_at[i];
    overlap += counts.overlap_sum_at[i];
    expected += static_cast<double>(counts.reached_at[i]) * baseline.overlap[at];
  }
  if (o.reached == 0) return o;
  o.x = std::clamp(overlap / static_cast<double>(o.reached), 0.0, 1.0);
  o.expected = expected / static_cast<double>(o.reached);
  o.b = std::clamp(o.expected - tolerance, 0.0, 0.999);
  return o;
}

void ShiryaevRoberts::add(const RequestEvidence& o, double baseline_mean, int64_t time) {
  ++total.n;
  total.x += o.x;
  total.expected += o.expected;
  total.mean += baseline_mean;
  const double unit = (o.b - o.x) / (1 - o.b);
  for (size_t j = 0; j < kBets.size(); ++j) {
    m[j] = std::min((m[j] + 1) * (1 + kBets[j] * unit), kMost);
    Start& start = starts[j];
    start.log_sum += std::log1p(kBets[j] * unit);
    if (start.log_sum < start.lowest) {
      start.lowest = start.log_sum;
      start.before = total;
      start.time = time;
    }
  }
}

double ShiryaevRoberts::log_evidence() const { return std::log(evidence()); }

const ShiryaevRoberts::Start& ShiryaevRoberts::change() const {
  return *std::max_element(starts.begin(), starts.end(),
                           [](const Start& a, const Start& b) { return a.log_sum - a.lowest < b.log_sum - b.lowest; });
}

Sums ShiryaevRoberts::since_change() const { return minus(total, change().before); }

void Mix::add(const std::string& stratum) {
  ++newest[stratum];
  if (++n < kBlock) return;
  block_before = std::move(newest);
  n_before = n;
  newest.clear();
  n = 0;
}

Detector::Detector(Baseline baseline, double wander_sd, double requests_between_false_alarms)
    : baseline_(std::move(baseline)), digest_(sha256_hex(canonical_json(to_json(baseline_)))), wander_sd_(wander_sd) {
  double widest = 0;
  for (const auto& [name, b] : baseline_.strata) {
    strata_[name];
    if (b.n >= Amber::kPhaseOne) widest = std::max(widest, b.sd);
  }
  // One limit is used for the strata (kinds of requests) together. The stratum with the largest sd needs the highest
  // limit, because a drop of δ is the fewest standard deviations there. With that limit, no stratum raises more false
  // warnings than stated.
  if (widest > 0) amber_.limit = cusum_limit(Amber::kDrop / (2 * widest), requests_between_false_alarms);
}

bool Detector::add(const std::string& stratum, const AcceptanceCounts& counts, int64_t time) {
  const Baseline::Stratum* found = baseline_.find(stratum);
  return found && add(*found, counts, time);
}

bool Detector::add(const Baseline::Stratum& stratum, const AcceptanceCounts& counts, int64_t time) {
  const auto& [name, b] = stratum;
  const RequestEvidence o = observe(counts, b, tolerance(b, wander_sd_));
  if (o.reached < kMinReached) return false;
  strata_.find(name)->second.add(o, b.mean, time);
  pooled_.add(o, b.mean, time);
  mix_.add(name);
  if (amber_.limit > 0 && b.n >= Amber::kPhaseOne && b.sd > 0) {
    const double slow = std::max(0.0, 1.5 * std::max(b.wander, wander_sd_) - 0.01);
    amber_.cusum = cusum_step(amber_.cusum, (o.expected - slow - o.x) / b.sd, Amber::kDrop / (2 * b.sd), amber_.limit);
  }
  if (const double now = evidence(); now > peak_evidence_) {
    const std::string guilty = guilty_stratum();
    const ShiryaevRoberts& stream = guilty.empty() ? pooled_ : strata_.at(guilty);
    const Sums since = stream.since_change();
    peak_evidence_ = now;
    peak_ = {std::log(now), pooled_.total.n, time, guilty, since, stream.change().time, stream.total.n - since.n};
  }
  return true;
}

double Detector::tolerance_of(const std::string& stratum) const {
  return tolerance(baseline_.strata.at(stratum), wander_sd_);
}

double Detector::evidence() const {
  double of_strata = 0;
  for (const auto& [name, s] : strata_) of_strata += s.evidence();
  return 0.5 * pooled_.evidence() + 0.5 * (of_strata / static_cast<double>(std::max<size_t>(strata_.size(), 1)));
}

double Detector::log_evidence() const { return std::log(evidence()); }

std::string Detector::guilty_stratum() const {
  std::string guilty;
  double largest = pooled_.evidence() * static_cast<double>(std::max<size_t>(strata_.size(), 1));
  for (const auto& [name, s] : strata_)
    if (s.evidence() > largest) {
      largest = s.evidence();
      guilty = name;
    }
  return guilty;
}

double Detector::mix_part(bool since_change) const {
  const Sums s = since_change ? pooled_.since_change() : pooled_.total;
  if (s.n == 0) return 0;
  double usual = 0, shares = 0;
  for (const auto& [name, b] : baseline_.strata) {
    usual += b.share * b.mean;
    shares += b.share;
  }
  return shares > 0 ? s.mean / static_cast<double>(s.n) - usual / shares : 0.0;
}

double Detector::within_part(bool since_change) const {
  const Sums s = since_change ? pooled_.since_change() : pooled_.total;
  return s.n > 0 ? (s.x - s.expected) / static_cast<double>(s.n) : 0.0;
}

MixTest Detector::mix_test() const {
  MixTest test;
  test.requests = mix_.n + mix_.n_before;
  double reference = 0;
  for (const auto& [name, b] : baseline_.strata) reference += b.share > 0 ? static_cast<double>(b.n) : 0;
  if (test.requests == 0 || reference == 0) return test;
  const auto now = static_cast<double>(test.requests);
  int strata = 0;
  for (const auto& [name, b] : baseline_.strata) {
    const auto seen = static_cast<double>(count_in(mix_.newest, name) + count_in(mix_.block_before, name));
    const double then = b.share * reference, both = seen + then;
    if (both == 0) continue;
    ++strata;
    if (seen > 0) test.g += 2 * seen * std::log(seen * (now + reference) / (both * now));
    if (then > 0) test.g += 2 * then * std::log(then * (now + reference) / (both * reference));
    const double q = (seen + 0.5) / (now + 0.5),
                 p = (then + 0.5) / (reference + 0.5);  // 0.5 keeps psi finite if a stratum has no requests
    test.psi += (q - p) * std::log(q / p);
  }
  if (strata > 1) test.p_value = chi_square_p_value(std::max(test.g, 0.0), strata - 1);
  return test;
}

}  // namespace specdec::monitor
