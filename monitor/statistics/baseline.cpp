#include "monitor/statistics/baseline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/statistics.h"
#include "monitor/statistics/detector.h"

namespace specdec::monitor {

namespace {

constexpr size_t kBucket = 20;
// A position is judged only if at least this many steps reached it, because the mean of fewer is mostly noise. After
// the first position with fewer steps, no position is judged.
constexpr int64_t kMinReachedAt = 30;
constexpr int64_t kMinOther = 50;
constexpr size_t kEnoughForWander = 1000;  // requests; smaller strata use the wander (slow variation) of all requests

// Divides the series x into buckets of `bucket` consecutive values and returns the variance component between the
// buckets (one-way ANOVA). Sets `of_mean` to the variance of the mean of x, computed from the same buckets.
double variance_component(const std::vector<double>& x, size_t bucket, double* of_mean) {
  const size_t buckets = x.size() / bucket;
  std::vector<double> means;
  double within = 0;
  for (size_t b = 0; b < buckets; ++b) {
    const std::span<const double> part(x.data() + b * bucket, bucket);
    means.push_back(mean(part));
    within += variance(part);
  }
  const double between = variance(means);
  *of_mean = between / static_cast<double>(buckets);
  return std::max(0.0, between - within / static_cast<double>(buckets) / static_cast<double>(bucket));
}

struct Spread {
  double standard_error = 0, wander = 0;
};

// Estimates how the mean of `x`, which is in time order, varies slowly. Returns the standard deviation of this slow
// variation (the wander) and the standard error of the mean; each is the largest over several bucket lengths. The
// estimate of wander² has a relative error of √(2/N), with N = wander² / standard_error². So the one-sided 95 % upper
// bound of the wander is returned.
Spread spread_of(const std::vector<double>& x, size_t min_buckets) {
  double component = 0, of_mean = variance(x) / static_cast<double>(std::max<size_t>(x.size(), 1));
  for (size_t bucket = kBucket; x.size() / bucket >= min_buckets; bucket *= 2) {
    double here = 0;
    component = std::max(component, variance_component(x, bucket, &here));
    of_mean = std::max(of_mean, here);
  }
  if (component > 0) component *= 1 + 1.645 * std::sqrt(2 * of_mean / component);
  return {std::sqrt(of_mean), std::sqrt(component)};
}

struct Positions {
  std::vector<double> reached, overlap;
  int64_t requests = 0;

  void add(const AcceptanceCounts& counts) {
    ++requests;
    const size_t width = std::min(counts.reached_at.size(), counts.overlap_sum_at.size());
    if (const size_t folded = std::min(width, StratumBaseline::kPositions); reached.size() < folded) {
      reached.resize(folded);
      overlap.resize(folded);
    }
    for (size_t i = 0; i < width; ++i) {
      const size_t at = std::min(i, StratumBaseline::kPositions - 1);
      reached[at] += static_cast<double>(counts.reached_at[i]);
      overlap[at] += counts.overlap_sum_at[i];
    }
  }
  void add(const Positions& other) {
    requests += other.requests;
    add_to(reached, other.reached);
    add_to(overlap, other.overlap);
  }
  std::vector<double> means() const {
    std::vector<double> b;
    for (size_t i = 0; i < reached.size() && (i == 0 || reached[i] >= static_cast<double>(kMinReachedAt)); ++i)
      b.push_back(reached[i] > 0 ? std::clamp(overlap[i] / reached[i], 0.0, 1.0) : 0.0);
    return b;
  }
};

StratumBaseline baseline_of(const RolloutFigures& rollout, double share) {
  Positions positions;
  positions.add(rollout.counts);
  StratumBaseline b;
  b.overlap = positions.means();
  b.mean = rollout.alpha.value;
  // The detector watches the mean over requests, while the report has sums over all requests. Two effects make them
  // differ. First, requests that are accepted more often reach more draft positions and so have more weight in the
  // sums. Second, late positions have a lower expected overlap. `shift` is the first effect, the only one that the
  // report shows. In simulations both together were up to twice as large, so twice `shift` is added.
  const double sum = std::accumulate(positions.reached.begin(), positions.reached.end(), 0.0);
  const double shift =
      sum > 0 ? b.mean - std::accumulate(positions.overlap.begin(), positions.overlap.end(), 0.0) / sum : 0;
  for (double& overlap : b.overlap) overlap = std::clamp(overlap + 2 * std::min(shift, 0.0), 0.0, 1.0);
  // The interval in the report is the two-sided 90 % interval, 2 · 1.645 standard errors wide.
  b.standard_error = (rollout.alpha.ci.high - rollout.alpha.ci.low) / (2 * 1.645);
  b.share = share;
  b.n = rollout.alpha.n;
  b.sd = b.standard_error * std::sqrt(static_cast<double>(b.n));
  return b;
}

std::string marked(const char* mark) { return std::string(" ") + mark; }

// Keeps the strata (kinds of requests) with the most requests, if they have at least min_stratum, and merges all other
// strata into the stratum "".
void fold(std::map<std::string, Positions>& strata, Baseline& baseline, int64_t min_stratum) {
  std::vector<std::pair<int64_t, std::string>> by_size;
  for (const auto& [name, p] : strata) by_size.emplace_back(-p.requests, name);
  std::sort(by_size.begin(), by_size.end());
  Positions other;
  for (size_t i = 0; i < by_size.size(); ++i) {
    if (-by_size[i].first >= min_stratum && i + 1 < Baseline::kMaxStrata) continue;
    other.add(strata.at(by_size[i].second));
    baseline.folded.insert(by_size[i].second);
    strata.erase(by_size[i].second);
  }
  if (other.requests >= kMinOther)
    strata[""] = other;
  else
    baseline.folded.clear();  // the merged strata together still have too few requests to be watched
}

// Estimates a baseline in two passes over the same records. The first pass sorts the requests into strata (kinds of
// requests); the second compares every request with the expected acceptance of its stratum.
class BaselineEstimator {
 public:
  explicit BaselineEstimator(const BaselineNeeds& needs)
      : needs_(needs), min_buckets_(static_cast<size_t>(needs.min_buckets)) {
    baseline_.open = false;
  }

  void count(const AcceptanceRecord& r) {
    if (r.counts.reached() < Detector::kMinReached) {
      ++result_.skipped;
      return;
    }
    ++result_.requests;
    first_ = std::min(first_, r.time);
    last_ = std::max(last_, r.time);
    strata_[stratum_key(r)].add(r.counts);
  }

  // Returns whether there are enough requests over enough days. If not, result_.problem says what is missing.
  bool has_enough() {
    result_.days = result_.requests > 0 ? static_cast<double>(last_ - first_) / 86400 : 0;
    const int64_t needed = BaselineNeeds::kBucket * needs_.min_buckets;
    if (result_.requests >= needed && result_.days >= needs_.min_days) return true;
    result_.problem = std::to_string(result_.requests) + " requests over " +
                      Json(std::round(result_.days * 100) / 100).dump() + " days, expected at least " +
                      std::to_string(needed) + " over " + Json(needs_.min_days).dump() + ": record more traffic";
    return false;
  }

  void form_strata() {
    fold(strata_, baseline_, needs_.min_stratum);
    for (const auto& [name, p] : strata_) {
      index_[name] = names_.size();
      names_.push_back(name);
      StratumBaseline& b = baseline_.strata[name];
      b.overlap = p.means();
      b.n = p.requests;
      b.share = static_cast<double>(p.requests) / static_cast<double>(result_.requests);
    }
    sums_.resize(names_.size()), shifts_.resize(names_.size()), weights_.resize(names_.size());
  }

  void compare(const AcceptanceRecord& r) {
    const auto* found = r.counts.reached() < Detector::kMinReached ? nullptr : baseline_.find(stratum_key(r));
    if (!found) return;
    const RequestEvidence o = observe(r.counts, found->second, tolerance(found->second, 0));
    const size_t s = index_.at(found->first);
    residuals_.push_back({r.time, s, o.x - o.expected});
    sums_[s] += o.x;
    const double weight = 1 / (1 - o.b);
    shifts_[s] += weight * (o.x - o.expected);
    weights_[s] += weight;
  }

  void measure_spread() {
    std::stable_sort(residuals_.begin(), residuals_.end(),
                     [](const Residual& a, const Residual& b) { return a.time < b.time; });
    std::vector<std::vector<double>> values(names_.size());
    for (const Residual& r : residuals_) values[r.stratum].push_back(r.value);
    for (size_t s = 0; s < names_.size(); ++s) {
      StratumBaseline& b = baseline_.strata.at(names_[s]);
      for (double& overlap : b.overlap) overlap = std::clamp(overlap + shifts_[s] / weights_[s], 0.0, 1.0);
      b.mean = sums_[s] / static_cast<double>(values[s].size());
      b.sd = std::sqrt(variance(values[s]));
      const Spread spread = spread_of(values[s], min_buckets_);
      b.standard_error = spread.standard_error;
      b.wander = values[s].size() >= kEnoughForWander ? spread.wander : 0;
      const double middle = mean(values[s]);
      for (double& value : values[s]) value -= middle;
    }
    std::vector<double> all;
    std::vector<size_t> next(names_.size());
    for (const Residual& r : residuals_) all.push_back(values[r.stratum][next[r.stratum]++]);
    result_.wander = spread_of(all, min_buckets_).wander;
    for (auto& [name, b] : baseline_.strata) b.wander = std::max(b.wander, result_.wander);
  }

  EstimatedBaseline take() { return std::move(result_); }

 private:
  struct Residual {
    int64_t time;
    size_t stratum;
    double value;
  };

  const BaselineNeeds& needs_;
  const size_t min_buckets_;
  EstimatedBaseline result_;
  Baseline& baseline_ = result_.baseline;
  std::map<std::string, Positions> strata_;
  int64_t first_ = std::numeric_limits<int64_t>::max(), last_ = 0;  // unix times of first and last request
  std::vector<std::string> names_;                                  // names of the strata
  std::map<std::string, size_t> index_;                             // name → its index in names_ and in the sums
  std::vector<double> sums_, shifts_, weights_;
  std::vector<Residual> residuals_;
};

}  // namespace

std::string stratum_conditions(double temperature, bool constrained, bool efficiency) {
  std::string text = temperature <= 0     ? marked("t0")
                     : temperature <= 0.7 ? marked("t0.7")
                     : temperature <= 1.2 ? ""
                                          : marked("t1.2+");
  if (constrained) text += marked("json");
  if (efficiency) text += marked("eff");
  return text;
}

std::string stratum_key(const AcceptanceRecord& record) {
  return (record.segment.empty() ? "-" : record.segment) +
         stratum_conditions(record.temperature, record.constrained, record.efficiency);
}

const Baseline::Stratum* Baseline::find(const std::string& key) const {
  auto found = strata.find(key);
  if (found == strata.end()) {
    const size_t space = key.find(' ');
    const std::string_view rest = space == std::string::npos ? std::string_view() : std::string_view(key).substr(space);
    if (open ? rest == conditions : folded.count(key) > 0) found = strata.find("");
  }
  return found == strata.end() ? nullptr : &*found;
}

Baseline baselines(const ValidationReport& report) {
  Baseline result;
  result.conditions = stratum_conditions(report.temperature, false, false);
  int64_t requests = 0;
  for (const SegmentFigure& s : report.segments) requests += s.alpha.n;
  for (const SegmentFigure& s : report.segments)
    if (!s.rollout.counts.reached_at.empty())
      result.strata[s.name + result.conditions] =
          baseline_of(s.rollout, requests ? static_cast<double>(s.alpha.n) / static_cast<double>(requests) : 0.0);
  if (!report.rollout.counts.reached_at.empty())
    result.strata.try_emplace("", baseline_of(report.rollout, result.strata.empty() ? 1.0 : 0.0));
  if (result.strata.empty())
    throw Error(
        ErrorKind::kData,
        "the package's validation report has no roll-out, so there is no acceptance to compare with: validate it with "
        "--parts acceptance,rollout,speed,lossless and package it again");
  return result;
}

EstimatedBaseline estimate_baseline(
    const std::function<void(const std::function<void(const AcceptanceRecord&)>&)>& for_each,
    const BaselineNeeds& needs) {
  BaselineEstimator estimator(needs);
  for_each([&](const AcceptanceRecord& r) { estimator.count(r); });
  if (!estimator.has_enough()) return estimator.take();
  estimator.form_strata();
  for_each([&](const AcceptanceRecord& r) { estimator.compare(r); });
  estimator.measure_spread();
  return estimator.take();
}

Json to_json(const Baseline& baseline) {
  Json strata = Json::array();
  for (const auto& [name, b] : baseline.strata)
    strata.push_back({{"name", name},
                      {"overlap", b.overlap},
                      {"mean", b.mean},
                      {"standard_error", b.standard_error},
                      {"share", b.share},
                      {"sd", b.sd},
                      {"wander", b.wander},
                      {"requests", b.n}});
  return {{"schema", "specdec.baseline/" + std::to_string(Baseline::kVersion)},
          {"draft", baseline.draft},
          {"target", baseline.target},
          {"strata", strata},
          {"folded", baseline.folded}};
}

Baseline baseline_from_json(const Json& object, const std::string& where) {
  require_schema(object, "baseline", Baseline::kVersion, where);
  Baseline baseline;
  baseline.open = false;
  baseline.draft = json_string(object, "draft", "", where, ErrorKind::kData);
  baseline.target = json_string(object, "target", "", where, ErrorKind::kData);
  for (const Json& s : json_array(object, "strata", Baseline::kMaxStrata, where, ErrorKind::kData)) {
    const std::string name = json_string(s, "name", where + ": strata", ErrorKind::kData),
                      at = where + ": strata '" + name + "'";
    const auto number = [&](const char* key, double high) {
      return json_double(s, key, {0, high}, at, ErrorKind::kData);
    };
    StratumBaseline b;
    for (const Json& value : json_array(s, "overlap", StratumBaseline::kPositions, at, ErrorKind::kData))
      b.overlap.push_back(json_double(Json{{"overlap", value}}, "overlap", {0, 1}, at, ErrorKind::kData));
    if (b.overlap.empty()) throw Error(ErrorKind::kData, at + ": overlap: expected a number for each position");
    b.mean = number("mean", 1);
    b.standard_error = number("standard_error", 1);
    b.share = number("share", 1);
    b.sd = number("sd", 1);
    b.wander = number("wander", 1);
    b.n = json_int(s, "requests", {1, int64_t{1} << 53}, at, ErrorKind::kData);
    if (!baseline.strata.emplace(name, std::move(b)).second) throw Error(ErrorKind::kData, at + ": given twice");
  }
  if (baseline.strata.empty()) throw Error(ErrorKind::kData, where + ": strata: expected at least one");
  for (const Json& name : json_array(object, "folded", 1 << 16, where, ErrorKind::kData)) {
    if (!name.is_string()) throw Error(ErrorKind::kData, where + ": folded: expected names");
    baseline.folded.insert(name.get<std::string>());
  }
  return baseline;
}

}  // namespace specdec::monitor
