// Functions of two distributions, shared by the verification rules of chains and of trees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace specdec::decode {

// Sets out = [r·p − q]_+ and returns its sum.
inline double residual(double r, std::span<const float> p, std::span<const float> q, std::vector<float>& out) {
  out.resize(p.size());
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += out[i] = static_cast<float>(std::max(r * p[i] - q[i], 0.0));
  return total;
}

// Returns p(token) / q(token) of a drafted node. Throws Error(kInternal) if q gives the token no mass: then the token
// was not drawn from q or was drawn twice.
inline double ratio(std::span<const float> p, std::span<const float> q, int32_t token, size_t node) {
  const auto at = static_cast<size_t>(token);
  if (!(q[at] > 0))
    throw Error(ErrorKind::kInternal, "drafted token " + std::to_string(token) + " of node " + std::to_string(node) +
                                          " has no mass in q (siblings must differ)");
  return static_cast<double>(p[at]) / q[at];
}

}  // namespace specdec::decode
