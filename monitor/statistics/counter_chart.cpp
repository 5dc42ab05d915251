#include "monitor/statistics/counter_chart.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"
#include "monitor/statistics/cusum.h"

namespace specdec::monitor {

CounterChart::CounterChart(const RolloutFigures& baseline, double buckets_between_false_alarms)
    // The tolerance is twice the standard error. The interval in the report is a 90 % interval, 2 · 1.645 standard
    // errors wide.
    : tolerance_(std::max(0.01, (baseline.alpha.ci.high - baseline.alpha.ci.low) / 1.645)),
      limit_(cusum_limit(kReference, std::max(buckets_between_false_alarms, 100.0))) {
  for (size_t i = 0; i < baseline.counts.reached_at.size(); ++i) {
    if (i > 0 && baseline.counts.reached_at[i] < 30) break;
    overlap_.push_back(baseline.counts.overlap(i));
    conditional_.push_back(baseline.counts.conditional(i));
  }
}

CounterChart::Bucket CounterChart::bucket_of(const Counters& c) const {
  Bucket b;
  const bool overlaps = !c.overlap_sum_at.empty() && !c.reached_at.empty();
  if (!overlaps && c.accepted_at.empty() && c.drafted_at.empty()) {
    b.own = true;
    b.tested = c.drafted > 0 ? c.drafted : c.drafts;
    b.sum = c.drafted > 0 ? c.accepted : std::max(0.0, c.generated - c.drafts);
    return b;
  }
  std::vector<double> reached = c.reached_at, kept = overlaps ? c.overlap_sum_at : c.accepted_at;
  if (!overlaps) {
    reached.clear();
    kept.resize(std::max(kept.size(), c.drafted_at.size()),
                0.0);  // TensorRT-LLM has no series for a position that accepted nothing
    for (size_t i = 0; i < kept.size(); ++i) {
      double steps = i > 0 ? kept[i - 1] : c.drafted_at.empty() ? c.drafts : c.drafted_at[0];
      if (i > 0 && i < c.drafted_at.size() && c.drafted_at[i - 1] > 0)
        steps *= std::min(1.0, c.drafted_at[i] / c.drafted_at[i - 1]);
      reached.push_back(steps);
    }
  }
  const std::vector<double>& baseline = overlaps ? overlap_ : conditional_;
  for (size_t i = 0; i < reached.size() && i < kept.size(); ++i) {
    b.tested += reached[i];
    b.sum += kept[i];
    b.expected += reached[i] * baseline[std::min(i, baseline.size() - 1)];
  }
  return b;
}

bool CounterChart::add(const Counters& counters) {
  const int64_t judged = n_;
  const double waited = waiting_, counted = counters.counted();
  const bool is_full = take(counters);
  if (n_ > judged)
    look_ = Look::kJudged;
  else if (counted == counted_)
    look_ = Look::kIdle;
  else
    look_ = waiting_ > waited ? Look::kWaiting : Look::kBlind;
  counted_ = is_full ? 0 : counted;
  return is_full;
}

bool CounterChart::take(const Counters& counters) {
  note_.clear();
  waiting_ = 0;
  if (overlap_.empty()) return true;
  const bool none_at =
      std::all_of(counters.drafted_at.begin(), counters.drafted_at.end(), [](double n) { return n == 0; });
  if (counters.drafted == 0 && counters.drafts == 0 && none_at) {
    if (counters.generated == 0) return false;
    note_ = "tokens are generated but none drafted: speculation is off";
    return true;
  }
  const Bucket b = bucket_of(counters);
  // Without counters of drafted tokens, acceptance is computed from the tokens generated per verification step beyond
  // the first. Every verification step generates at least one token. So if there are far fewer tokens than verification
  // steps, the counters are incomplete.
  if (b.own && counters.drafted == 0 && counters.generated < 0.5 * counters.drafts) {
    note_ =
        "rounds are counted without the tokens that they generate, so nothing is known of the draft: is the series "
        "of generated tokens on the page?";
    return true;
  }
  waiting_ = b.tested < kMinTested ? b.tested : 0;
  if (b.tested < kMinTested) return false;
  const bool judged = n_ >= kPhaseOne;
  const double x = b.sum / b.tested, expected = b.own ? (judged ? -mean_ : x) : b.expected / b.tested,
               residual = b.own ? -x : expected - x;
  if (x < 0.05 && expected > 0.2) {
    alarm_ = format("the draft is dead: %.1f %% of the tested tokens are accepted, %.1f %% expected", 100 * x,
                    100 * expected);
    return true;
  }
  ++n_;
  tested_ += b.tested;
  sum_ += b.sum;
  expected_ += b.expected;
  if (judged) {
    // Uses the standard deviation of the first kPhaseOne buckets (counts judged together) only, so that a later drop of
    // acceptance does not widen the limits by which it is judged.
    const double sd = std::max(0.01, std::sqrt(m2_ / (kPhaseOne - 1)));
    cusum_ = cusum_step(cusum_, (expected - x - tolerance_) / sd, kReference, limit_);
    if (cusum_ > limit_)
      alarm_ = format("acceptance by counters is %.3f, expected %.3f (CUSUM %.1f > %.2f)", x, expected, cusum_, limit_);
  } else {
    const double delta = residual - mean_;
    mean_ += delta / static_cast<double>(n_);
    m2_ += delta * (residual - mean_);
  }
  return true;
}

ChartView CounterChart::view(const std::string& sources) const {
  return {sources, n_, tested_, tested_ > 0 ? sum_ / tested_ : 0, tested_ > 0 ? expected_ / tested_ : 0, waiting_};
}

Json CounterChart::state() const {
  return {
      {"schema", "specdec.chart/1"}, {"n", n_},     {"mean", mean_},         {"m2", m2_},       {"cusum", cusum_},
      {"tested", tested_},           {"sum", sum_}, {"expected", expected_}, {"alarm", alarm_}, {"waiting", waiting_},
      {"counted", counted_}};
}

bool CounterChart::restore(const Json& state) {
  const std::string where = "chart";
  require_schema(state, "chart", 1, where);
  constexpr double kMost = 1e18;
  const auto holds = [&](const char* key, double low, double high) {
    return state.contains(key) && state[key].is_number() && state[key] >= low && state[key] <= high;
  };
  if (!holds("n", 0, kMost) || !holds("mean", -1e6, 1e6) || !holds("m2", 0, kMost) || !holds("cusum", 0, kMost))
    return false;
  n_ = state["n"].get<int64_t>();
  mean_ = state["mean"].get<double>();
  m2_ = state["m2"].get<double>();
  cusum_ = state["cusum"].get<double>();
  alarm_ = json_string(state, "alarm", "", where, ErrorKind::kData);
  for (const auto& [key, value] :  // charts that earlier versions saved do not have these sums
       {std::pair{"tested", &tested_},
        {"sum", &sum_},
        {"expected", &expected_},
        {"waiting", &waiting_},
        {"counted", &counted_}})
    if (holds(key, 0, kMost)) *value = state[key].get<double>();
  return true;
}

}  // namespace specdec::monitor
