// Divides --time-limit among preparing, training and judging. Preparing may take a tenth of the limit, and so may
// judging. If the limit is short, each may take more: a third of it or 20 s, whichever is less.
#pragma once

#include <string>

#include "base/clock.h"

namespace specdec::distill {

// The part of a limit that training has where preparing and judging take what they usually do.
inline constexpr double kUsualTrainingShare = 0.85;

class TimePlan {
 public:
  // What is done before the first step once target and data are loaded, in this order.
  enum class Stage { kLayers, kAnswers, kStart, kStep };

  // The limit counts from now on; 0 = there is none, and every stage may take for ever. A run on a share of the data
  // (DistillOptions::sample) measures on as many held-out rows as the whole run, whose limit is limit / sample.
  TimePlan(double limit_seconds, double sample, const Clock& clock);

  const Clock& clock() const { return *clock_; }
  double limit() const { return limit_; }
  bool is_limited() const { return limit_ > 0; }
  double elapsed() const;

  void set_loaded();  // the stages divide the time for preparing that is left now
  // Returns how long this stage may take if it begins now. Time that earlier stages did not use is added. If they have
  // used all of it, the stage still gets a small share.
  double seconds_for(Stage stage) const;
  double judging_seconds() const;  // the most that judging may take
  // Returns how long training may take if it begins now and `judging` seconds follow: at least a third of the limit. On
  // a share of the data it is always kUsualTrainingShare of the limit; without a limit it is 0.
  double training_seconds(double judging) const;

 private:
  double preparing_seconds() const;

  double limit_, sample_;
  const Clock* clock_;
  double begin_, loaded_ = 0;
};

// Returns the smallest usual duration of at least this many seconds: 90 s, 15 minutes, 5 hours.
double usual_duration(double seconds);
// Returns the duration as --time-limit takes it: "90s", "15m", "5h".
std::string duration_text(double seconds);

}  // namespace specdec::distill
