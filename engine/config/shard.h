// Tensor parallelism: several processes ("ranks") hold one decoder together, and each rank holds a share of every large
// matrix (Shoeybi et al. 2019, arXiv 1909.08053). A rank has some attention heads, some inner values of the
// feed-forward part, and some rows of the vocabulary. Every rank has a full copy of norms, routers and the biases of o
// and down. The residual stream is bit-identical on all ranks. Each rank computes partial results. The ranks sum them
// after the o and down projections of each layer and after the embedding, and gather the logits. OLMo 2 needs one more
// sum, for its norms over all heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/config/config.h"

namespace specdec::model {

// Communication of one rank with the others. All ranks must call the same functions in the same order. sum(), join()
// and broadcast() throw DeviceLost if another rank is gone.
class ShardGroup {
 public:
  virtual ~ShardGroup() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  // Returns the fp32 sum of the ranks' tensors, bit-identical on all ranks.
  virtual at::Tensor sum(const at::Tensor& own) const = 0;
  // Concatenates the columns of all ranks to [R, total]. This rank's `own` [R, C] holds the columns of its
  // share_of(total).
  virtual at::Tensor join(const at::Tensor& own, int64_t total) const = 0;
  // Replaces the contents of a contiguous tensor by rank 0's.
  virtual void broadcast(const at::Tensor& tensor) const = 0;
};

// One rank's part [begin, begin + length) of a range that the ranks divide.
struct Share {
  int64_t begin = 0, length = 0;
};
// Returns a rank's share of the range [0, total). The lengths of the shares differ by at most one, and the last rank's
// is the largest.
Share share_of(int64_t total, int rank, int count);

// How a parameter is divided among the ranks: by which dimension and in which units.
enum class Split {
  kNone,
  kQueryHeads,        // rows, by query heads
  kKeyHeads,          // rows, by kv heads
  kQueryHeadColumns,  // columns, by query heads
  kInner,             // rows, by inner values of the feed-forward part or of an expert
  kInnerColumns,
  kVocabulary  // rows, by token ids
};
// The dimension of a parameter that is divided, and the part of it that a rank keeps.
struct Slice {
  int64_t dim = 0;
  Share share;
};
Slice slice_of(Split split, const std::vector<int64_t>& shape, const DecoderConfig& config, int rank, int count);

// Returns the number of ranks, of `count`, that keep the same kv head.
int64_t key_copies(const DecoderConfig& config, int count);

// Returns the config of a rank's share, with the rank's numbers of heads and inner values; vocab_size stays the whole
// decoder's. If there are fewer kv heads than ranks, several ranks keep the same head. Throws Error(kUsage) for a
// decoder that cannot be divided by `count`.
DecoderConfig shard_config(const DecoderConfig& config, int rank, int count);

}  // namespace specdec::model
