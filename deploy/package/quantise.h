// A draft in 8 bits for the engines that read such checkpoints: another Hugging Face directory with the same tokenizer.
// The matrices of the decoder's layers are quantised; embeddings, lm_head, norms and biases stay as they are.
//
//   fp8    compressed-tensors, float-quantized: <name>.weight F8_E4M3 [N, K], <name>.weight_scale F32 [N, 1], one scale
//   a row; engines round the
//          activations of each token as they go (llm-compressor calls the scheme FP8_DYNAMIC)
//   int8   gptq, 8 bits, symmetric, inputs in their order: <name>.qweight I32 [K/4, N], .qzeros I32 [groups, N/4],
//   .scales F16 [groups, N],
//          .g_idx I32 [K]; groups of 128 inputs, of 64 or 32 where 128 does not divide every K, else whole rows
//
// Weights are rounded to the nearest, without calibration data: the same draft gives the same bytes. A quantised draft
// is another draft. The target's text does not change with it, its acceptance may: the gate measures it as it measures
// any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"

namespace specdec::deploy {

// "fp8", "int8".
const std::vector<std::string>& known_quantisations();

struct QuantisedDraft {
  uint64_t bytes_before = 0, bytes_after = 0;  // of the weight files
  double relative_error = 0;                   // sqrt(Σ (w − ŵ)² / Σ w²) over the quantised matrices
};

// Publishes the directory `out`, whole or not at all; its specdec.json, where the draft has one, records the format.
// Memory: one weight file, twice. Throws Error(kUsage) for another format or where `out` is there; Error(kModel) for
// what has no such form: an EAGLE-3 head, experts, a draft that is quantised already, inputs or outputs that four do
// not divide, weights that are not finite.
QuantisedDraft quantise_draft(const std::filesystem::path& draft, const std::string& format,
                              const std::filesystem::path& out, const ProgressFn& progress);

}  // namespace specdec::deploy
