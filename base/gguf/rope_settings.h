// The rope settings of a GGUF file in the form of config.json.
#pragma once

#include <cstdint>

#include "base/gguf/architectures.h"
#include "base/json.h"

namespace specdec::gguf {

// Writes rope_theta, rope_scaling and, for Phi-3, partial_rotary_factor and original_max_position_embeddings. Throws
// Error(kModel) for settings that config.json cannot express or that engines read differently.
void write_rope(const GgufFile& file, const Architecture& architecture, int64_t head_dim, Json& out);

// GGUF files store numbers of config.json as fp32. Returns the shortest decimal number that rounds to this fp32 number
// (1e-05 for 9.99999974737875e-06), which is what config.json had; `value` itself if it is no fp32 number.
double decimal(double value);

}  // namespace specdec::gguf
