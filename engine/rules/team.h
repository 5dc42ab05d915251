// The interfaces that the verification rules (chain_rules.h, tree_rules.h) use. A rule is a template over a Team and
// over the Rows of one sequence, so that host and GPU share the source: a Team is one thread on the host
// (decode/sampling/verifier.cpp) and a block of threads in kernels (kernels/cuda/block_team.h). All threads of a team
// run the same rule together and get the same results.
//
// A Team has these functions:
//   double sum(int n, F f): the sum of f(i) over i < n. f(i) may also write element i. Every f(i) must be >= 0, and the
//     sum must be below 4; it may be rounded to a multiple of 2^-61.
//   void for_each(int n, F f): calls f(i) for i < n.
//   void once(F f): calls f() in one thread.
//   bool accept(Purpose, double probability)
//   int32_t draw(Purpose, int n, const float* weights): an id with probability weight / Σ weights.
//   int32_t draw_at(int64_t position, int n, const float* weights): as draw(), but with noise that belongs to a text
//     position.
//   void no_mass(int node, int32_t token): reports that a drafted token has probability 0 in q. The host throws; a
//     block of threads continues and rejects the token.
// All threads see what f wrote when the call returns. In for_each(), f must not write what another thread may have read
// since the last call of sum(), for_each() or once().
//
// Rows gives access to the sequence's N drafted tokens and their distributions: count(), vocab(), token(i) and
// parent(i). parent(i) < i; it is −1 for nodes that follow the text and kAbsent for nodes that were not drafted. In a
// chain, parent(i) = i − 1, and no node is absent. p(i) is the target's row after node i − 1 (p(0): after the text),
// and q(i) is the draft's row from which node i was drawn. mutable_p(i) and mutable_q(i) return these rows for
// modification; from then on p(i) and q(i) return the modified rows. Children of one node share a row q, so rules use
// mutable_q() of the first child. left() is workspace of one row; number(i) and flags(i) are a double and an int of
// workspace for each i <= 2N + 1.
#pragma once

#include <cstdint>

#include "base/device_code.h"

namespace specdec::rules {

inline constexpr int kAbsent = -2;

enum class Purpose { kDraft, kAccept, kResidual, kTarget };

struct Verdict {
  int64_t accepted = 0;  // number of accepted draft tokens
  int32_t next = -1;     // the correction, or the bonus token if no drafted token follows the accepted ones
  int32_t node = -1;     // the last accepted node, or −1 if none was accepted
};

inline SPECDEC_DEVICE_CODE double smaller(double a, double b) { return b < a ? b : a; }

// Returns the residual (r·p − q)_+ rounded to fp32, the type in which residuals are stored.
inline SPECDEC_DEVICE_CODE float excess(double r, float p, float q) {
  const double rest = r * static_cast<double>(p) - static_cast<double>(q);
  return rest > 0 ? static_cast<float>(rest) : 0.0f;
}

// Returns p(token) / q(token) of a drafted node. Returns 0 if q(token) is 0, which means that the token was not drawn
// from q or was drawn twice.
template <class Team>
SPECDEC_DEVICE_CODE double ratio(Team& team, const float* p, const float* q, int32_t token, int node) {
  if (!(q[token] > 0)) {
    team.no_mass(node, token);
    return 0;
  }
  return static_cast<double>(p[token]) / static_cast<double>(q[token]);
}

}  // namespace specdec::rules
