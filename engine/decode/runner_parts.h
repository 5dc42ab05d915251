// What the runners of decoders and of EAGLE-3 heads share: trees as parts of a pass, and room in the caches.
#pragma once

#include <cstdint>
#include <span>

#include "engine/model/block_pool.h"
#include "engine/model/forward.h"

namespace specdec::decode {

// Sets the mask and the positions of a tree with these parents (Extension::parents). Every token sees the cache, its
// ancestors and itself. Its position is the cache's length plus the number of its ancestors.
void set_tree(std::span<const int32_t> parents, model::SequencePart& part);

// Throws CacheFull, before anything is written, if the pass may need more blocks than are available. `anew`: it may
// rewrite whole texts. A last block that several of these sequences share counts once for each.
void check_capacity(std::span<const model::SequencePart> parts, const model::BlockPool& pool, bool anew);

}  // namespace specdec::decode
