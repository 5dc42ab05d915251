#include "monitor/counter_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace specdec::monitor {

CounterChart::CounterChart(const RolloutFigures& baseline)
    : tolerance_(std::max(0.01, (baseline.alpha.ci.high - baseline.alpha.ci.low) / 1.645)) {  // two standard errors of the 90 % interval
  for (size_t i = 0; i < baseline.counts.reached_at.size(); ++i) {
    if (i > 0 && baseline.counts.reached_at[i] < 30) break;
    overlap_.push_back(baseline.counts.overlap(i));
    conditional_.push_back(baseline.counts.conditional(i));
  }
}

bool CounterChart::add(const Counters& bucket) {
  note_.clear();
  if (overlap_.empty()) return true;
  if (bucket.drafted == 0) {
    if (bucket.generated == 0) return false;
    note_ = "tokens are generated but none drafted: speculation is off";
    return true;
  }
  // Our own server exports overlap by position; other engines the accepted counts, whose conditional rates need reached positions:
  // where they are missing, reached_i is accepted_{i−1} and the number of drafts (sound while K does not change in between).
  const bool own = !bucket.overlap_sum_at.empty() && !bucket.reached_at.empty();
  const std::vector<double>& baseline = own ? overlap_ : conditional_;
  std::vector<double> reached = bucket.reached_at;
  if (reached.empty())
    for (size_t i = 0; i < bucket.accepted_at.size(); ++i) reached.push_back(i == 0 ? bucket.drafts : bucket.accepted_at[i - 1]);
  const std::vector<double>& kept = own ? bucket.overlap_sum_at : bucket.accepted_at;
  double tested = 0, sum = 0, expected = 0;
  for (size_t i = 0; i < reached.size() && i < kept.size(); ++i) {
    tested += reached[i];
    sum += kept[i];
    expected += reached[i] * baseline[std::min(i, baseline.size() - 1)];
  }
  if (tested < kMinTested) return false;
  const double residual = (expected - sum) / tested;
  char text[160];
  if (sum / tested < 0.05 && expected / tested > 0.2) {
    std::snprintf(text, sizeof text, "the draft is dead: %.1f %% of the tested tokens are accepted, %.1f %% expected", 100 * sum / tested, 100 * expected / tested);
    alarm_ = text;
    return true;
  }
  ++n_;
  if (n_ > kPhaseOne) {
    // The spread is that of the first kPhaseOne buckets: a drop must not widen its own limits.
    const double sd = std::max(0.01, std::sqrt(m2_ / (kPhaseOne - 1)));
    cusum_ = std::max(0.0, cusum_ + (residual - tolerance_) / sd - kReference);
    if (cusum_ > kLimit) {
      std::snprintf(text, sizeof text, "acceptance by counters is %.3f, expected %.3f (CUSUM %.1f > %.2f)", sum / tested, expected / tested, cusum_, kLimit);
      alarm_ = text;
    }
  } else {
    const double delta = residual - mean_;
    mean_ += delta / static_cast<double>(n_);
    m2_ += delta * (residual - mean_);
  }
  return true;
}

Json CounterChart::state() const { return {{"schema", "specdec.chart/1"}, {"n", n_}, {"mean", mean_}, {"m2", m2_}, {"cusum", cusum_}, {"alarm", alarm_}}; }

void CounterChart::restore(const Json& state, const std::string& where) {
  require_schema(state, "chart", 1, where);
  n_ = json_int(state, "n", 0, int64_t{1} << 53, where, ErrorKind::kData);
  mean_ = json_double(state, "mean", -1, 1, where, ErrorKind::kData);
  m2_ = json_double(state, "m2", 0, 1e18, where, ErrorKind::kData);
  cusum_ = json_double(state, "cusum", 0, 1e18, where, ErrorKind::kData);
  alarm_ = json_string(state, "alarm", "", where, ErrorKind::kData);
}

}  // namespace specdec::monitor
