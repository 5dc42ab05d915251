// Where only counters are to be had (a server's /metrics): one bucket a scrape, a risk-adjusted CUSUM on the buckets' residuals with
// their own spread; capped bets would make the e-detector slow on bucket means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/validation_report.h"
#include "monitor/source.h"

namespace specdec::monitor {

class CounterChart {
 public:
  static constexpr int64_t kPhaseOne = 10;     // buckets that estimate the spread before the chart may alarm
  static constexpr double kMinTested = 50;     // positions reached in a bucket; smaller ones wait for more
  static constexpr double kReference = 0.5, kLimit = 9.65;   // CUSUM k and h in sd: one false alarm in 1e5 buckets (Siegmund)

  explicit CounterChart(const RolloutFigures& baseline);

  // Returns false if the bucket is too small to be judged: it should grow until the next scrape.
  bool add(const Counters& bucket);
  std::string alarm() const { return alarm_; }  // "" or one line; kept until the chart is made anew
  std::string note() const { return note_; }    // of the last bucket: speculation went silent, …
  int64_t buckets() const { return n_; }

  Json state() const;
  void restore(const Json& state, const std::string& where);

 private:
  std::vector<double> overlap_, conditional_;
  double tolerance_;
  int64_t n_ = 0;
  double mean_ = 0, m2_ = 0, cusum_ = 0;        // Welford over residuals b − x
  std::string alarm_, note_;
};

}  // namespace specdec::monitor
