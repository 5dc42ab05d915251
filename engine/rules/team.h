// What the verification rules (chain_rules.h, tree_rules.h) need of those who run them. A rule is a template over a
// Team and over the Rows of one sequence, so that one source serves the host's steps (decode/verifier.cpp), where a
// Team is one thread, and kernels (kernels/cuda/block_team.h), where it is a block of threads. All threads of a team
// run the same rule together and get the same answers.
//
// A Team has
//   double sum(int n, F f): the sum of f(i) over i < n, where f may also write what belongs to i. No f(i) may be
//     below 0, and their sum must be below 4; it may be rounded to a multiple of 2^-61.
//   void for_each(int n, F f): calls f(i) for i < n.
//   void once(F f): calls f() in one thread.
//   bool accept(Purpose, double probability)
//   int32_t draw(Purpose, int n, const float* weights): an id with probability weight / Σ weights.
//   int32_t draw_at(int64_t position, int n, const float* weights): the same, with the noise of a position of the text.
//   void no_mass(int node, int32_t token): reports that a drafted token has no mass in q. The host throws; a block of
//     threads goes on and rejects the token.
// What f writes is seen by all threads when the call returns. f of for_each() must not write what a thread may have
// read since the last call of sum(), for_each() or once().
//
// Rows has the sequence's N drafted tokens and their distributions: count(), vocab(), token(i), and parent(i) < i,
// which is −1 for nodes that follow the text and kAbsent for those that were not drafted; in a chain it is i − 1, and
// no node is absent. p(i) is the target's row after node i − 1 (p(0) after the text), and q(i) the draft's row that
// node i was drawn from. mutable_p(i) and mutable_q(i) are the same rows to be changed, and replace them from then on.
// Children of one node share a row q, so rules use mutable_q() of the first of them. left() has room for a row, and
// number(i) and flags(i) for a double and an int each for i <= 2N + 1.
#pragma once

#include <cstdint>

#include "base/device_code.h"

namespace specdec::rules {

inline constexpr int kAbsent = -2;

enum class Purpose { kDraft, kAccept, kResidual, kTarget };

struct Verdict {
  int64_t accepted = 0;  // tokens kept
  int32_t next = -1;     // the correction, or the bonus token if no drafted token follows
  int32_t node = -1;     // the last kept node, or −1 if none was kept
};

inline SPECDEC_DEVICE_CODE double smaller(double a, double b) { return b < a ? b : a; }

// Returns (r·p − q)_+ in fp32, as residuals are stored.
inline SPECDEC_DEVICE_CODE float excess(double r, float p, float q) {
  const double rest = r * static_cast<double>(p) - static_cast<double>(q);
  return rest > 0 ? static_cast<float>(rest) : 0.0f;
}

// Returns p(token) / q(token) of a drafted node, and 0 if it has no mass in q: then it was not drawn from q or was
// drawn twice.
template <class Team>
SPECDEC_DEVICE_CODE double ratio(Team& team, const float* p, const float* q, int32_t token, int node) {
  if (!(q[token] > 0)) {
    team.no_mass(node, token);
    return 0;
  }
  return static_cast<double>(p[token]) / static_cast<double>(q[token]);
}

}  // namespace specdec::rules
