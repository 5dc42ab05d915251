// What the runners of decoders and of EAGLE-3 heads share: trees as parts of a pass, and room in the caches.
#pragma once

#include <cstdint>
#include <span>

#include "engine/decode/round_models.h"
#include "engine/model/block_pool.h"
#include "engine/model/forward.h"

namespace specdec::decode {

// Sets the mask and the positions of a tree with these parents (Extension::parents). Every token sees the cache, its
// ancestors and itself. Its position is the cache's length plus the number of its ancestors.
void set_tree(std::span<const int32_t> parents, model::SequencePart& part);

// Throws CacheFull, before anything is written, if the pass may need more blocks than are available. `anew`: it may
// rewrite whole texts. A last block that several of these sequences share counts once for each.
void check_capacity(std::span<const model::SequencePart> parts, const model::BlockPool& pool, bool anew);

// Adds one reader's rows of a round's pass (RoundDraft::make_pass()). `cache` is the sequence's, and its slots are
// those of the text's tokens from `skipped` on.
template <class Pass>
void add_reader_rows(const RoundDraft::Reader& reader, int depth, model::KvCache& cache, int64_t skipped, Pass& pass) {
  const int64_t before = cache.length(), unread = static_cast<int64_t>(reader.text.size()) - skipped - before;
  if (depth == 0) {
    cache.reserve(before + unread + reader.k - 1);
    pass.add({&cache, before, reader.text.last(static_cast<size_t>(unread)), 1});
    return;
  }
  const int32_t open = 0;
  pass.add({&cache, before + unread + depth - 1, std::span(&open, 1), 1});
}

}  // namespace specdec::decode
