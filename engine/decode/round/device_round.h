// Rounds on a GPU: one upload, the passes of the drafts and the target with the drawing and the verification between
// them, and one copy back. The host waits once.
#pragma once

#include <memory>

#include "engine/decode/round/round.h"

namespace specdec::decode {

// Returns the runner of rounds for a target that make_model_runner() or make_mirrored_model() made and that must
// outlive it, or null if no kernels run the target's passes (model::cuda_pass_library()). It takes slots whose drafts
// such kernels run, too, whose models' rope does not depend on the text's length, and whose rule is not the coupled
// one.
std::unique_ptr<RoundRunner> make_device_round(CausalModel& target);

}  // namespace specdec::decode
