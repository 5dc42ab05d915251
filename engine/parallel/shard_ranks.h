// The ranks that hold one decoder together, over c10d.
#pragma once

#include <memory>

#include "base/device_lost.h"
#include "engine/config/shard.h"
#include "engine/parallel/ranks.h"

namespace specdec::parallel {

// What the group throws in place of RankError: a model of which a part is gone answers nothing any more. This rank's
// own device is sound.
struct RankLost : DeviceLost {
  explicit RankLost(const RankError& cause) : DeviceLost(cause.what(), cause.kind()) {}
};

// Returns the group of these ranks, which must outlive it. Sums and gathered columns are where the tensors are:
// Ranks::use_device() must have been called for tensors on a GPU.
std::shared_ptr<const model::ShardGroup> make_shard_group(const Ranks& ranks);

}  // namespace specdec::parallel
