// A draft that proposes only part of the target's tokens: its head multiplies fewer rows, which is most of a small
// draft's cost under a large vocabulary (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). Exact: a token that is not kept
// has q = 0 and is never drawn. The checkpoint keeps the whole head and names the ids in config.json, so that other
// engines load it as the full draft it also is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace specdec::model {

// [D] int64 on `device`.
at::Tensor draft_vocab_index(const std::vector<int32_t>& draft_vocab, at::Device device);

// Logits [..., D] of the kept ids as [..., V] with -inf elsewhere; they themselves where draft_vocab is empty.
at::Tensor spread_logits(const at::Tensor& logits, const std::vector<int32_t>& draft_vocab, int64_t vocab_size);

}  // namespace specdec::model
