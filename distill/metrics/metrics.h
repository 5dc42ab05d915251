// Logs a training run: RUN/metrics.jsonl (one object per line) and a TensorBoard event file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "distill/metrics/event_file.h"

namespace specdec::distill {

class Metrics {
 public:
  // Removes the lines of steps after `resume_step` (0 for a new run) that an interrupted run wrote. Throws Error(kIo).
  Metrics(const std::filesystem::path& run_directory, const Clock& clock, int64_t resume_step);

  // Writes {"kind": kind, "step": step, "time": unix, values…}, and the same values as scalars "<kind>/<name>". In the
  // JSON, values that are not finite become null.
  void write(const std::string& kind, int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::filesystem::path file_;
  const Clock& clock_;
  EventFile events_;
};

}  // namespace specdec::distill
