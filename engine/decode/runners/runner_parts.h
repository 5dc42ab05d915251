// Code that the runners of decoders and of EAGLE-3 heads share: it builds tree masks, and reserves and commits slots of
// the KV caches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/decode/runners/round_models.h"
#include "engine/forward/forward.h"

namespace specdec::decode {

// Sets the mask and the positions of a part (one sequence's tokens in a pass). The tokens are a tree with these parents
// (Extension::parents). Every token sees the cache, its ancestors and itself. A token's position is the cache's length
// plus the number of its ancestors.
void set_tree(std::span<const int32_t> parents, model::SequencePart& part);

// Throws CacheFull, before anything is written, if the pass may need more blocks than are available. `anew`: the pass
// may recompute whole texts. A last block that several of the sequences share is counted once per sequence.
void check_capacity(std::span<const model::SequencePart> parts, const model::BlockPool& pool, bool anew);

// Adds one sequence's rows to a draft pass (RoundDraft::make_pass()). `cache` is the sequence's cache. Its slot i
// belongs to token `skipped` + i of the text.
template <class Pass>
void add_reader_rows(const RoundDraft::Reader& reader, int depth, model::KvCache& cache, int64_t skipped, Pass& pass) {
  const DraftShape& shape = *reader.shape;
  const int64_t before = cache.length(), unread = static_cast<int64_t>(reader.text.size()) - skipped - before;
  if (depth == 0) {
    cache.reserve(before + unread + shape.begin(shape.levels() - 1));
    pass.add({&cache, before, reader.text.last(static_cast<size_t>(unread)), 1});
    return;
  }
  const int32_t begin = shape.begin(depth - 1), end = shape.begin(depth);
  const std::vector<int32_t> open(static_cast<size_t>(end - begin), 0);
  const std::vector<int64_t> positions(open.size(), before + unread + depth - 1);
  std::span<const bool> allowed;
  if (!shape.chain())
    allowed = tree_mask(std::span(shape.parents()).first(static_cast<size_t>(end)), static_cast<size_t>(begin));
  pass.add({&cache, before + unread + begin, open, end - begin, allowed, positions});
}

// Commits the tokens whose keys and values are already in a sequence's cache: first the unread tokens of the text, then
// the nodes. If `parents` is empty, the nodes are a chain. `parents` may be longer than `nodes`.
void commit_nodes(model::KvCache& cache, std::span<const int32_t> unread, std::span<const int32_t> nodes,
                  std::span<const int32_t> parents);

}  // namespace specdec::decode
