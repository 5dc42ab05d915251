#include "engine/decode/runners/draft_shape.h"

#include <algorithm>
#include <memory>

namespace specdec::decode {

DraftShape::DraftShape(std::span<const int> tree, int levels) : chain_(tree.empty()) {
  int32_t first = -1, size = 1;  // of the previous level: first node and number of nodes; before level 0, the text (−1)
  begin_.push_back(0);
  for (int level = 0; level < levels; ++level) {
    const int width = chain_ ? 1 : tree[static_cast<size_t>(level)];
    for (int32_t i = 0; i < size * width; ++i) parents_.push_back(first + i / width);
    first = begin_.back();
    size *= width;
    begin_.push_back(first + size);
  }
}

std::span<const bool> tree_mask(std::span<const int32_t> parents, size_t begin) {
  thread_local std::unique_ptr<bool[]> room;
  thread_local size_t held = 0;
  const size_t n = parents.size(), count = (n - begin) * n;
  if (held < count) room = std::make_unique<bool[]>(held = count);
  for (size_t row = begin; row < n; ++row) {
    bool* const sees = room.get() + (row - begin) * n;
    std::fill(sees, sees + n, false);
    for (auto at = static_cast<int32_t>(row); at >= 0; at = parents[static_cast<size_t>(at)]) sees[at] = true;
  }
  return {room.get(), count};
}

std::vector<int64_t> tree_depths(std::span<const int32_t> parents) {
  std::vector<int64_t> depths;
  for (const int32_t parent : parents) depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
  return depths;
}

}  // namespace specdec::decode
