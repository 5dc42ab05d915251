// Implements CausalModel with a real decoder: each sequence has a KV cache, and a pass runs as one flat batch.
#pragma once

#include <memory>

#include "engine/decode/runners/causal_model.h"
#include "engine/weights/eagle_head.h"
#include "engine/weights/weights.h"

namespace specdec::decode {

// Creates a runner. cache_bytes bounds the caches of all sequences together and is allocated at once
// (model::cache_bytes() computes it). With this bound, extend() throws CacheFull when the caches are full, and adopt()
// reuses cached prompts. With 0, caches grow as needed, and adopt() finds nothing.
std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes = 0);

// Creates the runner of an EAGLE-3 head for the target that `target` runs, which make_model_runner() made and which
// must outlive it. cache_bytes as above. Throws Error(kModel) for a rope that depends on the length of the text.
std::unique_ptr<CausalModel> make_eagle_runner(std::shared_ptr<const model::EagleHead> head, CausalModel& target,
                                               int64_t cache_bytes = 0);

}  // namespace specdec::decode
