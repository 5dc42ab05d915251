// Implements model::ShardGroup, the communication of ranks that hold one decoder together, over c10d.
#pragma once

#include <memory>

#include "base/device_lost.h"
#include "engine/config/shard.h"
#include "engine/parallel/ranks.h"

namespace specdec::parallel {

// The ShardGroup of make_shard_group() throws RankLost instead of RankError, because a model that has lost a part
// cannot continue. This rank's own device still works.
struct RankLost : DeviceLost {
  explicit RankLost(const RankError& cause) : DeviceLost(cause.what(), cause.kind()) {}
};

// Returns a group for these ranks, which must outlive it. Call Ranks::use_device() first if the tensors are on a GPU.
std::shared_ptr<const model::ShardGroup> make_shard_group(const Ranks& ranks);

}  // namespace specdec::parallel
