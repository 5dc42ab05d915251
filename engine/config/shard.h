// Tensor parallelism: several processes ("ranks") hold one decoder together, each a share of every large matrix
// (Shoeybi et al. 2019, arXiv 1909.08053). A rank has some heads of attention, some of the feed-forward part's inner
// values, and some rows of the vocabulary; norms, routers and the biases of o and down are whole on every rank. The
// residual stream has the same bits on all. The ranks add up their values after o and down of each layer (OLMo 2 also
// for norms of all heads) and once for the embeddings, and the logits are gathered.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/config/config.h"

namespace specdec::model {

// The other ranks, seen from one of them. All ranks must call the same functions in the same order. sum(), join() and
// broadcast() throw DeviceLost if another rank is gone.
class ShardGroup {
 public:
  virtual ~ShardGroup() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  // Returns the sum of the ranks' tensors in fp32, with the same bits on all ranks.
  virtual at::Tensor sum(const at::Tensor& own) const = 0;
  // Returns the columns of all ranks beside each other, [R, total], of which this rank's `own` [R, C] are those of its
  // share_of(total).
  virtual at::Tensor join(const at::Tensor& own, int64_t total) const = 0;
  // Replaces what a contiguous tensor holds by what rank 0's holds.
  virtual void broadcast(const at::Tensor& tensor) const = 0;
};

// The part [begin, begin + length) of something that ranks divide.
struct Share {
  int64_t begin = 0, length = 0;
};
// Returns a rank's share of `total` things. Shares differ by at most one, and the last rank has the largest.
Share share_of(int64_t total, int rank, int count);

// Which dimension of a parameter the ranks divide, and by what.
enum class Split {
  kNone,
  kQueryHeads,        // rows, by heads of queries
  kKeyHeads,          // rows, by heads of keys and values
  kQueryHeadColumns,  // columns, by heads of queries
  kInner,             // rows, by inner values of the feed-forward part or of an expert
  kInnerColumns,
  kVocabulary  // rows, by token ids
};
// Returns the part of a dimension of size `total` that a rank keeps, and that dimension.
struct Slice {
  int64_t dim = 0;
  Share share;
};
Slice slice_of(Split split, const std::vector<int64_t>& shape, const DecoderConfig& config, int rank, int count);

// Returns how many of `count` ranks keep the same head of keys.
int64_t key_copies(const DecoderConfig& config, int count);

// Returns the config of a rank's share: its own numbers of heads and inner values. vocab_size stays the decoder's. With
// fewer heads of keys than ranks, several ranks keep the same head. Throws Error(kUsage) for a decoder that cannot be
// divided by `count`.
DecoderConfig shard_config(const DecoderConfig& config, int rank, int count);

}  // namespace specdec::model
