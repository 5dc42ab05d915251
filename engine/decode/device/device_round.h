// Rounds on a GPU: one upload, the passes of the drafts and the target with the drawing and the verification between
// them, and one copy back. The host waits once.
#pragma once

#include <memory>

#include "engine/decode/round/round.h"

namespace specdec::decode {

// Returns the runner of rounds for a target that make_model_runner() or make_mirrored_model() made and that must
// outlive it, or null if no kernels run the target's passes (model::cuda_pass_library()). It takes slots that want only
// tokens (wants_only_tokens()), whose drafts such kernels run, too, and whose models' rope does not depend on the
// text's length.
std::unique_ptr<RoundRunner> make_device_round(CausalModel& target);

// Gives a target the runner of its rounds (CausalModel::rounds()), so that whoever steps it runs them.
std::unique_ptr<CausalModel> with_rounds(std::unique_ptr<CausalModel> target);

}  // namespace specdec::decode
