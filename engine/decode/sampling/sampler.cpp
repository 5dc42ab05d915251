#include "engine/decode/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "base/cpu_clones.h"
#include "base/error.h"

namespace specdec::decode {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The last element that is kept when values are sorted in descending order, with ties by ascending id.
struct Border {
  float value = kNone;
  int32_t id = std::numeric_limits<int32_t>::max();
  bool keeps(float v, int32_t i) const { return v > value || (v == value && i <= id); }
};

struct Descending {
  const float* values;
  bool operator()(int32_t a, int32_t b) const { return values[a] > values[b] || (values[a] == values[b] && a < b); }
};

// Returns the k-th largest value with its id (the last that top-k keeps). For k up to 256 it uses a heap of k ids, so
// that not all V ids are written. For larger k it partitions all ids.
Border top_k_border(std::span<const float> values, int64_t k, std::vector<int32_t>& scratch) {
  const int32_t n = static_cast<int32_t>(values.size());
  const Descending before{values.data()};
  scratch.clear();
  if (k <= 256) {
    for (int32_t i = 0; i < n; ++i) {
      if (static_cast<int64_t>(scratch.size()) < k) {
        scratch.push_back(i);
        std::push_heap(scratch.begin(), scratch.end(), before);
      } else if (values[i] > values[scratch.front()]) {  // an equal value is not kept, because its id is higher
        std::pop_heap(scratch.begin(), scratch.end(), before);
        scratch.back() = i;
        std::push_heap(scratch.begin(), scratch.end(), before);
      }
    }
    return {values[scratch.front()], scratch.front()};
  }
  for (int32_t i = 0; i < n; ++i) scratch.push_back(i);
  std::nth_element(scratch.begin(), scratch.begin() + (k - 1), scratch.end(), before);
  return {values[scratch[k - 1]], scratch[k - 1]};
}

// Returns the bucket of a weight in [0, 1]: its exponent and the top four bits of its mantissa. For such floats the
// order of the bit patterns is the order of the values.
int bucket_of(float weight) { return static_cast<int>(std::bit_cast<uint32_t>(weight) >> 19); }
constexpr int kBuckets = 0x7F0 + 1;  // bucket_of(1.f) + 1

// Returns the last element that top-p keeps: the end of the shortest prefix of `weights`, sorted in descending order,
// whose sum reaches p · total. The largest weight must be 1. Sums whole buckets from the largest weights on, and sorts
// only the bucket in which p · total is reached.
Border top_p_border(std::span<const float> weights, double p, double total, std::vector<int32_t>& scratch) {
  std::array<double, kBuckets> mass{};
  for (const float w : weights) mass[static_cast<size_t>(bucket_of(w))] += w;
  const double goal = p * total;
  double taken = 0;
  int bucket = kBuckets - 1;
  while (bucket > 0 && taken + mass[static_cast<size_t>(bucket)] < goal) taken += mass[static_cast<size_t>(bucket--)];
  scratch.clear();
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0 && bucket_of(weights[i]) == bucket) scratch.push_back(static_cast<int32_t>(i));
  std::sort(scratch.begin(), scratch.end(), Descending{weights.data()});
  for (const int32_t id : scratch) {
    taken += weights[static_cast<size_t>(id)];
    if (taken >= goal) return {weights[static_cast<size_t>(id)], id};
  }
  // p is so close to 1 that, by rounding, the sum never reaches p · total. The default Border keeps every token.
  return {};
}

double sum(std::span<const float> values) {
  double part[4] = {};
  size_t i = 0;
  for (; i + 4 <= values.size(); i += 4)
    for (size_t j = 0; j < 4; ++j) part[j] += values[i + j];
  for (; i < values.size(); ++i) part[0] += values[i];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

// Returns e^x for x <= 0 with a relative error below 2e-7, and 0 for x <= −87. Splits x = n ln 2 + r and uses a
// polynomial in r (coefficients of expf in the Cephes library). It has no branch, so that loops over it become vector
// instructions: with a vocabulary of 150,000 tokens a libm call per element would take most of a step's host time.
inline __attribute__((always_inline)) float exp_nonpositive(float x) {
  const int32_t keep = -static_cast<int32_t>(x > -87.f);  // all bits, or none, as for −inf
  x = std::bit_cast<float>(std::bit_cast<int32_t>(x) & keep);
  constexpr float kRound = 12582912.f;  // 1.5 · 2^23: adding it rounds to an integer in the low mantissa bits
  const float shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  return std::bit_cast<float>(std::bit_cast<int32_t>(y * std::bit_cast<float>(exponent)) & keep);
}

// Sets out[i] = e^((in[i] − largest) · inverse) for i < n, which is 0 where in[i] is −inf and exactly 1 for the
// largest. `out` may be `in`. All instruction sets give the same bits, because nothing is fused
// (engine/CMakeLists.txt).
SPECDEC_CLONES("arch=x86-64-v4", "arch=x86-64-v3", "default")
void exp_row(const float* in, size_t n, float largest, float inverse, float* out) {
#pragma omp simd
  for (size_t i = 0; i < n; ++i) out[i] = exp_nonpositive((in[i] - largest) * inverse);
}

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

}  // namespace

int32_t argmax(std::span<const float> row) {
  // First finds the largest value, four vectors at a time, and then its first place.
  constexpr size_t kVectors = 4, kBlock = 4 * kVectors;
  const float most = std::numeric_limits<float>::max();
  Float4 best[kVectors];
  Int4 good[kVectors];
  for (size_t j = 0; j < kVectors; ++j) best[j] = Float4{} + kNone, good[j] = Int4{} - 1;
  const auto load = [&](size_t i) {
    Float4 x;
    std::memcpy(&x, row.data() + i, sizeof x);
    return x;
  };
  size_t i = 0;
  for (; i + kBlock <= row.size(); i += kBlock)
    for (size_t j = 0; j < kVectors; ++j) {
      const Float4 x = load(i + 4 * j);
      good[j] &= x <= most;
      best[j] = x > best[j] ? x : best[j];
    }
  float largest = kNone;
  bool bad = false;
  for (size_t j = 0; j < kBlock; ++j) {
    largest = std::max(largest, best[j / 4][j % 4]);
    bad |= good[j / 4][j % 4] == 0;
  }
  for (; i < row.size(); ++i) {
    bad |= !(row[i] <= most);
    largest = std::max(largest, row[i]);
  }
  if (bad)
    throw Error(ErrorKind::kInternal, "logits hold NaN or +inf: the model's weights or its arithmetic are broken");
  if (largest == kNone)
    throw Error(ErrorKind::kInternal, "none of " + std::to_string(row.size()) + " logits is finite");
  for (i = 0; i + kBlock <= row.size(); i += kBlock) {
    const Int4 found =
        (load(i) == largest) | (load(i + 4) == largest) | (load(i + 8) == largest) | (load(i + 12) == largest);
    if ((found[0] | found[1] | found[2] | found[3]) != 0) break;
  }
  while (row[i] != largest) ++i;
  return static_cast<int32_t>(i);
}

double max_probability(std::span<const float> logits) {
  const float largest = logits[argmax(logits)];
  thread_local std::vector<float> weights;
  weights.resize(logits.size());
  exp_row(logits.data(), logits.size(), largest, 1.f, weights.data());
  return 1.0 / sum(weights);
}

void distribution(std::span<const float> logits, const SamplingOptions& options, std::span<float> probs,
                  std::vector<int32_t>& scratch) {
  const int32_t best = argmax(logits);
  const size_t n = logits.size();
  if (options.greedy()) {
    std::fill(probs.begin(), probs.end(), 0.f);
    probs[best] = 1.f;
    return;
  }
  // 1 / temperature is limited to finite values for tiny temperatures, because infinity · 0 (the best token's
  // difference to itself) would be NaN.
  const double most = std::numeric_limits<float>::max();
  const float largest = logits[best], inverse = static_cast<float>(std::min(1.0 / options.temperature, most));
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(n)) {
    const Border top_k = top_k_border(logits, options.top_k, scratch);
    for (size_t i = 0; i < n; ++i) probs[i] = top_k.keeps(logits[i], static_cast<int32_t>(i)) ? logits[i] : kNone;
    exp_row(probs.data(), n, largest, inverse, probs.data());
  } else {
    exp_row(logits.data(), n, largest, inverse, probs.data());
  }
  double total = sum(probs);
  if (options.top_p < 1.0) {
    const Border top_p = top_p_border(probs, options.top_p, total, scratch);
    for (size_t i = 0; i < n; ++i)
      if (!top_p.keeps(probs[i], static_cast<int32_t>(i))) probs[i] = 0;
    total = sum(probs);
  }
  if (options.min_p > 0.0) {  // weights are relative to the best token's weight, which is 1
    for (float& w : probs)
      if (w < options.min_p) w = 0;
    total = sum(probs);
  }
  const float scale = static_cast<float>(1.0 / total);
  for (float& w : probs) w *= scale;
}

int32_t draw(std::span<const float> weights, double u) {
  const double goal = u * sum(weights);
  double mass = 0;
  int32_t last = -1;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0)) continue;
    mass += weights[i];
    last = static_cast<int32_t>(i);
    if (mass > goal) return last;
  }
  if (last < 0) throw Error(ErrorKind::kInternal, "draw: no weight is positive");
  return last;
}

double overlap(std::span<const float> p, std::span<const float> q) {
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += std::min(p[i], q[i]);
  return total;
}

}  // namespace specdec::decode
