// Watches acceptance when only counters are available (a server's /metrics). Each check makes one bucket of counts, and
// a risk-adjusted CUSUM runs on the buckets' residuals in units of their own standard deviation. (The e-detector would
// be slow here: its bets are capped, and bucket means vary little.) How the mean of a bucket is computed depends on
// what the engine counts:
// * overlap and reached by position (specdec): Σ overlap / Σ reached, compared with the gate's overlap.
// * accepted by position (vLLM, llama.cpp): Σ accepted_i / Σ reached_i, compared with the gate's conditional acceptance
// at each position i. Here reached_i = accepted_{i−1} and reached_0 = drafts, which is valid while K is fixed. If
// drafted tokens are also counted by position (TensorRT-LLM), reached_i is multiplied by min(1, drafted_i /
// drafted_{i−1}), which is valid if K does not depend on acceptance.
// * counters without positions: tokens per verify call − 1 (SGLang) or accepted / drafted, compared with the chart's
// own first kPhaseOne buckets. Such a chart does not notice a draft that is bad from the start, and a change of K looks
// like a drop or a rise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/validation_report.h"
#include "monitor/read/source.h"

namespace specdec::monitor {

// The figures of one engine's counters, summed over all servers of this engine.
struct ChartView {
  std::string sources;  // the URLs that the counters come from
  int64_t judged = 0;   // number of scrapes judged; a verdict needs CounterChart::kPhaseOne of them
  // Number of drafted tokens that the target tested in the judged scrapes, their mean acceptance, and the acceptance
  // expected by the baseline. `expected` is 0 if the chart compares with its own first scrapes.
  double tested = 0, acceptance = 0, expected = 0;
  double waiting = 0;  // tokens tested since the last judged scrape, too few to be judged
};

class CounterChart {
 public:
  static constexpr int64_t kPhaseOne = 10;  // buckets that give the spread before any alarm
  // Least number of drafted tokens tested by the target in a bucket (the counts that are judged together). A smaller
  // bucket also takes the counts of the next scrape.
  static constexpr double kMinTested = 50;
  // The CUSUM (sum of the falls of acceptance) subtracts this number, its k in standard deviations, from the residual
  // of every bucket, so that only larger falls add up. Its alarm limit h follows from k and the wanted mean number of
  // buckets between false alarms (Siegmund).
  static constexpr double kReference = 0.5;

  explicit CounterChart(const RolloutFigures& baseline, double buckets_between_false_alarms = 1e5);

  // Adds the counts of one scrape or several (a bucket). Returns false if there are too few counts to be judged; the
  // caller should then add the next scrape's counts to the bucket.
  bool add(const Counters& bucket);
  // What add() found: no new counts (kIdle), counts that were judged (kJudged), too few tested tokens (kWaiting), or
  // counts that say nothing about acceptance (kBlind).
  enum class Look { kIdle, kJudged, kWaiting, kBlind };
  Look look() const { return look_; }
  std::string alarm() const { return alarm_; }  // one line, "" = none; kept until the detectors are restarted
  std::string note() const { return note_; }    // about the last counts added, such as that speculation is off
  int64_t buckets() const { return n_; }

  // Returns the figures of all counts judged so far; `sources` names the URLs that they come from.
  ChartView view(const std::string& sources) const;

  Json state() const;
  // Returns false and restores nothing if the state has numbers that no chart can have; the chart then starts without
  // earlier counts.
  bool restore(const Json& state);

 private:
  // Sums over the counts that are judged together. If `own` is true, they are compared with the chart's own first
  // buckets instead of the gate's figures.
  struct Bucket {
    double tested = 0, sum = 0, expected = 0;
    bool own = false;
  };
  Bucket bucket_of(const Counters& counters) const;
  bool take(const Counters& counters);

  std::vector<double> overlap_, conditional_;
  double tolerance_, limit_;
  int64_t n_ = 0;
  double mean_ = 0, m2_ = 0, cusum_ = 0;        // mean and sum of squared deviations of the residuals; the CUSUM
  double tested_ = 0, sum_ = 0, expected_ = 0;  // the fields of Bucket, summed over the judged buckets
  double waiting_ = 0;                          // tokens tested since counts were last judged
  double counted_ = 0;                          // counted() of the counts not judged yet
  Look look_ = Look::kIdle;
  std::string alarm_, note_;
};

}  // namespace specdec::monitor
