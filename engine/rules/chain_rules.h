// The verification rules for chains of drafted tokens. decode/sampling/verifier.h describes them and names their
// sources.
#pragma once

#include "engine/rules/team.h"

namespace specdec::rules {

// Draws y from the residual [r·p − q]_+ after normalisation. If rounding makes the residual zero, p and q are equal,
// and y is drawn from p.
template <class Team, class Rows>
SPECDEC_DEVICE_CODE int32_t draw_residual(Team& team, Rows& rows, double r, int i) {
  const float *p = rows.p(i), *q = rows.q(i);
  float* left = rows.left();
  const double mass =
      team.sum(rows.vocab(), [&](int x) { return static_cast<double>(left[x] = excess(r, p[x], q[x])); });
  return team.draw(Purpose::kResidual, rows.vocab(), mass > 0 ? left : p);
}

template <class Team, class Rows>
SPECDEC_DEVICE_CODE Verdict verify_token(Team& team, Rows& rows) {
  const int k = rows.count();
  for (int i = 0; i < k; ++i) {
    if (team.accept(Purpose::kAccept, smaller(1.0, ratio(team, rows.p(i), rows.q(i), rows.token(i), i)))) continue;
    return {i, draw_residual(team, rows, 1.0, i), i - 1};
  }
  return {k, team.draw(Purpose::kTarget, rows.vocab(), rows.p(k)), k - 1};
}

template <class Team, class Rows>
SPECDEC_DEVICE_CODE Verdict verify_block(Team& team, Rows& rows) {
  const int k = rows.count();
  // The workspace number() holds two probabilities per prefix of i tokens. number(2i) is r_i, that all i tokens are
  // accepted. number(2i + 1) is h_i, that they are accepted if no longer prefix is.
  team.once([&] { rows.number(0) = rows.number(1) = 1.0; });
  for (int i = 1; i <= k; ++i) {
    const float *p = rows.p(i - 1), *q = rows.q(i - 1);
    const double r = smaller(1.0, rows.number(2 * (i - 1)) * ratio(team, p, q, rows.token(i - 1), i - 1));
    double h = r;
    if (i < k) {
      const float *next_p = rows.p(i), *next_q = rows.q(i);
      const double s = team.sum(rows.vocab(), [&](int x) {
        const double rest = r * static_cast<double>(next_p[x]) - static_cast<double>(next_q[x]);
        return rest > 0 ? rest : 0.0;
      });
      h = s + 1.0 - r > 0 ? s / (s + 1.0 - r) : 1.0;
    }
    team.once([&] { rows.number(2 * i) = r, rows.number(2 * i + 1) = h; });
  }
  // The rule accepts the longest prefix of tau tokens with u_tau <= h_tau, where the u_i are independent and uniform.
  // So the loop tries the longest prefix first and stops at the first success.
  int tau = k;
  while (tau > 0 && !team.accept(Purpose::kAccept, rows.number(2 * tau + 1))) --tau;
  if (tau == k) return {k, team.draw(Purpose::kTarget, rows.vocab(), rows.p(k)), k - 1};
  return {tau, draw_residual(team, rows, rows.number(2 * tau), tau), tau - 1};
}

}  // namespace specdec::rules
