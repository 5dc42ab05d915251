// CausalModel over a real decoder: sequences are KV caches, a pass is one flat batch.
#pragma once

#include <memory>

#include "engine/decode/causal_model.h"
#include "engine/model/weights.h"

namespace specdec::decode {

// cache_bytes: what all sequences' caches may take, allocated at once (model::cache_bytes() says how much so many
// take); then extend() throws CacheFull, and adopt() finds what was read before. 0: they grow as needed, and adopt()
// finds nothing.
std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder, int64_t cache_bytes = 0);

}  // namespace specdec::decode
