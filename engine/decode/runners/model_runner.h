// Implements CausalModel with a real decoder: each sequence has a KV cache, and a pass runs as one flat batch.
#pragma once

#include <memory>

#include "engine/decode/runners/causal_model.h"
#include "engine/weights/weights.h"

namespace specdec::decode {

// Creates a runner. cache_bytes limits the caches of all sequences together and is allocated at once
// (model::cache_bytes() computes it). With a limit, extend() throws CacheFull when the caches are full, and adopt()
// reuses cached prompts. With 0, caches grow as needed, and adopt() finds nothing.
std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes = 0);

}  // namespace specdec::decode
