// Quantises a draft to 8 bits for engines that read such checkpoints: writes another Hugging Face directory with the
// same tokenizer. The matrices of the decoder's layers, each [N outputs, K inputs], are quantised; embeddings, lm_head,
// norms and biases are copied unchanged.
//
//   fp8    compressed-tensors, float-quantized: <name>.weight F8_E4M3 [N, K], <name>.weight_scale F32 [N, 1], one scale
//          per row; engines round the activations of each token at run time (llm-compressor calls the scheme
//          FP8_DYNAMIC)
//   int8   gptq, 8 bits, symmetric, inputs not reordered: <name>.qweight I32 [K/4, N], .qzeros I32 [groups, N/4],
//          .scales F16 [groups, N], .g_idx I32 [K]; groups of 128 inputs, or of 64 or 32 if 128 does not divide every
//          K, else one group per row
//
// Weights are rounded to nearest, without calibration data, so the same draft gives the same bytes. The target's text
// does not change with a quantised draft, but the acceptance rate may. So the gate measures the quantised draft like
// any other draft.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"

namespace specdec::deploy {

// Returns the names of the formats, "fp8" and "int8".
const std::vector<std::string>& known_quantisations();
void require_known_quantisation(const std::string& format);  // throws Error(kUsage)

struct QuantisedDraft {
  uint64_t bytes_before = 0, bytes_after = 0;  // sizes of the weight files
  double relative_error = 0;                   // sqrt(Σ (w − ŵ)² / Σ w²) over the quantised matrices
};

// Writes the quantised draft to the new directory `out`, completely or not at all. If the draft has a specdec.json, its
// copy records the format. Needs memory for two copies of one weight file. Throws Error(kUsage) for an unknown format
// or if `out` exists. Throws Error(kModel) for a draft that cannot be quantised: an EAGLE-3 head, a mixture of experts,
// a draft that is quantised already, weights that are not finite, or for int8 a matrix whose inputs or outputs are not
// divisible by four.
QuantisedDraft quantise_draft(const std::filesystem::path& draft, const std::string& format,
                              const std::filesystem::path& out, const ProgressFn& progress);

}  // namespace specdec::deploy
