// Measures the detector on simulated traffic: time to a false alarm, detection delay, and changes that must not raise
// an alarm. All runs are deterministic: each has its own stream of random numbers.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <numbers>

#include "base/statistics.h"
#include "monitor/statistics/detector.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

const double kAlarm = std::log(1e5);
const std::vector<double> kHazards = {.8, .75, .65, .55, .45, .4, .35};

// Returns a baseline for which the detector's bound is exactly `mean`. The detector subtracts a tolerance of .01, so
// .01 is added here.
Baseline without_tolerance(double mean) { return flat(mean + 0.01); }

// Returns the number of requests until the alarm, or `limit` if there is none.
int64_t run_length(Detector detector, uint64_t stream, double level, int64_t limit,
                   const std::function<bool(Detector&, Traffic&, int64_t)>& next) {
  Traffic traffic(stream);
  for (int64_t n = 0; n < limit; ++n) {
    next(detector, traffic, n);
    if (detector.peak().log_evidence >= level) return n + 1;
  }
  return limit;
}

struct Mean {
  double value = 0, standard_error = 0;
};
Mean mean_of(int runs, const std::function<double(int run)>& f) {
  double sum = 0, squares = 0;
  for (int run = 0; run < runs; ++run) {
    const double x = f(run);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / runs;
  return {mean, std::sqrt(std::max(0.0, squares / runs - mean * mean) / runs)};
}

// A false alarm comes soonest if the mean acceptance is exactly at the detector's bound. Even then, the mean time to a
// false alarm must be at least the stated time, for every dispersion and baseline.
TEST(Simulation, FalseAlarmsAreAtLeastAsRareAsStated) {
  const double stated = 3e3;
  uint64_t cell = 0;
  for (const double baseline : {0.50, 0.70, 0.85})
    for (const double sd : {0.05, 0.10, 0.15}) {
      const BetaRates rates(baseline, sd);
      const uint64_t first = 1000 * ++cell;
      const Mean length = mean_of(400, [&](int run) {
        return static_cast<double>(run_length(
            Detector(without_tolerance(baseline)), first + static_cast<uint64_t>(run), std::log(stated), 200000,
            [&](Detector& d, Traffic& t, int64_t) { return d.add("", t.request_at(rates.draw(t.random)), 0); }));
      });
      RecordProperty("arl_" + std::to_string(cell), std::to_string(length.value));
      EXPECT_GE(length.value, stated) << "baseline " << baseline << ", sd " << sd << ", standard error "
                                      << length.standard_error;
    }
}

Mean delay(const Baseline& baseline, double to, int runs) {
  const BetaRates before(0.70, 0.10), after(to, 0.10);
  return mean_of(runs, [&](int run) {
    constexpr int64_t kQuiet = 200;
    return static_cast<double>(run_length(Detector(baseline), 100000 + static_cast<uint64_t>(run), kAlarm, 20000,
                                          [&](Detector& d, Traffic& t, int64_t n) {
                                            return d.add("", t.request_at((n < kQuiet ? before : after).draw(t.random)),
                                                         0);
                                          }) -
                               kQuiet);
  });
}

TEST(Simulation, DelaysAreAsStated) {
  for (const auto& [tolerance, to, most] :
       {std::array<double, 3>{.01, .65, 160}, {.01, .60, 65}, {0, .65, 115}, {0, .60, 52}}) {
    const Mean found = delay(tolerance > 0 ? flat(0.70) : without_tolerance(0.70), to, 400);
    EXPECT_LE(found.value, most) << "tolerance " << tolerance << ", to " << to << ", standard error "
                                 << found.standard_error;
    RecordProperty("delay_to_" + std::to_string(to).substr(0, 4) + (tolerance > 0 ? "" : "_no_tolerance"),
                   std::to_string(found.value));
  }
  // The delay from the drop of acceptance to the alarm also has a least possible value for this rate of false alarms. A
  // shorter delay would mean that the detector raises more false alarms than stated.
  EXPECT_GE(delay(flat(0.70), 0.65, 100).value, 80);
  EXPECT_GE(delay(flat(0.70), 0.60, 100).value, 30);
}

// Expects no alarm within `requests` requests, in each of `runs` runs. In the traffic of the callers, the mix of
// domains changes, while the acceptance of each domain stays the same.
void expect_no_alarm(const Baseline& baseline, const std::function<void(Detector&, Traffic&, int64_t n)>& next,
                     int runs = 3, int64_t requests = 100000) {
  for (int run = 0; run < runs; ++run) {
    Detector detector(baseline);
    Traffic traffic(200000 + static_cast<uint64_t>(run));
    for (int64_t n = 0; n < requests; ++n) next(detector, traffic, n);
    EXPECT_LT(detector.peak().log_evidence, kAlarm) << "run " << run << ", after " << detector.peak().requests
                                                    << " requests, stratum '" << detector.peak().stratum << "'";
    EXPECT_EQ(detector.pooled().total.n, requests);
  }
}

struct Domains {
  BetaRates easy{0.80, 0.10}, hard{0.60, 0.10};
  Baseline baseline = by_domain({{"easy", flat_baseline(0.80, 0.5)}, {"hard", flat_baseline(0.60, 0.5)}});

  AcceptanceCounts request(Traffic& t, bool is_easy) const {
    return t.request_at((is_easy ? easy : hard).draw(t.random));
  }
};

TEST(Simulation, AShiftOfTheMixIsNoDrift) {
  const Domains domains;
  expect_no_alarm(domains.baseline, [&](Detector& d, Traffic& t, int64_t n) {
    const bool easy = t.random.uniform() < (n < 2000 ? 0.5 : 0.3);
    d.add(easy ? "easy" : "hard", domains.request(t, easy), n);
  });
  // If the detector is not told the domains, the same traffic does raise an alarm. So only the comparison by domain
  // prevents the alarm in the test above.
  const int64_t pooled =
      run_length(Detector(flat(0.70)), 200000, kAlarm, 100000, [&](Detector& d, Traffic& t, int64_t n) {
        const bool easy = t.random.uniform() < (n < 2000 ? 0.5 : 0.3);
        return d.add("", domains.request(t, easy), n);
      });
  EXPECT_GT(pooled, 2000);
  EXPECT_LT(pooled, 2600);
}

TEST(Simulation, ADailySineOfTheMixIsNoDrift) {
  const Domains domains;
  expect_no_alarm(domains.baseline, [&](Detector& d, Traffic& t, int64_t n) {
    const bool easy = t.random.uniform() < 0.5 + 0.4 * std::sin(2 * std::numbers::pi * static_cast<double>(n) / 10000);
    d.add(easy ? "easy" : "hard", domains.request(t, easy), n);
  });
}

TEST(Simulation, AShiftOfTemperaturesIsNoDrift) {
  // One domain is answered at three temperatures with different acceptance, and the mix of the temperatures changes.
  const std::array<double, 3> temperatures = {0, 0.6, 1.0};
  const std::array<BetaRates, 3> rates = {BetaRates(0.82, 0.10), BetaRates(0.76, 0.10), BetaRates(0.66, 0.10)};
  std::map<std::string, StratumBaseline> strata;
  const std::array<double, 3> means = {0.82, 0.76, 0.66};
  for (size_t i = 0; i < 3; ++i)
    strata["chat" + stratum_conditions(temperatures[i], false, false)] = flat_baseline(means[i], 1.0 / 3);
  ASSERT_EQ(strata.size(), 3u);
  const auto next = [&](Detector& d, Traffic& t, int64_t n, bool aware) {
    const double u = t.random.uniform();
    const size_t i = n < 2000 ? (u < 0.6 ? 0 : u < 0.9 ? 1 : 2) : (u < 0.1 ? 0 : u < 0.4 ? 1 : 2);
    AcceptanceRecord r;
    r.segment = "chat";
    r.temperature = temperatures[i];
    d.add(aware ? stratum_key(r) : "", t.request_at(rates[i].draw(t.random)), n);
    return true;
  };
  expect_no_alarm(by_domain(strata), [&](Detector& d, Traffic& t, int64_t n) { next(d, t, n, true); });
  EXPECT_LT(run_length(Detector(flat(0.6 * 0.82 + 0.3 * 0.76 + 0.1 * 0.66)), 200000, kAlarm, 100000,
                       [&](Detector& d, Traffic& t, int64_t n) { return next(d, t, n, false); }),
            3000);
}

TEST(Simulation, ChangesOfKAreNoDrift) {
  StratumBaseline by_position;
  by_position.overlap = kHazards;
  by_position.mean = 0.7;
  for (const auto& [before, after] : {std::pair<size_t, size_t>{7, 2}, {2, 7}}) {
    expect_no_alarm(
        by_domain({{"", by_position}}),
        [&](Detector& d, Traffic& t, int64_t n) { d.add("", t.chain(kHazards, n < 2000 ? before : after), n); }, 1);
  }
  // With one expected overlap for all positions, a rise of K looks like a drop: the mean of .80 .75 at K = 2 becomes
  // about .72 at K = 7.
  by_position.overlap.assign(7, 0.775);
  EXPECT_LT(
      run_length(Detector(by_domain({{"", by_position}})), 1, kAlarm, 5000,
                 [&](Detector& d, Traffic& t, int64_t n) { return d.add("", t.chain(kHazards, n < 2000 ? 2 : 7), n); }),
      2500);
}

// Some requests have a higher acceptance at all positions than others, and these reach the late positions most often.
// The means by position therefore overestimate the accepted length of an average request. This bias must not raise an
// alarm, with a baseline from the gate's roll-outs or from traffic.
TEST(Simulation, RequestsThatDifferAreNoDrift) {
  ValidationReport report;
  std::vector<double> x;
  StratumBaseline nothing;
  nothing.overlap.assign(7, 0.0);
  Traffic gate(450000);
  for (int i = 0; i < 2000; ++i) {
    const AcceptanceCounts counts = gate.chain(kHazards, 7, 0.10);
    report.rollout.counts.add(counts);
    x.push_back(observe(counts, nothing, 0).x);
  }
  const double m = mean(x), half = 1.645 * std::sqrt(variance(x) / 2000);
  report.rollout.alpha = {m, {m - half, m + half}, 2000};
  const EstimatedBaseline estimated = estimate_baseline([&](const auto& take) {
    Traffic t(460000);
    for (int64_t n = 0; n < 5000; ++n) {
      AcceptanceRecord r;
      r.time = n * 30;
      r.counts = t.chain(kHazards, 7, 0.10);
      take(r);
    }
  });
  ASSERT_EQ(estimated.problem, "");
  for (const Baseline& baseline : {baselines(report), estimated.baseline})
    expect_no_alarm(
        baseline, [&](Detector& d, Traffic& t, int64_t n) { EXPECT_TRUE(d.add("-", t.chain(kHazards, 7, 0.10), n)); },
        1, 50000);
  Baseline naive = baselines(report);
  for (size_t i = 0; i < 7; ++i) naive.strata.at("").overlap[i] = report.rollout.counts.overlap(i);
  EXPECT_LT(run_length(Detector(naive), 1, kAlarm, 20000,
                       [&](Detector& d, Traffic& t, int64_t n) { return d.add("", t.chain(kHazards, 7, 0.10), n); }),
            5000);
}

// Six domains whose acceptance varies with one slow random process: AR(.99) with standard deviation .02. Requests are
// about a second apart.
struct Wandering {
  std::array<double, 6> means = {.82, .76, .71, .66, .60, .55}, shares = {.30, .20, .20, .15, .10, .05};
  std::vector<BetaRates> rates;
  double sd = 0, slow = 0;
  explicit Wandering(double sd_of_slow = 0.02) : sd(sd_of_slow) {
    for (const double mean : means) rates.emplace_back(mean, 0.10);
  }
  AcceptanceRecord next(Traffic& t, int64_t time, double change = 0, int only = -1) {
    slow = 0.99 * slow + sd * std::sqrt(1 - 0.99 * 0.99) * t.normal();
    double u = t.random.uniform();
    size_t s = 0;
    while (s + 1 < shares.size() && u >= shares[s]) u -= shares[s++];
    const double moved = slow + (only < 0 || static_cast<size_t>(only) == s ? change : 0);
    AcceptanceRecord r;
    r.time = time;
    r.segment = "d" + std::to_string(s);
    r.counts = t.request_at(std::clamp(rates[s].draw(t.random) + moved, 0.0, 1.0));
    return r;
  }
};

bool watch(Detector& d, const AcceptanceRecord& r) { return d.add(stratum_key(r), r.counts, r.time); }

TEST(Simulation, TheBaselinesOwnWanderIsNoDrift) {
  const Wandering start;
  const EstimatedBaseline estimated = estimate_baseline([&](const auto& take) {
    Wandering w = start;
    Traffic t(300000);
    for (int64_t n = 0; n < 20000; ++n) take(w.next(t, n * 10));
  });
  ASSERT_EQ(estimated.problem, "");
  EXPECT_EQ(estimated.baseline.strata.size(), 6u);
  EXPECT_NEAR(estimated.wander, 0.02, 0.003);
  Baseline blind = estimated.baseline;
  for (auto& [name, b] : blind.strata) b.wander = b.standard_error = 0;
  const auto length = [&](const Baseline& baseline, int runs, int64_t limit) {
    return mean_of(runs,
                   [&](int run) {
                     Wandering w = start;
                     return static_cast<double>(
                         run_length(Detector(baseline), 310000 + static_cast<uint64_t>(run), kAlarm, limit,
                                    [&](Detector& d, Traffic& t, int64_t n) { return watch(d, w.next(t, n)); }));
                   })
        .value;
  };
  EXPECT_GE(length(estimated.baseline, 60, 1000000), 1e5);
  EXPECT_LT(length(blind, 20, 100000), 2e4) << "with the least tolerance, .01, the wander is drift";
  const Mean found = mean_of(60, [&](int run) {
    Wandering w = start;
    return static_cast<double>(
        run_length(Detector(estimated.baseline), 320000 + static_cast<uint64_t>(run), kAlarm, 20000,
                   [&](Detector& d, Traffic& t, int64_t n) { return watch(d, w.next(t, n, n < 500 ? 0 : -0.10)); }) -
        500);
  });
  RecordProperty("delay", std::to_string(found.value));
  EXPECT_LE(found.value, 130) << "a drop of .10 everywhere";
}

// Acceptance itself rises and falls by .02 each day. The baseline was measured on two such days.
TEST(Simulation, ADailySineOfAcceptanceIsNoDrift) {
  const BetaRates rates(0.70, 0.10);
  const auto request = [&](Traffic& t, int64_t n) {
    AcceptanceRecord r;
    r.time = n * 864 / 100;  // 10,000 requests per day
    r.segment = "chat";
    r.counts = t.request_at(std::clamp(
        rates.draw(t.random) + 0.02 * std::sin(2 * std::numbers::pi * static_cast<double>(n) / 10000), 0.0, 1.0));
    return r;
  };
  const EstimatedBaseline estimated = estimate_baseline([&](const auto& take) {
    Traffic t(400000);
    for (int64_t n = 0; n < 20000; ++n) take(request(t, n));
  });
  ASSERT_EQ(estimated.problem, "");
  expect_no_alarm(estimated.baseline, [&](Detector& d, Traffic& t, int64_t n) { watch(d, request(t, n)); });
}

TEST(Simulation, OneStratumsDropIsFoundAndNamed) {
  const Wandering start(0);
  std::map<std::string, StratumBaseline> strata;
  for (size_t s = 0; s < start.means.size(); ++s)
    strata["d" + std::to_string(s)] = flat_baseline(start.means[s], start.shares[s]);
  const Baseline baseline = by_domain(strata);
  int named = 0;
  const int runs = 60;
  const Mean found = mean_of(runs, [&](int run) {
    Wandering w = start;
    Detector detector(baseline);
    Traffic traffic(330000 + static_cast<uint64_t>(run));
    int64_t n = 0;
    constexpr int64_t kQuiet = 1000;
    while (n < 20000 && detector.peak().log_evidence < kAlarm) {
      watch(detector, w.next(traffic, n, n < kQuiet ? 0 : -0.10, 3));
      ++n;
    }
    named += detector.peak().stratum == "d3";
    return static_cast<double>(n - kQuiet);
  });
  RecordProperty("delay", std::to_string(found.value));
  EXPECT_LE(found.value, 600) << "the stratum with 15 % of the requests";
  EXPECT_GE(named, runs * 95 / 100);
}

// Tests the early warning (Amber). With one false warning per 100,000 requests, the warning comes on average within 100
// requests after acceptance drops from .70 to .65. False warnings are at most twice as frequent as stated.
TEST(Simulation, TheAmberLightIsSoonerAndAsRare) {
  const BetaRates before(0.70, 0.10), after(0.65, 0.10);
  Baseline baseline = flat(0.70);
  StratumBaseline& b = baseline.strata.at("");
  b.sd = 0.105;
  b.n = 1999;
  EXPECT_EQ(Detector(baseline, 0, 1e5).amber().limit, 0) << "too few requests in phase I";
  b.n = 2000;
  EXPECT_NEAR(Detector(baseline, 0, 1e5).amber().limit, 27.9, 0.5);
  const auto to_amber = [&](double stated, uint64_t stream, int64_t change, int64_t limit) {
    Detector d(baseline, 0, stated);
    Traffic t(stream);
    int64_t n = 0;
    while (n < limit && !d.amber().on()) {
      d.add("", t.request_at((n < change ? before : after).draw(t.random)), n);
      ++n;
    }
    return static_cast<double>(n);
  };
  EXPECT_LE(
      mean_of(200, [&](int run) { return to_amber(1e5, 340000 + static_cast<uint64_t>(run), 200, 20000) - 200; }).value,
      100);
  // With skewed residuals, false warnings come sooner than Siegmund's formula predicts: in earlier research after 76 to
  // 99 % of the predicted time. Here the mean time must be at least half of the predicted time.
  EXPECT_GE(
      mean_of(60, [&](int run) { return to_amber(1e4, 350000 + static_cast<uint64_t>(run), 1 << 30, 200000); }).value,
      5e3);
}

}  // namespace
}  // namespace specdec::monitor
