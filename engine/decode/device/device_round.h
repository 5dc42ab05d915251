// Runs a round on a GPU: one upload of all inputs, then the draft and target passes with drawing and verification
// between them, then one copy of the results to the host. The host waits once.
#pragma once

#include <memory>

#include "engine/decode/round/round.h"

namespace specdec::decode {

// Returns the runner of rounds for a target, or null if our kernels do not support the target's passes
// (model::cuda_pass_library()). `target` must be the result of make_model_runner() or make_mirrored_model() and must
// outlive the runner. The runner supports slots that satisfy wants_only_tokens(), if our kernels also support their
// drafts and no rope depends on the length of the text.
std::unique_ptr<RoundRunner> make_device_round(CausalModel& target);

// Returns the target with a runner of rounds attached (CausalModel::rounds()), so that its steps run as rounds.
std::unique_ptr<CausalModel> with_rounds(std::unique_ptr<CausalModel> target);

}  // namespace specdec::decode
