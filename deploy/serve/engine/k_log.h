// Tracks a draft's prevailing K, the K that most of its recent steps use, and makes a log line for the operator when it
// changes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/serve/queue/step_runner.h"

namespace specdec::deploy {

// Each draft has a KLog, which is used on the engine thread only.
class KLog {
 public:
  static constexpr double kQuiet = 10;  // seconds between two lines

  // Takes the K of each of the draft's sequences in one step. The caller leaves out probes and steps made only to
  // measure.
  void chose(std::span<const int> ks);
  int prevailing() const { return prevailing_; }
  // Returns "K 4 → 0 at batch 16: …" with the figures on which the choice rests, if basis.k differs from the K logged
  // last and the last line is at least kQuiet seconds old. Returns none until the costs are measured.
  std::optional<std::string> line(const DepthEvidence& basis, double now);

 private:
  std::vector<double> shares_;  // share of each K, older steps fading
  int prevailing_ = 0;
  int said_ = -1;
  double said_at_ = 0;
};

}  // namespace specdec::deploy
