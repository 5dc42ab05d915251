// CausalModel over a real decoder: sequences are KV caches, a pass is one flat batch.
#pragma once

#include <memory>

#include "engine/decode/causal_model.h"
#include "engine/model/weights.h"

namespace specdec::decode {

std::unique_ptr<CausalModel> make_model_runner(std::shared_ptr<const model::Decoder> decoder);

}  // namespace specdec::decode
