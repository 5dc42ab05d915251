#include "engine/config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace specdec::model {

namespace {

using Kind = RopeConfig::Kind;

at::Tensor llama3_frequencies(const RopeConfig& rope, const at::Tensor& plain) {
  const auto original = static_cast<double>(rope.original_max_position);
  const double long_wave = original / rope.low_freq_factor, short_wave = original / rope.high_freq_factor;
  const at::Tensor wave = 2 * std::numbers::pi / plain;
  const at::Tensor stretched = at::where(wave > long_wave, plain / rope.factor, plain);
  const at::Tensor smooth = (original / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1 - smooth) * stretched / rope.factor + smooth * stretched;
  return at::where((wave < short_wave).logical_or(wave > long_wave), stretched, between);
}

// Returns YaRN's frequencies. Pairs that rotate more than beta_fast times within the original context keep their
// frequency. Pairs that rotate less than beta_slow times are interpolated: their frequency is divided by the factor.
// Pairs between these limits get a blend of both.
at::Tensor yarn_frequencies(const RopeConfig& rope, int64_t dim, const at::Tensor& powers) {
  const auto pair_turning = [&](double turns) {
    const double context = static_cast<double>(rope.original_max_position);
    return static_cast<double>(dim) * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = pair_turning(rope.beta_fast), high = pair_turning(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const at::Tensor interpolated = at::clamp((at::arange(dim / 2, at::kFloat) - low) / (high - low), 0, 1),
                   kept = 1 - interpolated;
  return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept;
}

}  // namespace

int64_t rope_rescale(const RopeConfig& rope, int64_t length) {
  if (length <= rope.original_max_position) return 0;
  return rope.kind == Kind::kLongRope ? 1 : rope.kind == Kind::kDynamic ? length : 0;
}

int64_t rotary_dim(const RopeConfig& rope, int64_t head_dim) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rope.rotary_fraction);
}

at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale) {
  const int64_t dim = rotary_dim(rope, head_dim);
  const at::Tensor exponents = at::arange(0, dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(dim);
  if (rope.kind == Kind::kDynamic && rope_rescale != 0) {
    const at::Tensor longer = rope.factor * at::scalar_tensor(static_cast<double>(rope_rescale), at::kFloat) /
                              static_cast<double>(rope.original_max_position);
    const at::Tensor theta =
        rope.theta * at::pow(longer - (rope.factor - 1), static_cast<double>(dim) / static_cast<double>(dim - 2));
    return 1.0 / at::pow(theta, exponents);
  }
  const at::Tensor powers = at::pow(at::Scalar(rope.theta), exponents);
  switch (rope.kind) {
    case Kind::kLinear:
      return 1.0 / powers / rope.factor;
    case Kind::kYarn:
      return yarn_frequencies(rope, dim, powers);
    case Kind::kLongRope:
      return 1.0 / (at::tensor(rope_rescale != 0 ? rope.long_factor : rope.short_factor, at::kFloat) * powers);
    case Kind::kLlama3:
      return llama3_frequencies(rope, 1.0 / powers);
    case Kind::kDefault:
    case Kind::kDynamic:
      break;
  }
  return 1.0 / powers;
}

std::pair<at::Tensor, at::Tensor> rope_angles(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale,
                                              const at::Tensor& positions) {
  const at::Tensor angles =
      positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies(rope, head_dim, rope_rescale).to(positions.device());
  if (rope.attention_factor == 1) return {angles.cos(), angles.sin()};
  return {angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor};
}

}  // namespace specdec::model
