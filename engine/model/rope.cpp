#include "engine/model/rope.h"

#include <numbers>

namespace specdec::model {

at::Tensor inverse_frequencies(const DecoderConfig& config) {
  const RopeConfig& rope = config.rope;
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(config.head_dim);
  const at::Tensor plain = 1.0 / at::pow(at::Scalar(rope.theta), exponents);
  if (rope.kind == RopeConfig::Kind::kDefault) return plain;
  const auto original = static_cast<double>(rope.original_max_position);
  const double long_wave = original / rope.low_freq_factor, short_wave = original / rope.high_freq_factor;
  const at::Tensor wave = 2 * std::numbers::pi / plain;
  const at::Tensor stretched = at::where(wave > long_wave, plain / rope.factor, plain);
  const at::Tensor smooth = (original / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1 - smooth) * stretched / rope.factor + smooth * stretched;
  return at::where((wave < short_wave).logical_or(wave > long_wave), stretched, between);
}

std::pair<at::Tensor, at::Tensor> rope_angles(const at::Tensor& inverse_frequencies, const at::Tensor& positions) {
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(-1) * inverse_frequencies.to(positions.device());
  return {angles.cos(), angles.sin()};
}

}  // namespace specdec::model
