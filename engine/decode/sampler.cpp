#include "engine/decode/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace specdec::decode {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// The last kept element of a descending order whose ties are broken by the lower id.
struct Border {
  float value = kNone;
  int32_t id = std::numeric_limits<int32_t>::max();
  bool keeps(float v, int32_t i) const { return v > value || (v == value && i <= id); }
};

struct Descending {
  const float* values;
  bool operator()(int32_t a, int32_t b) const { return values[a] > values[b] || (values[a] == values[b] && a < b); }
};

// Border of the k largest values. Few: a heap of k beats touching V ids; many: selection over all ids.
Border top_k_border(std::span<const float> values, int64_t k, std::vector<int32_t>& scratch) {
  const int32_t n = static_cast<int32_t>(values.size());
  const Descending before{values.data()};
  scratch.clear();
  if (k <= 256) {
    for (int32_t i = 0; i < n; ++i) {
      if (static_cast<int64_t>(scratch.size()) < k) {
        scratch.push_back(i);
        std::push_heap(scratch.begin(), scratch.end(), before);
      } else if (values[i] > values[scratch.front()]) {  // an equal later id is after the border
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

// Border of the smallest prefix of `weights` (descending) whose mass reaches p · total.
Border top_p_border(std::span<const float> weights, double p, double total, std::vector<int32_t>& scratch) {
  // All ids below (1 − p)/V of the mass together hold less than 1 − p of it: the prefix ends before them. Half of that
  // leaves room for rounding.
  const double floor = 0.5 * (1.0 - p) * total / static_cast<double>(weights.size());
  scratch.clear();
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0 && weights[i] >= floor) scratch.push_back(static_cast<int32_t>(i));
  const Descending before{weights.data()};
  double mass = 0;
  auto first = scratch.begin();
  for (ptrdiff_t block = 32; first != scratch.end(); block *= 4) {
    const auto last = scratch.end() - first > block ? first + block : scratch.end();
    if (last != scratch.end()) std::nth_element(first, last, scratch.end(), before);
    std::sort(first, last, before);
    for (; first != last; ++first) {
      mass += weights[*first];
      if (mass >= p * total) return {weights[*first], *first};
    }
  }
  return {};
}

double sum(std::span<const float> values) {
  double total = 0;
  for (const float v : values) total += v;
  return total;
}

}  // namespace

int32_t argmax(std::span<const float> row) {
  float best = kNone;
  int32_t at = -1;
  bool bad = false;
  for (size_t i = 0; i < row.size(); ++i) {
    bad |= !(row[i] <= std::numeric_limits<float>::max());
    if (row[i] > best) {
      best = row[i];
      at = static_cast<int32_t>(i);
    }
  }
  if (bad) throw Error(ErrorKind::kInternal, "logits hold NaN or +inf: the model's weights or its arithmetic are broken");
  if (at < 0) throw Error(ErrorKind::kInternal, "none of " + std::to_string(row.size()) + " logits is finite");
  return at;
}

double max_probability(std::span<const float> logits) {
  const float largest = logits[argmax(logits)];
  double total = 0;
  for (const float l : logits) total += std::exp(l - largest);
  return 1.0 / total;
}

void distribution(std::span<const float> logits, const SamplingOptions& options, std::span<float> probs, std::vector<int32_t>& scratch) {
  const int32_t best = argmax(logits);
  const size_t n = logits.size();
  if (options.greedy()) {
    std::fill(probs.begin(), probs.end(), 0.f);
    probs[best] = 1.f;
    return;
  }
  const bool cut_k = options.top_k > 0 && options.top_k < static_cast<int64_t>(n);
  const Border top_k = cut_k ? top_k_border(logits, options.top_k, scratch) : Border{};
  const double largest = logits[best], inverse = 1.0 / options.temperature;
  double total = 0;
  for (size_t i = 0; i < n; ++i) {
    const double e = !cut_k || top_k.keeps(logits[i], static_cast<int32_t>(i)) ? std::exp((logits[i] - largest) * inverse) : 0.0;
    probs[i] = static_cast<float>(e);
    total += e;
  }
  if (options.top_p < 1.0) {
    const Border top_p = top_p_border(probs, options.top_p, total, scratch);
    for (size_t i = 0; i < n; ++i)
      if (!top_p.keeps(probs[i], static_cast<int32_t>(i))) probs[i] = 0;
    total = sum(probs);
  }
  if (options.min_p > 0.0) {  // weights are relative to the best token's, which is 1
    for (float& w : probs)
      if (w < options.min_p) w = 0;
    total = sum(probs);
  }
  const double scale = 1.0 / total;
  for (float& w : probs) w = static_cast<float>(w * scale);
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
