// What a run writes while it trains: RUN/metrics.jsonl (one object a line) and a TensorBoard event file.
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
  // `resume_step` > 0: lines of later steps, left by an interrupted run, are dropped. Throws Error(kIo).
  Metrics(const std::filesystem::path& run_directory, const Clock& clock, int64_t resume_step);

  // {"kind": kind, "step": step, "time": unix, values…}; the same values as scalars "<kind>/<name>". Non-finite values
  // are null.
  void write(const std::string& kind, int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::filesystem::path file_;
  const Clock& clock_;
  EventFile events_;
};

}  // namespace specdec::distill
