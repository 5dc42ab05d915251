// Make results with a different value in every field, for round trips.
#pragma once

#include "base/schema/gpu_check.h"
#include "base/schema/loop_state.h"

namespace specdec::testing {

inline GpuChecks sample_gpus() {
  return {{{.index = 1,
            .name = "NVIDIA H100 80GB HBM3",
            .compute_capability = "9.0",
            .free_bytes = int64_t{79} << 30,
            .total_bytes = int64_t{80} << 30,
            .copy_bytes_per_second = 3.6e11,
            .cases = 200,
            .seconds = 1.25,
            .faults = {{"rope", "fp16 5 x 3 x 64", "element 7 of 960 is 0.5, expected 0.25"}}}},
          ""};
}

inline LoopState sample_loop() {
  LoopState s;
  s.head = {"validate failed", "2026-11-21T12:00:00Z", 12.5};
  s.inputs = {"org/target", std::string(64, 'a'), "c0ffee", std::string(64, 's'), {{"day-1", std::string(64, 'd')}}};
  s.key = s.inputs.key();
  s.started_unix = 1795262400, s.ended_unix = 1795262500;
  s.stages = {{"data", {2.5, "runs/k/data/index.json", {{"verdict", "done"}}}}, {"distill", {9, "draft", nullptr}}};
  s.begun = {{"data", "d"}, {"distill", "t"}, {"validate", "v"}};
  s.stopped = LoopState::Stop{"validate", 3, 1, {{"verdict", "fail"}}, "acceptance 0.5", "[distill] epochs = 4", false};
  return s;
}

}  // namespace specdec::testing
