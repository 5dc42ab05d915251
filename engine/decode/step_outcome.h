// The result of one step for one sequence.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "engine/decode/controller.h"
#include "engine/decode/logprobs.h"

namespace specdec::decode {

struct StepOutcome {
  KDecision decision;             // how the draft model's K was chosen
  std::vector<int32_t> emitted;   // accepted + 1 tokens; empty if the sequence failed
  int drafted = 0, accepted = 0;  // positions; of a tree its depth, and the kept part of that
  // Counted here if the tokens were drafted from the text; `drafted` is then 0, so that it counts the draft model
  // alone.
  int suffix_drafted = 0, suffix_accepted = 0;
  std::vector<double> overlaps;  // Σ_x min(p, q) at each reached position
  std::vector<double> observed;  // what the controller learnt from: the overlaps, or 1 for kept and 0 for refused
  // The shadow draft's overlaps at the same positions; empty if it did not run or failed.
  std::vector<double> shadow_overlaps;
  std::vector<PositionLogprobs> logprobs;    // one per emitted token, if the request wants them
  std::optional<PositionLogprobs> rejected;  // the draft model's first refused token
  // Set if the sequence cannot continue; its tokens and caches are then as before the step. Error(kUsage) means that
  // its own logits processors leave no token; the models are fine.
  std::exception_ptr failure;

  // Clears everything but the decision, which a draft held from an earlier step keeps.
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
