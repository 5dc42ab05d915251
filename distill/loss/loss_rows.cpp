#include "distill/loss/loss_rows.h"

#include <bit>
#include <cmath>

#include "base/cpu_clones.h"

namespace specdec::distill {

namespace {

// Computes exp(x) for x <= 0, where x below −87 counts as −87. Uses Cody-Waite reduction and the degree-5 polynomial of
// Cephes expf (2 ulp). NaN stays NaN.
inline __attribute__((always_inline)) float exp_nonpositive(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // adding 1.5 · 2²³ rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - 0x4B400000 + 127) << 23;
  return y * std::bit_cast<float>(exponent);
}

// Computes log(x) for normal x > 0, with the mantissa in [sqrt(1/2), sqrt(2)) and the degree-8 polynomial of Cephes
// logf (2 ulp).
inline __attribute__((always_inline)) float log_positive(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x) - 0x3f3504f3;
  const float exponent = static_cast<float>(bits >> 23);
  const float f = std::bit_cast<float>((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  float y = 7.0376836292e-2f;
  y = y * f - 1.1514610310e-1f;
  y = y * f + 1.1676998740e-1f;
  y = y * f - 1.2420140846e-1f;
  y = y * f + 1.4249322787e-1f;
  y = y * f - 1.6668057665e-1f;
  y = y * f + 2.0000714765e-1f;
  y = y * f - 2.4999993993e-1f;
  y = y * f + 3.3333331174e-1f;
  const float square = f * f;
  return f + (y * f * square - 0.5f * square + exponent * -2.12194440e-4f) + exponent * 0.693359375f;
}

inline __attribute__((always_inline)) float row_max(const float* x, int64_t n) {
  float best = x[0];
#pragma omp simd reduction(max : best)
  for (int64_t i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

}  // namespace

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
void widen_bf16(const uint16_t* bits, int64_t count, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
void add_bf16(const uint16_t* bits, int64_t count, float* sums) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sums[i] += std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
void narrow_bf16(const float* values, int64_t count, uint16_t* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
int64_t first_largest(const float* values, int64_t count) {
  const float highest = row_max(values, count);
  constexpr int64_t kBlock = 1024;  // the inner loop over a block has no branch, so that it is vectorised
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = begin + kBlock < count ? begin + kBlock : count;
    int hits = 0;
#pragma omp simd reduction(+ : hits)
    for (int64_t i = begin; i < end; ++i) hits += values[i] == highest;
    for (int64_t i = begin; hits > 0 && i < end; ++i)
      if (values[i] == highest) return i;
  }
  return 0;  // reached only if all values are NaN
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
RowFigures overlap_row(const float* target, const float* draft, int64_t vocab, float inverse_temperature, float mass,
                       float* p, float* q) {
  const float max_a = row_max(target, vocab), max_b = row_max(draft, vocab);
  float sum_a = 0, sum_b = 0, cross = 0;
#pragma omp simd reduction(+ : sum_a, sum_b, cross)
  for (int64_t i = 0; i < vocab; ++i) {
    float a = (target[i] - max_a) * inverse_temperature, b = (draft[i] - max_b) * inverse_temperature;
    a = a < -87.0f ? -87.0f : a;
    b = b < -87.0f ? -87.0f : b;
    const float ea = exp_nonpositive(a), eb = exp_nonpositive(b);
    p[i] = ea;
    q[i] = eb;
    sum_a += ea;
    sum_b += eb;
    cross += ea * (a - b);
  }
  const float scale_a = 1.0f / sum_a, scale_b = 1.0f / sum_b;
  float overlap = 0, inside = 0;
#pragma omp simd reduction(+ : overlap, inside)
  for (int64_t i = 0; i < vocab; ++i) {
    const float x = p[i] * scale_a, y = q[i] * scale_b;
    p[i] = x;
    q[i] = y;
    const float whole = mass * x;
    overlap += y < whole ? y : whole;
    inside += y < whole ? y : 0.0f;
  }
  // With the scaled logits a of the target and b of the draft, KL = Σ p (a − b) − log Σ e^a + log Σ e^b. If a logit is
  // NaN, the comparisons above ignore it, but kl and `sound` become NaN.
  const float log_a = std::log(sum_a), log_b = std::log(sum_b), kl = cross * scale_a - log_a + log_b;
  const float sound = kl + mass;
  return {mass, kl, std::isnan(sound) ? sound : overlap, inside, max_a, max_b, log_a, log_b};
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
Kept keep_row(const float* target, int64_t vocab, float inverse_temperature, const int64_t* kept, int64_t count,
              float* out) {
  const float highest = row_max(target, vocab);
  float all = 0, inside = 0;
#pragma omp simd reduction(+ : all)
  for (int64_t i = 0; i < vocab; ++i) all += exp_nonpositive((target[i] - highest) * inverse_temperature);
  for (int64_t i = 0; i < count; ++i) out[i] = target[kept[i]];
#pragma omp simd reduction(+ : inside)
  for (int64_t i = 0; i < count; ++i) inside += exp_nonpositive((out[i] - highest) * inverse_temperature);
  const float mass = inside / all;
  return {mass < 1e-30f ? 1e-30f : mass, row_max(out, count) == highest};
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
void overlap_grad(const float* p, const float* q, int64_t vocab, const RowFigures& figures, float kl_weight,
                  float tv_weight, float* grad) {
  const float inside = figures.inside, mass = figures.mass;
#pragma omp simd
  for (int64_t i = 0; i < vocab; ++i) {
    const float x = p[i], y = q[i];
    const float centred = y < mass * x ? inside - 1.0f : inside;
    grad[i] = kl_weight * (y - x) + tv_weight * y * centred;
  }
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
Divergences add_divergences(const float* target, const float* draft, const float* p, const float* q, int64_t vocab,
                            float inverse_temperature, const RowFigures& figures, const DivergenceWeights& weights,
                            float* grad) {
  const float max_a = figures.max_target, max_b = figures.max_draft, log_a = figures.log_sum_target,
              log_b = figures.log_sum_draft;
  const float beta = weights.beta, rest = 1.0f - beta, rkl_weight = weights.rkl, jsd_weight = weights.jsd;
  float rkl = 0, left = 0, right = 0;
  for (int pass = 0; pass < 2; ++pass) {
    float sum_rkl = 0, sum_left = 0, sum_right = 0;
#pragma omp simd reduction(+ : sum_rkl, sum_left, sum_right)
    for (int64_t i = 0; i < vocab; ++i) {
      float a = (target[i] - max_a) * inverse_temperature, b = (draft[i] - max_b) * inverse_temperature;
      a = (a < -87.0f ? -87.0f : a) - log_a;
      b = (b < -87.0f ? -87.0f : b) - log_b;
      const float x = p[i], y = q[i], m = beta * x + rest * y;
      const float log_m = log_positive(m < 1.17549435e-38f ? 1.17549435e-38f : m);
      if (pass == 0) {
        sum_rkl += y * (b - a);
        sum_left += x * (a - log_m);
        sum_right += y * (b - log_m);
      } else {
        grad[i] += y * (rkl_weight * (b - a - rkl) + jsd_weight * rest * (b - log_m - right));
      }
    }
    if (pass == 1) break;
    rkl = sum_rkl, left = sum_left, right = sum_right;
  }
  return {rkl, beta * left + rest * right};
}

SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
float cross_entropy_row(const float* draft, int64_t vocab, int64_t label, float inverse_temperature, float weight,
                        float* grad) {
  const float max_b = row_max(draft, vocab);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < vocab; ++i) {
    const float e = exp_nonpositive((draft[i] - max_b) * inverse_temperature);
    grad[i] = e;
    sum += e;
  }
  const float scale = weight / sum;
#pragma omp simd
  for (int64_t i = 0; i < vocab; ++i) grad[i] *= scale;
  grad[label] -= weight;
  return std::log(sum) - (draft[label] - max_b) * inverse_temperature;
}

}  // namespace specdec::distill
