// Logs a training run: RUN/metrics.jsonl (one object per line) and a TensorBoard event file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "distill/event_file.h"

namespace specdec::distill {

class Metrics {
 public:
  // If `resume_step` > 0, lines of later steps that an interrupted run left are dropped. Throws Error(kIo).
  Metrics(const std::filesystem::path& run_directory, const Clock& clock, int64_t resume_step);

  // Writes {"kind": kind, "step": step, "time": unix, values…}, and the same values as scalars "<kind>/<name>".
  // Non-finite values are written as null.
  void write(const std::string& kind, int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::filesystem::path file_;
  const Clock& clock_;
  EventFile events_;
};

}  // namespace specdec::distill
