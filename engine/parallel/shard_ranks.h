// Implements model::ShardGroup, the communication of ranks that hold one decoder together, over c10d.
#pragma once

#include <memory>

#include "base/device_lost.h"
#include "engine/config/shard.h"
#include "engine/parallel/ranks.h"

namespace specdec::parallel {

// Thrown by the ShardGroup of make_shard_group() instead of RankError. It is a DeviceLost, because a model that has
// lost a part cannot continue, although this rank's own device still works.
struct RankLost : DeviceLost {
  explicit RankLost(const RankError& cause) : DeviceLost(cause.what(), cause.kind()) {}
};

// Returns a ShardGroup that communicates through `ranks`, which must outlive the group. Call Ranks::use_device() first
// if the tensors are on a GPU.
std::shared_ptr<const model::ShardGroup> make_shard_group(const Ranks& ranks);

}  // namespace specdec::parallel
