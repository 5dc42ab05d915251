// The ranks that hold one decoder together, over c10d.
#pragma once

#include <memory>

#include "engine/model/shard.h"
#include "engine/parallel/ranks.h"

namespace specdec::parallel {

// Returns the group of these ranks, which must outlive it. Sums and gathered columns are where the tensors are:
// Ranks::use_device() must have been called for tensors on a GPU.
std::shared_ptr<const model::ShardGroup> make_shard_group(const Ranks& ranks);

}  // namespace specdec::parallel
