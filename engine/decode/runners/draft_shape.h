// The shape of a draft that is laid out before its tokens are known: levels of nodes, numbered level by level. A chain
// has one node in each level.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specdec::decode {

class DraftShape {
 public:
  // The first `levels` levels of a tree (SpeculationOptions::tree), or of a chain if it is empty.
  DraftShape(std::span<const int> tree, int levels);

  bool chain() const { return chain_; }
  int levels() const { return static_cast<int>(begin_.size()) - 1; }
  int32_t num_nodes() const { return begin_.back(); }
  int32_t begin(int level) const { return begin_[static_cast<size_t>(level)]; }  // its first node
  int32_t size(int level) const { return begin(level + 1) - begin(level); }
  int32_t width(int level) const { return size(level) / (level == 0 ? 1 : size(level - 1)); }  // children of each node
  const std::vector<int32_t>& parents() const { return parents_; }                             // by node; −1: the text

 private:
  bool chain_;
  std::vector<int32_t> begin_, parents_;
};

// Returns bool [n − begin, n], row by row, for a tree of n nodes, with a row for each node from `begin` on: whether
// this node sees each of the n nodes. A node sees its ancestors and itself. Valid until this thread calls tree_mask()
// again.
std::span<const bool> tree_mask(std::span<const int32_t> parents, size_t begin);

// Returns the number of ancestors of each node.
std::vector<int64_t> tree_depths(std::span<const int32_t> parents);

}  // namespace specdec::decode
