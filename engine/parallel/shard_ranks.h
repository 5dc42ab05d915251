// The ranks that hold one decoder together, over c10d.
#pragma once

#include <memory>

#include "base/device_lost.h"
#include "engine/config/shard.h"
#include "engine/parallel/ranks.h"

namespace specdec::parallel {

// The group throws this in place of RankError, because a model that has lost a part cannot answer anything any more.
// This rank's own device is sound.
struct RankLost : DeviceLost {
  explicit RankLost(const RankError& cause) : DeviceLost(cause.what(), cause.kind()) {}
};

// Returns the group of these ranks, which must outlive it. Sums and gathered columns are where the tensors are:
// Ranks::use_device() must have been called for tensors on a GPU.
std::shared_ptr<const model::ShardGroup> make_shard_group(const Ranks& ranks);

}  // namespace specdec::parallel
