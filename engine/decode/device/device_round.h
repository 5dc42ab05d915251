// Rounds on a GPU: one upload, then the passes of drafts and target with drawing and verification between them, and one
// copy back. The host waits once.
#pragma once

#include <memory>

#include "engine/decode/round/round.h"

namespace specdec::decode {

// Returns the runner of rounds for a target that make_model_runner() or make_mirrored_model() made and that must
// outlive it, or null if our kernels do not support the target's passes (model::cuda_pass_library()). It supports slots
// that satisfy wants_only_tokens(), if our kernels also support their drafts and no rope depends on the length of the
// text.
std::unique_ptr<RoundRunner> make_device_round(CausalModel& target);

// Attaches the runner of rounds to a target (CausalModel::rounds()), so that its steps run as rounds.
std::unique_ptr<CausalModel> with_rounds(std::unique_ptr<CausalModel> target);

}  // namespace specdec::decode
