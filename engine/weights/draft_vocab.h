// Supports drafts that propose only a part of the target's tokens (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). Their
// lm_head has fewer rows, which saves time because with a large vocabulary lm_head is most of a small draft's cost.
// Speculative decoding stays exact: a token outside the draft's vocabulary has draft probability q = 0 and is never
// drafted. The checkpoint keeps the whole lm_head and lists the ids in config.json, so that other engines can load it
// as a full draft.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace specdec::model {

// Returns the ids as an int64 tensor [draft_vocab.size()] on `device`.
at::Tensor draft_vocab_index(const std::vector<int32_t>& draft_vocab, at::Device device);

// Expands logits [..., D] of the ids in draft_vocab to [..., V], with −inf for all other ids. Returns `logits`
// unchanged if draft_vocab is empty.
at::Tensor spread_logits(const at::Tensor& logits, const std::vector<int32_t>& draft_vocab, int64_t vocab_size);
// Expands logits of the given ids to [..., V] with −inf for all other ids. `ids` comes from draft_vocab_index() and is
// on the logits' device; undefined means all ids. Callers store `ids`, so that they are not uploaded for each pass.
at::Tensor spread_logits(const at::Tensor& logits, const at::Tensor& ids, int64_t vocab_size);
// Writes logits [n, D] of the given ids (draft_vocab_index()) as fp32 rows [n, V] with −inf for all other ids. If `ids`
// is undefined, the logits are [n, V] and are copied.
void write_logits(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& rows);

}  // namespace specdec::model
