// Tracks the K that most of a draft's recent steps use (the prevailing K), and makes a log line for the operator when
// it changes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/serve/queue/step_runner.h"

namespace specdec::deploy {

// Each draft has its own KLog, which only the engine thread uses.
class KLog {
 public:
  static constexpr double kQuiet = 10;  // least seconds between two log lines

  // Takes the K that each of the draft's sequences used in one step. The caller leaves out steps that draft only to
  // test another K or to measure costs.
  void chose(std::span<const int> ks);
  int prevailing() const { return prevailing_; }
  // Returns a log line such as "K 4 → 0 at batch 16: …" with the figures behind the choice of K. Returns none if
  // basis.k is the K logged last, if the last line is less than kQuiet seconds old, or if the costs are not measured
  // yet.
  std::optional<std::string> line(const DepthEvidence& basis, double now);

 private:
  std::vector<double> shares_;  // share of each K in the steps so far; older steps count less
  int prevailing_ = 0;
  int said_ = -1;
  double said_at_ = 0;
};

}  // namespace specdec::deploy
