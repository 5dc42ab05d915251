// Drafts that propose only part of the target's tokens: their head multiplies fewer rows, which is most of a small
// draft's cost under a large vocabulary (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). This is exact: a token outside
// has q = 0 and is never drawn. The checkpoint keeps the whole head and lists the ids in config.json, so that other
// engines can load it as a full draft.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace specdec::model {

// Returns the ids as [D] int64 on `device`.
at::Tensor draft_vocab_index(const std::vector<int32_t>& draft_vocab, at::Device device);

// Spreads logits [..., D] of the kept ids into [..., V] with −inf elsewhere. Returns `logits` unchanged if draft_vocab
// is empty.
at::Tensor spread_logits(const at::Tensor& logits, const std::vector<int32_t>& draft_vocab, int64_t vocab_size);

}  // namespace specdec::model
