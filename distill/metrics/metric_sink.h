// Where the metrics of a training run go besides the files in RUN.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace specdec::distill {

class MetricSink {
 public:
  virtual ~MetricSink() = default;
  // Takes values of a step by their names ("train/loss"). Returns at once and never throws.
  virtual void take(int64_t unix_seconds, int64_t step, const std::vector<std::pair<std::string, double>>& values) = 0;
};

}  // namespace specdec::distill
