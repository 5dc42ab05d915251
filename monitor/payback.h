// Whether a redistillation pays: it costs GPU hours once and gives back the GPU hours that the tokens of the horizon no
// longer take.
//   gain a day [GPU h] = requests/day · tokens/request · (s/token now − s/token after) · GPUs / 3600,
//   s/token = 1 / rate now,   s/token after = s/token now · S_now / S_after
// S is the speed-up over plain decoding, S(K, B) = tau / (K·c + v) with the gate's measured costs (Leviathan et al.
// 2023, arXiv 2211.17192).
#pragma once

#include <string>

#include "base/schema/validation_report.h"
#include "monitor/policy.h"

namespace specdec::monitor {

// The best speed-up over K at batch 1 that the gate's costs promise when every overlap of the roll-outs moves by
// `change`, times what was measured over what was promised then: predictions leave out costs that the measurement has
// in it. 0 where nothing was measured.
double speedup_at(const ValidationReport& report, double change);

struct Payback {
  bool pays = false;
  double gain_gpu_hours = 0;  // within the horizon
  std::string text;           // one line
};
// Without Policy::gpu_hours it pays: nobody asked. `speedup_now` 1 stands for a draft that is worth nothing.
Payback payback(const Policy& policy, double requests_per_day, double speedup_now, double speedup_after);

}  // namespace specdec::monitor
