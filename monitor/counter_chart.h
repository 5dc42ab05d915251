// Where only counters are to be had (a server's /metrics): one bucket a look, a risk-adjusted CUSUM on the buckets'
// residuals with their own spread; capped bets would make the e-detector slow on bucket means. What a bucket's mean is,
// by what the engine counts:
//   overlap and reached by position   Σ overlap / Σ reached, against the gate's overlap             (specdec)
//   accepted by position              Σ accepted_i / Σ reached_i, against the gate's c_i, with reached_i =
//   accepted_{i−1}, reached_0 = drafts
//                                     (vLLM, llama.cpp: sound while K is fixed), · min(1, drafted_i / drafted_{i−1})
//                                     where drafted is counted by position (TensorRT-LLM: sound where K does not follow
//                                     acceptance)
//   neither                           tokens a verify call − 1 (SGLang) or accepted / drafted, against the first
//   kPhaseOne buckets: a
//                                     draft that is bad from the start is not seen, and another K is a change
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/validation_report.h"
#include "monitor/source.h"

namespace specdec::monitor {

// What the counters of one engine say, all its servers together.
struct ChartView {
  std::string sources;  // whose they are
  int64_t judged = 0;   // scrapes, of CounterChart::kPhaseOne before a verdict
  double tested = 0, acceptance = 0,
         expected = 0;  // of the judged ones: tokens, means; expected 0 = their own first ones are compared with
  double waiting = 0;   // tokens tested since, too few for a scrape that counts
};

class CounterChart {
 public:
  static constexpr int64_t kPhaseOne = 10;   // buckets that estimate the spread before the chart may alarm
  static constexpr double kMinTested = 50;   // positions reached in a bucket; smaller ones wait for more
  static constexpr double kReference = 0.5;  // CUSUM k in sd; h by Siegmund for the wanted buckets to a false alarm

  explicit CounterChart(const RolloutFigures& baseline, double buckets_between_false_alarms = 1e5);

  // Returns false if the bucket is too small to be judged: it should grow until the next scrape.
  bool add(const Counters& bucket);
  std::string alarm() const { return alarm_; }  // "" or one line; kept until the chart is made anew
  std::string note() const { return note_; }    // of the last bucket: speculation went silent, …
  int64_t buckets() const { return n_; }

  // What was judged so far, of these sources.
  ChartView view(const std::string& sources) const;

  Json state() const;
  // False, and nothing restored, for numbers that no chart holds: it begins anew.
  bool restore(const Json& state);

 private:
  // One bucket as sums; own: by its own first buckets.
  struct Bucket {
    double tested = 0, sum = 0, expected = 0;
    bool own = false;
  };
  Bucket bucket_of(const Counters& counters) const;

  std::vector<double> overlap_, conditional_;
  double tolerance_, limit_;
  int64_t n_ = 0;
  double mean_ = 0, m2_ = 0, cusum_ = 0;        // Welford over residuals b − x
  double tested_ = 0, sum_ = 0, expected_ = 0;  // of the judged buckets
  double waiting_ = 0;                          // tested in a bucket that is too small
  std::string alarm_, note_;
};

}  // namespace specdec::monitor
