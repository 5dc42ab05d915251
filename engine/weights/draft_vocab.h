// Supports drafts that propose only a part of the target's tokens (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). Their
// head multiplies fewer rows, and with a large vocabulary the head is most of a small draft's cost. Speculative
// decoding stays exact: a token outside the draft's vocabulary has draft probability q = 0 and is never drafted. The
// checkpoint keeps the whole head and lists the ids in config.json, so that other engines can load it as a full draft.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace specdec::model {

// Returns the ids as an int64 tensor [draft_vocab.size()] on `device`.
at::Tensor draft_vocab_index(const std::vector<int32_t>& draft_vocab, at::Device device);

// Spreads logits [..., D] of the kept ids into [..., V] with −inf elsewhere. Returns `logits` unchanged if draft_vocab
// is empty.
at::Tensor spread_logits(const at::Tensor& logits, const std::vector<int32_t>& draft_vocab, int64_t vocab_size);
// The same with the ids as draft_vocab_index() returns them on the logits' device, or undefined for all ids. A pass
// keeps them, so that they are not uploaded each time.
at::Tensor spread_logits(const at::Tensor& logits, const at::Tensor& ids, int64_t vocab_size);
// Writes logits of the kept ids [n, D], or of all [n, V], as fp32 rows [n, V], with −inf outside of the kept ids
// (draft_vocab_index(); undefined: all).
void write_logits(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& rows);

}  // namespace specdec::model
