// Implements the reference variants with ATen. They are differentiable and work on every device and dtype. bf16 and
// fp16 results are rounded at the same points as in Hugging Face transformers.
#include <cmath>
#include <limits>

#include "engine/kernels/variants.h"

namespace specdec::kernels::ref {

namespace {

at::Tensor finish(at::Tensor result, const at::Tensor& out) { return out.defined() ? out.copy_(result) : result; }

at::Tensor repeat_heads(const at::Tensor& x, int64_t times) {  // [B, G, L, D] -> [B, G·times, L, D]
  if (times == 1) return x;
  const auto b = x.size(0), g = x.size(1), l = x.size(2), d = x.size(3);
  return x.unsqueeze(2).expand({b, g, times, l, d}).reshape({b, g * times, l, d});
}

}  // namespace

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out) {
  return finish(at::embedding(table, ids), out);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options, const at::Tensor& out) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + options.eps);
  const at::Tensor factor = options.offset != 0 ? weight.to(at::kFloat) + options.offset : weight;
  if (options.rounds_last) return finish((normed * factor).to(x.scalar_type()), out);
  return finish(factor.to(x.scalar_type()) * normed.to(x.scalar_type()), out);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) {
  const std::optional<at::Tensor> b = bias.defined() ? std::optional(bias) : std::nullopt;
  return finish(at::linear(x, weight, b), out);
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  const at::Tensor c = cos.to(x.scalar_type()).unsqueeze(-2), s = sin.to(x.scalar_type()).unsqueeze(-2);
  const int64_t half = cos.size(-1), rest = x.size(-1) - 2 * half;
  const at::Tensor low = x.narrow(-1, 0, half), high = x.narrow(-1, half, half);
  const at::Tensor turned_low = low * c - high * s, turned_high = high * c + low * s;
  if (rest == 0) return finish(at::cat({turned_low, turned_high}, -1), out);
  return finish(at::cat({turned_low, turned_high, x.narrow(-1, 2 * half, rest)}, -1), out);
}

namespace {

// Returns the mask as bool [B or 1, S, L]. Returns nothing if no mask is needed: for plain causal attention, or for a
// single query that sees all keys.
std::optional<at::Tensor> visible_keys(const at::Tensor& q, int64_t queries, int64_t keys, const at::Tensor& allowed,
                                       int64_t window) {
  const bool narrow = window != 0 && window < keys;
  if (!allowed.defined()) {
    if (!narrow && (queries == keys || queries == 1)) return std::nullopt;
    at::Tensor mask = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(keys - queries);
    if (narrow) mask = mask.triu(keys - queries - window + 1);
    return mask.unsqueeze(0);
  }
  if (!narrow) return allowed;
  // For each key, counts the visible keys from this key to the end. Keys with a count of at most `window` are in the
  // window.
  const at::Tensor from_here_on = allowed.to(at::kInt).flip(-1).cumsum(-1).flip(-1);
  return allowed.logical_and(from_here_on <= window);
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed,
                     const AttentionOptions& options, const at::Tensor& out) {
  const int64_t queries = q.size(1), keys = k.size(2), times = q.size(2) / k.size(1);
  const double scale = options.scale != 0 ? options.scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  std::optional<at::Tensor> mask = visible_keys(q, queries, keys, allowed, options.window);
  if (mask) mask = mask->unsqueeze(1);
  if (options.soft_cap == 0) {
    const bool causal = !mask && queries > 1;
    const at::Tensor result = at::scaled_dot_product_attention(
        q.transpose(1, 2), repeat_heads(k, times), repeat_heads(v, times), mask, /*dropout_p=*/0.0, causal, scale);
    return finish(result.transpose(1, 2), out);
  }
  if (!mask && queries > 1) mask = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril();
  at::Tensor scores = at::matmul(q.transpose(1, 2), repeat_heads(k, times).transpose(2, 3)).to(at::kFloat) * scale;
  scores = soft_cap(scores, options.soft_cap, {});
  if (mask) scores = scores.masked_fill(mask->logical_not(), -std::numeric_limits<float>::infinity());
  return finish(at::matmul(scores.softmax(-1).to(v.scalar_type()), repeat_heads(v, times)).transpose(1, 2), out);
}

at::Tensor diagonal_attention(const at::Tensor& q, const KeysValues& causal, const std::vector<KeysValues>& own,
                              double scale) {
  const int64_t length = q.size(1), times = q.size(2) / causal.k.size(1);
  const double factor = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor queries = q.transpose(1, 2);  // [B, H, S, D]
  const auto at_own = [&](const at::Tensor& x) { return repeat_heads(x.transpose(1, 2), times); };
  const at::Tensor later = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  std::vector<at::Tensor> scores = {
      (at::matmul(queries, repeat_heads(causal.k, times).transpose(2, 3)).to(at::kFloat) * factor)
          .masked_fill(later, -std::numeric_limits<float>::infinity())};
  for (const KeysValues& pair : own)
    scores.push_back((queries * at_own(pair.k)).to(at::kFloat).sum(-1, /*keepdim=*/true) * factor);
  const at::Tensor p = at::cat(scores, -1).softmax(-1).to(causal.v.scalar_type());
  at::Tensor sum = at::matmul(p.narrow(-1, 0, length), repeat_heads(causal.v, times));
  for (size_t i = 0; i < own.size(); ++i)
    sum = sum + p.narrow(-1, length + static_cast<int64_t>(i), 1) * at_own(own[i].v);
  return sum.transpose(1, 2);
}

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  return finish(at::silu(gate) * up, out);
}

at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  return finish(at::gelu(gate, "tanh") * up, out);
}

at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out) {
  return finish(at::tanh(x / cap) * cap, out);
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) { return finish(a + b, out); }

}  // namespace specdec::kernels::ref
