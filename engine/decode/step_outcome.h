// The result of one step for one sequence.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "engine/decode/control/controller.h"
#include "engine/decode/sampling/logprobs.h"

namespace specdec::decode {

struct StepOutcome {
  KDecision decision;            // how the draft model's K was chosen
  bool in_round = false;         // the step ran as a round of a device (round.h)
  std::vector<int32_t> emitted;  // accepted + 1 tokens; empty if the sequence failed or its mask was late
  // The grammar's mask was not there in time, so the sequence is as before the step and its draft is held.
  bool mask_late = false;
  // Numbers of positions. For a tree: its depth, and the depth that was kept.
  int drafted = 0, accepted = 0;
  // The same counts for tokens drafted from the text; `drafted` and `accepted` are then 0, because they count only the
  // draft model.
  int suffix_drafted = 0, suffix_accepted = 0;
  std::vector<double> overlaps;  // Σ_x min(p, q) at each reached position
  // The values that the controller learned from: the overlaps, or 1 for kept and 0 for rejected tokens.
  std::vector<double> observed;
  // The shadow draft's overlaps at the same positions; empty if it did not run or failed.
  std::vector<double> shadow_overlaps;
  std::vector<PositionLogprobs> logprobs;    // one per emitted token, if the request wants them
  std::optional<PositionLogprobs> rejected;  // the draft model's first rejected token, if the request wants it
  // Set if the sequence cannot continue; its tokens and caches are then as before the step. Error(kUsage) means that
  // the request's logits processors leave no token, MasksSpent that its grammar costs too much; the models are fine.
  std::exception_ptr failure;

  // Clears everything but the decision, because a held draft keeps the decision of the step that drew it.
  void clear() {
    emitted.clear();
    in_round = mask_late = false;
    drafted = accepted = suffix_drafted = suffix_accepted = 0;
    overlaps.clear();
    observed.clear();
    shadow_overlaps.clear();
    logprobs.clear();
    rejected.reset();
    failure = nullptr;
  }
};

}  // namespace specdec::decode
