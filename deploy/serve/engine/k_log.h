// The K that prevails for a draft, and a line for the operator when another one does.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/serve/step_runner.h"

namespace specdec::deploy {

// One a draft; engine thread.
class KLog {
 public:
  static constexpr double kQuiet = 10;  // seconds between two lines

  // K of the draft's sequences in one step, probes and passes made to measure left out.
  void chose(std::span<const int> ks);
  int prevailing() const { return prevailing_; }
  // "K 4 → 0 at batch 16: …" with the numbers that decided, when basis.k is not what was said last, every kQuiet
  // seconds at most. None until costs are measured.
  std::optional<std::string> line(const KBasis& basis, double now);

 private:
  std::vector<double> shares_;  // of the K's, older steps fading
  int prevailing_ = 0;
  int said_ = -1;
  double said_at_ = 0;
};

}  // namespace specdec::deploy
