#include <algorithm>
#include <numeric>

#include "engine/decode/residual.h"
#include "engine/decode/verifier.h"

namespace specdec::decode {

namespace {

using Row = std::vector<float>;

Row copy_of(std::span<const float> row) { return Row(row.begin(), row.end()); }

// Divides the row by its sum. Returns false and leaves the row unchanged if the sum is not positive.
bool normalise(Row& row) {
  const double total = std::accumulate(row.begin(), row.end(), 0.0);
  if (!(total > 0)) return false;
  for (float& x : row) x = static_cast<float>(x / total);
  return true;
}

int32_t parent_of(const VerifyInput& input, int32_t node) {
  return input.parents.empty() ? node - 1 : input.parents[static_cast<size_t>(node)];
}

int64_t depth_of(const VerifyInput& input, int32_t node) {
  int64_t depth = 0;
  for (; node >= 0; node = parent_of(input, node)) ++depth;
  return depth;
}

VerifyResult keep_until(const VerifyInput& input, int32_t node, int32_t next) {
  return {depth_of(input, node), next, node};
}

// Draws tokens with draw(depth, p) and walks down the tree as long as the drawn token was drafted. The first
// token that was not drafted becomes the next token.
template <class Draw>
VerifyResult follow(const VerifyInput& input, const Draw& draw) {
  int32_t node = -1;
  for (int64_t depth = 0;; ++depth) {
    const int32_t drawn = draw(depth, input.p[static_cast<size_t>(node + 1)]);
    int32_t child = next_child(input, node);
    while (child >= 0 && input.drafted[static_cast<size_t>(child)] != drawn) child = next_child(input, node, child + 1);
    if (child < 0) return {depth, drawn, node};
    node = child;
  }
}

// Runs the traversal rule on a tree, from which it removes rejected leaves one by one.
class Traversal {
 public:
  explicit Traversal(const VerifyInput& input)
      : input_(input), nodes_(input.drafted.size() + 1), alive_(nodes_.size(), true) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].p = copy_of(input.p[i]);
      if (const int32_t child = first_child(static_cast<int32_t>(i) - 1); child >= 0)
        nodes_[i].d = copy_of(input.q[static_cast<size_t>(child)]);
    }
    weigh(-1);
  }

  VerifyResult run(Randomness& randomness) {
    for (;;) {
      int32_t leaf = -1;
      for (int32_t child = first_child(leaf); child >= 0; child = first_child(leaf)) leaf = child;
      Node& n = at(leaf);
      if (leaf < 0 || randomness.accept(Purpose::kAccept, n.r))
        return keep_until(input_, leaf, randomness.draw(n.reduced ? Purpose::kResidual : Purpose::kTarget, n.p));
      reject(leaf);
    }
  }

 private:
  struct Node {
    Row p, d;
    double r = 1;          // probability of accepting the path to this node
    bool reduced = false;  // p is the residual after rejected children
  };
  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node + 1)]; }

  int32_t first_child(int32_t node) const {
    int32_t child = next_child(input_, node);
    while (child >= 0 && !alive_[static_cast<size_t>(child)]) child = next_child(input_, node, child + 1);
    return child;
  }

  void reject(int32_t leaf) {
    const int32_t parent = parent_of(input_, leaf), token = input_.drafted[static_cast<size_t>(leaf)];
    Node& a = at(parent);
    Row left;
    const double s = residual(a.r, a.p, a.d, left), denominator = s + 1 - a.r;
    if (parent >= 0) a.r = denominator > 0 ? s / denominator : 1;
    if (normalise(left)) a.p = std::move(left), a.reduced = true;  // if rounding leaves nothing, p and q are equal
    a.d[static_cast<size_t>(token)] = 0;
    normalise(a.d);
    alive_[static_cast<size_t>(leaf)] = false;
    weigh(parent);
  }

  // Recomputes r of all nodes below `node`.
  void weigh(int32_t node) {
    for (int32_t child = first_child(node); child >= 0;) {
      at(child).r = std::min(1.0, at(node).r * ratio(at(node).p, at(node).d, input_.drafted[static_cast<size_t>(child)],
                                                     static_cast<size_t>(child)));
      weigh(child);
      do child = next_child(input_, node, child + 1);
      while (child >= 0 && !alive_[static_cast<size_t>(child)]);
    }
  }

  const VerifyInput& input_;
  std::vector<Node> nodes_;
  std::vector<bool> alive_;
};

}  // namespace

int32_t next_child(const VerifyInput& input, int32_t node, int32_t from) {
  const auto count = static_cast<int32_t>(input.drafted.size());
  if (input.parents.empty()) return node + 1 < count && from <= node + 1 ? node + 1 : -1;
  for (int32_t i = std::max(from, node + 1); i < count; ++i)
    if (input.parents[static_cast<size_t>(i)] == node) return i;
  return -1;
}

// Tries the children of each node in order. p and d allow for the siblings rejected so far: p is the residual that they
// leave, and d is q without them, from which the next child was drawn.
VerifyResult verify_recursive(const VerifyInput& input, Randomness& randomness) {
  int32_t node = -1;
  Row p, d, left;
  for (;;) {
    int32_t child = next_child(input, node);
    const bool leaf = child < 0;
    p = copy_of(input.p[static_cast<size_t>(node + 1)]);
    if (!leaf) d = copy_of(input.q[static_cast<size_t>(child)]);
    for (; child >= 0; child = next_child(input, node, child + 1)) {
      const int32_t token = input.drafted[static_cast<size_t>(child)];
      if (randomness.accept(Purpose::kAccept, std::min(1.0, ratio(p, d, token, static_cast<size_t>(child))))) break;
      if (residual(1, p, d, left) > 0 && normalise(left)) p.swap(left);
      d[static_cast<size_t>(token)] = 0;
      normalise(d);
    }
    if (child < 0) return keep_until(input, node, randomness.draw(leaf ? Purpose::kTarget : Purpose::kResidual, p));
    node = child;
  }
}

VerifyResult verify_traversal(const VerifyInput& input, Randomness& randomness) {
  return Traversal(input).run(randomness);
}

VerifyResult verify_target(const VerifyInput& input, Randomness& randomness) {
  return follow(input, [&](int64_t, std::span<const float> p) { return randomness.draw(Purpose::kTarget, p); });
}

VerifyResult verify_coupled(const VerifyInput& input, Randomness& randomness) {
  return follow(input,
                [&](int64_t depth, std::span<const float> p) { return randomness.draw_at(input.position + depth, p); });
}

}  // namespace specdec::decode
