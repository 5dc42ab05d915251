// Progress reports of long work. cli/progress_line.h draws them (one line that is redrawn on a terminal, separate lines
// elsewhere).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace specdec {

struct Progress {
  std::string stage;   // "distill", "alpha", …; "" ends the last stage without printing a line
  double done = 0;     // amount of work done, in `unit`
  double total = 0;    // amount of work of the whole stage, in `unit`; 0 = unknown
  std::string unit;    // "steps", "requests", "s"
  std::string detail;  // "loss 2.31 · acceptance 0.64", may be empty
};
using ProgressFn = std::function<void(const Progress&)>;  // may be empty; called from the working thread only

// Returns whether a signal has requested a stop (cli's handler calls request_stop). Long-running work checks this at
// safe points, saves its state, and throws Error(kNetwork, "stopped by a signal…"): this kind means "try again".
bool stop_requested();
void request_stop();

}  // namespace specdec
