#include "engine/decode/runners/runner_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "engine/cache/kv_cache.h"
#include "engine/decode/runners/causal_model.h"

namespace specdec::decode {

void set_tree(std::span<const int32_t> parents, model::SequencePart& part) {
  const auto count = static_cast<int64_t>(parents.size());
  part.tree_mask = at::zeros({count, count}, at::kBool);
  bool* mask = part.tree_mask.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t parent = parents[static_cast<size_t>(i)];
    if (parent >= i) throw Error(ErrorKind::kInternal, "a tree's token comes before its parent");
    if (parent >= 0) std::copy_n(mask + parent * count, parent + 1, mask + i * count);
    mask[i * count + i] = true;
    part.positions.push_back(parent < 0 ? part.cache->length() : part.positions[static_cast<size_t>(parent)] + 1);
  }
}

void commit_nodes(model::KvCache& cache, std::span<const int32_t> unread, std::span<const int32_t> nodes,
                  std::span<const int32_t> parents) {
  if (cache.records()) {
    std::vector<int32_t> tokens(unread.begin(), unread.end());
    std::vector<int64_t> positions;
    tokens.insert(tokens.end(), nodes.begin(), nodes.end());
    const int64_t first = cache.length(), text = first + static_cast<int64_t>(unread.size());
    // Collects the positions of the unread text and of a tree's nodes. KvCache::record() adds those of a chain's nodes.
    for (int64_t at = first; at < text; ++at) positions.push_back(at);
    if (!parents.empty())
      for (const int64_t depth : tree_depths(parents.first(nodes.size()))) positions.push_back(text + depth);
    cache.record(tokens, positions);
  }
  cache.commit(static_cast<int64_t>(unread.size() + nodes.size()));
}

void check_capacity(std::span<const model::SequencePart> parts, const model::BlockPool& pool, bool anew) {
  int64_t blocks = 0;
  for (const model::SequencePart& part : parts)
    blocks += part.cache->blocks_missing(static_cast<int64_t>(part.tokens.size()), anew);
  if (blocks > pool.available())
    throw CacheFull("the KV cache is full: the next pass needs " + std::to_string(blocks) + " blocks of " +
                    std::to_string(model::BlockPool::kTokens) + " tokens, " + std::to_string(pool.available()) +
                    " of " + std::to_string(pool.num_blocks()) + " are free; end sequences or give it more memory");
}

}  // namespace specdec::decode
