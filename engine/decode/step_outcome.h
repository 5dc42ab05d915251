// What one step did for one sequence.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "engine/decode/controller.h"
#include "engine/decode/logprobs.h"

namespace specdec::decode {

struct StepOutcome {
  KDecision decision;             // of the draft model's K
  std::vector<int32_t> emitted;   // accepted + 1 tokens; empty if the sequence failed
  int drafted = 0, accepted = 0;  // positions: for a tree its depth, and how much of that was kept
  // Drafted from the text: `drafted` is 0 then, since the draft model's figures stay its own.
  int suffix_drafted = 0, suffix_accepted = 0;
  std::vector<double> overlaps;            // Σ min(p, q) at each reached position
  std::vector<double> observed;            // what the controller was told of them: the overlap, or whether it was kept
  std::vector<double> shadow_overlaps;     // the shadow's at the same positions; empty if it was not asked or failed
  std::vector<PositionLogprobs> logprobs;  // one an emitted token, if the request wants them
  std::optional<PositionLogprobs> rejected;  // the first token of the draft model that was refused
  // Set if the sequence cannot go on; its tokens and caches are then as before the step. Error(kUsage): its own rules
  // leave no token, and the models are well.
  std::exception_ptr failure;

  // Empties everything but the decision, which a draft that is held from an earlier step keeps.
  void clear() {
    emitted.clear();
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
