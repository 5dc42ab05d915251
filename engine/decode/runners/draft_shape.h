// The shape of a draft: its nodes are numbered, level by level, before their tokens are known. A chain has one node per
// level.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specdec::decode {

class DraftShape {
 public:
  // Takes the first `levels` levels of a tree (SpeculationOptions::tree), or of a chain if `tree` is empty.
  DraftShape(std::span<const int> tree, int levels);

  bool chain() const { return chain_; }
  int levels() const { return static_cast<int>(begin_.size()) - 1; }
  int32_t num_nodes() const { return begin_.back(); }
  int32_t begin(int level) const { return begin_[static_cast<size_t>(level)]; }  // index of the level's first node
  int32_t size(int level) const { return begin(level + 1) - begin(level); }
  // Returns the number of children of each node of the previous level.
  int32_t width(int level) const { return size(level) / (level == 0 ? 1 : size(level - 1)); }
  const std::vector<int32_t>& parents() const { return parents_; }  // parent of each node; −1: the text

 private:
  bool chain_;
  std::vector<int32_t> begin_, parents_;
};

// Returns the mask of a tree with n nodes, bool [n − begin, n], row-major, with one row per node from `begin` on. A
// node sees its ancestors and itself. The mask is valid until this thread calls tree_mask() again.
std::span<const bool> tree_mask(std::span<const int32_t> parents, size_t begin);

// Returns the number of ancestors of each node.
std::vector<int64_t> tree_depths(std::span<const int32_t> parents);

}  // namespace specdec::decode
