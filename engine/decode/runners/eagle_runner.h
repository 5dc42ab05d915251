// Implements CausalModel with an EAGLE-3 head, which reads hidden states of its target.
#pragma once

#include <memory>

#include "engine/decode/runners/causal_model.h"
#include "engine/weights/eagle_head.h"

namespace specdec::decode {

// Creates the runner of an EAGLE-3 head. `target` must be the runner of the head's target, made by make_model_runner(),
// and must outlive the new runner. cache_bytes is documented at make_model_runner(). Throws Error(kModel) for a rope
// that depends on the length of the text.
std::unique_ptr<CausalModel> make_eagle_runner(std::shared_ptr<const model::EagleHead> head, CausalModel& target,
                                               int64_t cache_bytes = 0);

}  // namespace specdec::decode
