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
  bool in_round = false;         // whether the step drafted and verified on a GPU without the host (device_round.h)
  std::vector<int32_t> emitted;  // accepted + 1 tokens; empty if the sequence failed or its mask was late
  // True if the grammar's mask was not ready in time. The sequence is then unchanged, and its draft is held for the
  // next step.
  bool mask_late = false;
  // Numbers of drafted and accepted positions; for a tree, its depth and the depth of the accepted path.
  int drafted = 0, accepted = 0;
  // Numbers of tokens that were drafted from the sequence's own text (prompt lookup), and of those that were accepted.
  // In a step that drafts so, `drafted` and `accepted` are 0, because they count only the draft model.
  int suffix_drafted = 0, suffix_accepted = 0;
  std::vector<double> overlaps;  // Σ_x min(p, q) at each reached position
  // The values from which the controller learned: the overlaps, or 1 for accepted and 0 for rejected tokens.
  std::vector<double> observed;
  // The overlaps of the shadow draft (a second draft on trial) at the same positions; empty if it did not run or
  // failed.
  std::vector<double> shadow_overlaps;
  std::vector<PositionLogprobs> logprobs;  // one per emitted token, if the request wants them
  // The draft model's first rejected token, if the request wants its logprobs.
  std::optional<PositionLogprobs> rejected;
  // Set if the sequence cannot continue; its tokens and caches are then unchanged. Error(kUsage) means that the request
  // is the cause and the models still work: the logits processors leave no token or, if the error is MasksSpent, the
  // grammar takes too much time or memory.
  std::exception_ptr failure;

  // Clears everything but `decision`: a draft that is held from an earlier step keeps the decision of that step.
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
