// Divides --time-limit among preparing (before the first step), training, and judging (measuring the finished draft).
// Preparing may take a tenth of the limit, and so may judging. Under a short limit each may take more: a third of the
// limit or 20 s, whichever is less.
#pragma once

#include <string>

#include "base/clock.h"

namespace specdec::distill {

// The usual share of a time limit that is left for training after preparing and judging.
inline constexpr double kUsualTrainingShare = 0.85;

class TimePlan {
 public:
  // The stages between loading target and data and the first training step, in order: choosing layers, answering
  // held-out prompts, evaluating the initial draft, measuring a step.
  enum class Stage { kLayers, kAnswers, kStart, kStep };

  // Starts the clock. limit_seconds = 0 means that nothing is limited. `sample` is DistillOptions::sample, the share of
  // the data that the run trains on. Time for held-out rows is computed from limit / sample, so that a run on a sample
  // is measured on as many rows as a run on all data.
  TimePlan(double limit_seconds, double sample, const Clock& clock);

  const Clock& clock() const { return *clock_; }
  double limit() const { return limit_; }
  bool is_limited() const { return limit_ > 0; }
  double elapsed() const;

  void set_loaded();  // call once target and data are loaded: the stages share the preparation time that is left now
  // Returns the seconds that this stage may take if it begins now. Time that earlier stages left unused is included. If
  // earlier stages used all of the preparation time, the stage still gets a small share.
  double seconds_for(Stage stage) const;
  double judging_seconds() const;  // longest time for measuring the finished draft
  // Returns the seconds that training may take if it begins now and judging takes `judging` seconds after it: at least
  // a third of the limit. If sample < 1, returns kUsualTrainingShare of the limit; without a limit, 0.
  double training_seconds(double judging) const;

 private:
  double preparing_seconds() const;

  double limit_, sample_;
  const Clock* clock_;
  double begin_, loaded_ = 0;
};

// Rounds `seconds` up to a multiple of 10 s (up to 90 s), a minute (up to 10 min), 5 min (up to 90 min) or an hour.
double usual_duration(double seconds);
// Returns the duration as --time-limit takes it: "90s", "15m", "5h".
std::string duration_text(double seconds);

}  // namespace specdec::distill
