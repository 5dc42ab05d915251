// Reference implementations ("twins") of the CUDA kernels (engine/kernels/cuda), written as plainly as possible, in
// double precision, rounding at the same points as engine/kernels/ops_ref.cpp. Tests compare the kernels, on a GPU or
// emulated on a CPU, with the twins, and the twins with ops_ref.cpp. Sampling and verification have no twins; they are
// compared with the host's own code (engine/decode).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/kernels/cuda.h"

namespace specdec::kernels::twins {

using Values = std::vector<double>;

// Returns the distance between neighbouring numbers of this type around x.
inline double spacing(CudaDtype dtype, double x) {
  const int digits = dtype == CudaDtype::kFloat      ? 24
                     : dtype == CudaDtype::kBFloat16 ? 8
                                                     : 11,
            least = dtype == CudaDtype::kHalf ? -13 : -125;  // exponent of the smallest normal number, as of frexp()
  int exponent = least;
  if (x != 0) std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent, least) - digits);
}
// Rounds x to the nearest number of this type, with ties to even.
inline double rounded(CudaDtype dtype, double x) {
  const double step = spacing(dtype, x);
  return std::nearbyint(x / step) * step;
}

inline Values rms_norm(CudaDtype dtype, const Values& x, const Values& weight, double eps) {
  const size_t n = weight.size();
  Values out(x.size());
  for (size_t r = 0; r < x.size() / n; ++r) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[r * n + i] * x[r * n + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t i = 0; i < n; ++i) out[r * n + i] = rounded(dtype, rounded(dtype, x[r * n + i] * scale) * weight[i]);
  }
  return out;
}

inline Values silu_mul(CudaDtype dtype, const Values& gate, const Values& up) {
  Values out(gate.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = rounded(dtype, rounded(dtype, gate[i] / (1 + std::exp(-gate[i]))) * up[i]);
  return out;
}

// Shapes: table [·, n], result [ids, n].
inline Values gather_rows(const Values& table, const std::vector<int32_t>& ids, size_t n) {
  Values out;
  for (const int32_t id : ids)
    for (size_t i = 0; i < n; ++i) out.push_back(table[static_cast<size_t>(id) * n + i]);
  return out;
}

// Shapes: x [rows, heads, d]; cos, sin [rows, d / 2].
inline Values rope(CudaDtype dtype, const Values& x, const Values& cos, const Values& sin, size_t d) {
  const size_t half = d / 2, rows = cos.size() / half, heads = x.size() / (rows * d);
  const auto times = [&](double a, double b) { return rounded(dtype, a * rounded(dtype, b)); };
  Values out(x.size());
  for (size_t head = 0; head < rows * heads; ++head)
    for (size_t i = 0; i < half; ++i) {
      const size_t low = head * d + i, high = low + half, angle = head / heads * half + i;
      out[low] = rounded(dtype, times(x[low], cos[angle]) - times(x[high], sin[angle]));
      out[high] = rounded(dtype, times(x[high], cos[angle]) + times(x[low], sin[angle]));
    }
  return out;
}

// Shapes: x [rows, k], weight [n, k], bias [n] or empty.
inline Values linear(CudaDtype dtype, const Values& x, const Values& weight, const Values& bias, size_t k) {
  const size_t rows = x.size() / k, n = weight.size() / k;
  Values out(rows * n);
  for (size_t r = 0; r < rows; ++r)
    for (size_t o = 0; o < n; ++o) {
      double sum = bias.empty() ? 0 : bias[o];
      for (size_t i = 0; i < k; ++i) sum += x[r * k + i] * weight[o * k + i];
      out[r * n + o] = rounded(dtype, sum);
    }
  return out;
}

// Normalises the heads x [rows, heads, d] with `weight` [d] (empty: no norm), and then rotates the first `rotated`
// values of each head. cos, sin [rows, rotated / 2].
inline Values prepare_heads(CudaDtype dtype, const Values& x, const Values& weight, double eps, const Values& cos,
                            const Values& sin, size_t d, size_t rotated) {
  Values out = weight.empty() ? x : rms_norm(dtype, x, weight, eps);
  if (rotated == 0) return out;
  Values part;
  for (size_t i = 0; i < out.size(); ++i)
    if (i % d < rotated) part.push_back(out[i]);
  const Values turned = rope(dtype, part, cos, sin, rotated);
  for (size_t i = 0; i < turned.size(); ++i) out[i / rotated * d + i % rotated] = turned[i];
  return out;
}

// Returns the attention of one query [d] over the keys and values that it sees, [seen, d] each. soft_cap 0: no cap.
inline Values attention(const Values& q, const Values& keys, const Values& values, double scale, double soft_cap) {
  const size_t d = q.size(), seen = keys.size() / d;
  Values scores(seen), out(d, 0.0);
  for (size_t k = 0; k < seen; ++k) {
    for (size_t i = 0; i < d; ++i) scores[k] += q[i] * keys[k * d + i];
    scores[k] *= scale;
    if (soft_cap != 0) scores[k] = soft_cap * std::tanh(scores[k] / soft_cap);
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& s : scores) total += s = std::exp(s - most);
  for (size_t k = 0; k < seen; ++k)
    for (size_t i = 0; i < d; ++i) out[i] += scores[k] / total * values[k * d + i];
  return out;
}

}  // namespace specdec::kernels::twins
