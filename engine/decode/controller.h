// Chooses K from measured acceptance and measured cost; 0 when speculation does not pay. Reads no clock: costs are given to
// it, so that recorded costs replay in tests. Exactness: decisions depend on past rounds, on q at the position about to be
// drawn and on kept tokens, never on the value a drawn token turns out to have in the target (kept-token rule, research/serve.md 8).
#pragma once

#include <cstdint>
#include <vector>

#include "base/run_options.h"

namespace specdec::decode {

struct ControllerOptions {
  int fixed_k = -1;           // >= 0: always this K
  int max_k = 8;
  double decay = 0.98;        // per step, of the overlap estimates
  int probe_interval = 64;    // plain steps between probes while K = 0
  double confidence_floor = 0.0;  // 0 = derived from measured costs
};

// Seconds of one call by batch size, moving averages; shared by every request of an engine.
class CostModel {
 public:
  void record_draft(int batch, double seconds);            // one draft step
  void record_target(int batch, int rows, double seconds); // one pass of `rows` tokens a sequence (rows = K + 1), sampling included
  double draft_cost(int batch) const;                      // c = draft step / plain target step; NaN until both measured
  double verify_cost(int batch, int k) const;              // v(K, B); interpolated over measured rows
  bool ready() const;
 private:
  struct Cell { double seconds = 0; double weight = 0; };
  std::vector<std::vector<Cell>> target_;  // [batch][rows]
  std::vector<Cell> draft_;
};

// Per request: overlap by position with decay, started from a shared prior.
class KController {
 public:
  KController(const ControllerOptions& options, const CostModel* costs);
  int choose_k(int batch);                      // K of the coming step
  // Asked after position `position` was drawn and kept, before the next draft pass: may drafting stop here?
  // `confidence` is q_position(x) of the drawn (kept) token.
  bool stop_after(int position, double confidence, int batch) const;
  void observe(int drafted, int accepted, const std::vector<double>& overlaps);
  double expected_overlap(int position) const;

 private:
  ControllerOptions options_;
  const CostModel* costs_;
  std::vector<double> weight_, sum_;
  int plain_since_probe_ = 0;
};

}  // namespace specdec::decode
