// The verification rules for trees of drafted tokens, which also work for chains. decode/sampling/verifier.h describes
// them and names their sources.
#pragma once

#include "engine/rules/team.h"

namespace specdec::rules {

// Returns the index of the first child of `node` at or after index `from`, or −1 if there is none. As an argument, −1
// means the text before the draft.
template <class Rows>
SPECDEC_DEVICE_CODE int next_child(const Rows& rows, int node, int from = 0) {
  for (int i = from > node + 1 ? from : node + 1; i < rows.count(); ++i)
    if (rows.parent(i) == node) return i;
  return -1;
}

template <class Rows>
SPECDEC_DEVICE_CODE Verdict keep_until(const Rows& rows, int node, int32_t next) {
  int64_t depth = 0;
  for (int i = node; i >= 0; i = rows.parent(i)) ++depth;
  return {depth, next, node};
}

// Replaces p, the row after `node`, by the normalised residual [r·p − d]_+, where d is the draft's row of the node's
// children. Returns the residual's mass before normalisation. If the residual is zero, p and d are equal, and p is not
// changed.
template <class Team, class Rows>
SPECDEC_DEVICE_CODE double reduce(Team& team, Rows& rows, int node, int first, double r) {
  const float *p = rows.p(node + 1), *d = rows.q(first);
  const double mass = team.sum(rows.vocab(), [&](int x) { return static_cast<double>(excess(r, p[x], d[x])); });
  if (!(mass > 0)) return mass;
  float* own = rows.mutable_p(node + 1);
  team.for_each(rows.vocab(),
                [&](int x) { own[x] = static_cast<float>(static_cast<double>(excess(r, own[x], d[x])) / mass); });
  return mass;
}

// Removes a token from the draft's row of a node's children and normalises the row. If no other token has mass, the row
// becomes zero.
template <class Team, class Rows>
SPECDEC_DEVICE_CODE void remove(Team& team, Rows& rows, int first, int32_t token) {
  float* d = rows.mutable_q(first);
  team.once([&] { d[token] = 0; });
  const double total = team.sum(rows.vocab(), [&](int x) { return static_cast<double>(d[x]); });
  if (total > 0)
    team.for_each(rows.vocab(), [&](int x) { d[x] = static_cast<float>(static_cast<double>(d[x]) / total); });
}

// Tries the children of each node in order. After each rejected sibling, p becomes the residual, and the draft's row d
// loses the rejected token, so that d is the distribution that the next child was drawn from.
template <class Team, class Rows>
SPECDEC_DEVICE_CODE Verdict verify_recursive(Team& team, Rows& rows) {
  int node = -1;
  for (;;) {
    const int first = next_child(rows, node);
    int child = first;
    for (; child >= 0; child = next_child(rows, node, child + 1)) {
      const int32_t token = rows.token(child);
      const double quotient = ratio(team, rows.p(node + 1), rows.q(first), token, child);
      if (team.accept(Purpose::kAccept, smaller(1.0, quotient))) break;
      reduce(team, rows, node, first, 1.0);
      remove(team, rows, first, token);
    }
    if (child < 0)
      return keep_until(rows, node,
                        team.draw(first < 0 ? Purpose::kTarget : Purpose::kResidual, rows.vocab(), rows.p(node + 1)));
    node = child;
  }
}

// The traversal rule removes rejected leaves from the tree one by one. number(i) is r, the probability of accepting the
// path to node i − 1. flags(i) is the state of that node, a sum of the values of the enum below.
namespace traversal {

enum : int { kAlive = 1, kReduced = 2, kTouched = 4 };

template <class Rows>
SPECDEC_DEVICE_CODE int alive_child(Rows& rows, int node, int from = 0) {
  int child = next_child(rows, node, from);
  while (child >= 0 && (rows.flags(child + 1) & kAlive) == 0) child = next_child(rows, node, child + 1);
  return child;
}

// Recomputes r, the probability of accepting the path to a node, for all descendants of `node`. Parents have lower
// indices than their children.
template <class Team, class Rows>
SPECDEC_DEVICE_CODE void weigh(Team& team, Rows& rows, int node) {
  team.once([&] {
    for (int i = 0; i <= rows.count(); ++i) rows.flags(i) &= ~kTouched;
    rows.flags(node + 1) |= kTouched;
    for (int i = node + 1; i < rows.count(); ++i) {
      const int parent = rows.parent(i);
      if ((rows.flags(i + 1) & kAlive) == 0 || (rows.flags(parent + 1) & kTouched) == 0) continue;
      const double quotient = ratio(team, rows.p(parent + 1), rows.q(next_child(rows, parent)), rows.token(i), i);
      rows.number(i + 1) = smaller(1.0, rows.number(parent + 1) * quotient);
      rows.flags(i + 1) |= kTouched;
    }
  });
}

template <class Team, class Rows>
SPECDEC_DEVICE_CODE void reject(Team& team, Rows& rows, int leaf) {
  const int parent = rows.parent(leaf), first = next_child(rows, parent);
  const double r = rows.number(parent + 1), s = reduce(team, rows, parent, first, r), denominator = s + 1 - r;
  remove(team, rows, first, rows.token(leaf));
  team.once([&] {
    if (parent >= 0) rows.number(parent + 1) = denominator > 0 ? s / denominator : 1;
    if (s > 0) rows.flags(parent + 1) |= kReduced;
    rows.flags(leaf + 1) &= ~kAlive;
  });
  weigh(team, rows, parent);
}

}  // namespace traversal

template <class Team, class Rows>
SPECDEC_DEVICE_CODE Verdict verify_traversal(Team& team, Rows& rows) {
  team.once([&] {
    for (int i = 0; i <= rows.count(); ++i)
      rows.number(i) = 1, rows.flags(i) = i > 0 && rows.parent(i - 1) == kAbsent ? 0 : traversal::kAlive;
  });
  traversal::weigh(team, rows, -1);
  for (;;) {
    int leaf = -1;
    for (int child = traversal::alive_child(rows, leaf); child >= 0; child = traversal::alive_child(rows, leaf))
      leaf = child;
    if (leaf < 0 || team.accept(Purpose::kAccept, rows.number(leaf + 1))) {
      const bool reduced = (rows.flags(leaf + 1) & traversal::kReduced) != 0;
      return keep_until(rows, leaf,
                        team.draw(reduced ? Purpose::kResidual : Purpose::kTarget, rows.vocab(), rows.p(leaf + 1)));
    }
    traversal::reject(team, rows, leaf);
  }
}

// Follows the drafted tree from the text: choose(depth, node) returns the next token after `node`, the last accepted
// node (−1: the text). If a child of `node` has this token, the child is accepted and the walk continues there.
// Otherwise the token becomes the next token of the text.
template <class Rows, class Choose>
SPECDEC_DEVICE_CODE Verdict follow(Rows& rows, const Choose& choose) {
  int node = -1;
  for (int64_t depth = 0;; ++depth) {
    const int32_t chosen = choose(depth, node);
    int child = next_child(rows, node);
    while (child >= 0 && rows.token(child) != chosen) child = next_child(rows, node, child + 1);
    if (child < 0) return {depth, chosen, node};
    node = child;
  }
}

template <class Team, class Rows>
SPECDEC_DEVICE_CODE Verdict verify_target(Team& team, Rows& rows) {
  return follow(rows, [&](int64_t, int node) { return team.draw(Purpose::kTarget, rows.vocab(), rows.p(node + 1)); });
}

// `position` is the position of the next token in the text.
template <class Team, class Rows>
SPECDEC_DEVICE_CODE Verdict verify_coupled(Team& team, Rows& rows, int64_t position) {
  return follow(
      rows, [&](int64_t depth, int node) { return team.draw_at(position + depth, rows.vocab(), rows.p(node + 1)); });
}

}  // namespace specdec::rules
