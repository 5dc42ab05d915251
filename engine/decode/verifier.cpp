#include "engine/decode/verifier.h"

#include <algorithm>

#include "base/error.h"
#include "engine/decode/residual.h"

namespace specdec::decode {

namespace {

double residual_mass(double r, std::span<const float> p, std::span<const float> q) {
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += std::max(r * p[i] - q[i], 0.0);
  return total;
}

// Draws y ~ norm([r·p − q]_+). If rounding makes this residual zero, p and q are equal, and y is drawn from p.
int32_t draw_residual(double r, std::span<const float> p, std::span<const float> q, Randomness& randomness,
                      std::vector<float>& scratch) {
  const double mass = residual(r, p, q, scratch);
  return randomness.draw(Purpose::kResidual, mass > 0 ? std::span<const float>(scratch) : p);
}

double ratio_at(const VerifyInput& input, size_t i) { return ratio(input.p[i], input.q[i], input.drafted[i], i); }

}  // namespace

VerifyResult verify_token(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch) {
  const size_t k = input.drafted.size();
  for (size_t i = 0; i < k; ++i) {
    if (randomness.accept(Purpose::kAccept, std::min(1.0, ratio_at(input, i)))) continue;
    return {static_cast<int64_t>(i), draw_residual(1.0, input.p[i], input.q[i], randomness, scratch)};
  }
  return {static_cast<int64_t>(k), randomness.draw(Purpose::kTarget, input.p[k])};
}

VerifyResult verify_block(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch) {
  const size_t k = input.drafted.size();
  constexpr size_t kMax = 256;
  if (k > kMax)
    throw Error(ErrorKind::kInternal, "block verification of " + std::to_string(k) + " tokens, at most 256");
  double r[kMax + 1] = {1.0}, h[kMax + 1] = {1.0};
  for (size_t i = 1; i <= k; ++i) {
    r[i] = std::min(1.0, r[i - 1] * ratio_at(input, i - 1));
    if (i == k) {
      h[i] = r[i];
    } else {
      const double s = residual_mass(r[i], input.p[i], input.q[i]), denominator = s + 1.0 - r[i];
      h[i] = denominator > 0 ? s / denominator : 1.0;
    }
  }
  // tau = max{i : u_i <= h_i} with independent u_i, so the search starts at the end.
  size_t tau = k;
  while (tau > 0 && !randomness.accept(Purpose::kAccept, h[tau])) --tau;
  if (tau == k) return {static_cast<int64_t>(k), randomness.draw(Purpose::kTarget, input.p[k])};
  return {static_cast<int64_t>(tau), draw_residual(r[tau], input.p[tau], input.q[tau], randomness, scratch)};
}

VerifyResult verify(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch) {
  const bool chain = input.parents.empty();
  switch (rule) {
    case VerifyRule::kToken:
      return chain ? verify_token(input, randomness, scratch) : verify_recursive(input, randomness);
    case VerifyRule::kBlock:
      return chain ? verify_block(input, randomness, scratch) : verify_traversal(input, randomness);
    case VerifyRule::kTarget:
      return verify_target(input, randomness);
    case VerifyRule::kCoupled:
      return verify_coupled(input, randomness);
  }
  throw Error(ErrorKind::kInternal, "unknown verification rule");
}

}  // namespace specdec::decode
