// Shows progress as text on stderr: one line that is redrawn on a terminal, separate lines elsewhere. If the work
// reports nothing new, tick() repeats the last line with the elapsed time: every second on a terminal, elsewhere every
// 1.9 s, and every 30 s once a stage has taken 10 minutes.
#pragma once

#include <functional>
#include <string>

#include "base/progress.h"

namespace specdec::cli {

class ProgressLine {
 public:
  using Write = std::function<void(const std::string&)>;
  static constexpr double kRedrawSeconds = 0.1;  // seconds between two redraws on a terminal
  // Seconds between two lines when stderr is no terminal: kLineSeconds in the first kOldStageSeconds of a stage, then
  // kOldLineSeconds.
  static constexpr double kLineSeconds = 1.9;
  static constexpr double kOldStageSeconds = 600, kOldLineSeconds = 30;

  // Times are in seconds of any monotonic clock. `now` is the time when the command began.
  ProgressLine(bool terminal, Write write, double now) : terminal_(terminal), write_(std::move(write)), shown_(now) {}

  void show(const Progress& progress, double now);
  void tick(double now);  // to be called a few times per second
  void end();             // ends a line that is still open on a terminal

 private:
  void put(double now);
  // Estimates the remaining seconds from the time that the work took so far. Between two reports the estimate counts
  // down. If no report arrives before it reaches zero, it is recomputed from the whole time since the start.
  double remaining(double now) const;
  bool finished() const { return last_.total > 0 && last_.done >= last_.total; }

  bool terminal_, open_ = false, any_ = false, ended_ = false;
  Write write_;
  Progress last_;
  double started_ = 0, shown_, changed_ = 0;  // changed_: time when `done` last changed
  double done_before_ = 0;                    // value of `done` when the stage began, for example from an earlier run
};

// Returns the time in the form "42s", "5m07s" or "2h09m".
std::string readable_duration(double seconds);

}  // namespace specdec::cli
