#include "monitor/statistics/measurement.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

using specdec::testing::expect_error;

Measurement at(int64_t time, int64_t requests, double mean, int64_t epoch = 1) {
  Measurement m;
  m.epoch = epoch;
  m.time = time;
  m.requests = {requests, mean * static_cast<double>(requests), 0.7 * static_cast<double>(requests), 0};
  return m;
}

TEST(Measurement, HasTheDetectorsSums) {
  Detector detector(by_domain({{"a", flat_baseline(0.8)}, {"", flat_baseline(0.6)}}));
  Traffic traffic(3);
  for (int i = 0; i < 100; ++i) detector.add(i % 4 ? "a" : "unknown", traffic.request(0.7), 1);
  const Measurement m = measure(detector, {{"http://h", 3, 200, 0.5, 0, 0}}, std::log(1e5));
  EXPECT_NEAR(m.log10_alarm, 5, 1e-9);
  EXPECT_EQ(m.requests.n, 100);
  EXPECT_EQ(m.domains.at("a").sums.n, 75);
  EXPECT_EQ(m.domains.at("other").sums.n, 25);
  EXPECT_NEAR(m.requests.acceptance, m.domains.at("a").sums.acceptance + m.domains.at("other").sums.acceptance, 1e-9);
  EXPECT_GT(m.domains.at("a").log10_e, m.domains.at("other").log10_e);
  EXPECT_NEAR(m.requests.tolerance / 100, 0.01, 1e-9);
  EXPECT_EQ(m.counters.at("http://h").acceptance, 100);
  const Measurement read = measurement_from_text(figures_text(m), "where");
  EXPECT_EQ(figures_text(read), figures_text(m));
  // Without requests the log evidence is −∞, which is stored as 0.
  EXPECT_EQ(measure(Detector(flat(0.7)), {}, 0).log10_e, 0);
  for (const char* bad :
       {"", "{}", "[]", R"({"log10_e":0,"log10_alarm":0,"requests":[1,2],"domains":{},"counters":{}})",
        R"({"log10_e":0,"log10_alarm":0,"requests":[1,2,3,1e99],"domains":{},"counters":{}})",
        R"({"log10_e":0,"log10_alarm":0,"requests":[1,2,3,4],"domains":{"a":"b"},"counters":{}})"})
    expect_error(ErrorKind::kData, {"where"}, [&] { measurement_from_text(bad, "where"); });
}

TEST(Measurement, IsReadFromAnEarlierResult) {
  const Json result = {
      {"evidence",
       {{"log10_e", 2.5},
        {"log10_alarm", 6},
        {"strata",
         {{{"name", "a"}, {"requests", 10}, {"acceptance", 0.5}, {"expected", 0.6}, {"tolerance", 0.01}},
          {{"name", "b"}, {"requests", 0}, {"acceptance", nullptr}}}},
        {"scrapes", {{{"sources", "u"}, {"tested_tokens", 100}, {"acceptance", 0.25}}}}}}};
  const Measurement m = measurement_in(result);
  EXPECT_EQ(m.log10_e, 2.5);
  EXPECT_EQ(m.requests.n, 10);
  EXPECT_DOUBLE_EQ(m.requests.acceptance, 5);
  EXPECT_EQ(m.domains.size(), 1u);
  EXPECT_EQ(m.counters.at("u").acceptance, 25);
  for (const Json& odd : {Json(), Json(7), Json{{"evidence", 7}}, Json{{"evidence", {{"strata", {7, {{"name", 7}}}}}}}})
    EXPECT_EQ(measurement_in(odd).requests.n, 0);
}

TEST(Periods, HaveTheRequestsBetweenMeasurements) {
  std::vector<Measurement> all;
  for (int64_t i = 1; i <= 1000; ++i) all.push_back(at(i * 600, i * 20, 0.7));
  const auto periods = periods_of(all, 100);
  ASSERT_GE(periods.size(), 95u);
  ASSERT_LE(periods.size(), 101u);
  int64_t n = 0, last = 0;
  for (const Period& p : periods) {
    EXPECT_GE(p.requests.n, 50);
    EXPECT_NEAR(p.requests.acceptance / static_cast<double>(p.requests.n), 0.7, 1e-9);
    EXPECT_GT(p.to, last);
    last = p.to;
    n += p.requests.n;
  }
  EXPECT_EQ(n, 20000);
  EXPECT_TRUE(periods_of({}, 100).empty());
}

// After each restart of the detectors (a new epoch) the sums start from zero, and a period never spans a restart.
TEST(Periods, EndWithTheirEpoch) {
  const auto periods =
      periods_of({at(600, 100, 0.7), at(1200, 110, 0.7), at(1800, 5, 0.5, 2), at(2400, 90, 0.5, 2)}, 1);
  ASSERT_EQ(periods.size(), 2u);
  EXPECT_EQ(periods[0].requests.n, 110);
  EXPECT_EQ(periods[1].requests.n, 90);
  EXPECT_NEAR(periods[1].requests.acceptance, 45, 1e-9);
  // Checks without traffic add no period, and the times stay ascending although the clock was set back.
  const auto odd = periods_of({at(600, 0, 0), at(1200, 0, 0), at(9000, 60, 0.7), at(3000, 120, 0.7)}, 10);
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_EQ(odd[0].to, 9000);
  EXPECT_EQ(odd[0].requests.n, 120);
}

}  // namespace
}  // namespace specdec::monitor
