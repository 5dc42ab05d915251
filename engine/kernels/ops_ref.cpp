// The reference: ATen, differentiable, every device and dtype. bf16 and fp16 round where transformers' Llama rounds.
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

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out) { return finish(at::embedding(table, ids), out); }

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps);
  return finish(weight * (wide * scale).to(x.scalar_type()), out);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) {
  const std::optional<at::Tensor> b = bias.defined() ? std::optional(bias) : std::nullopt;
  return finish(at::linear(x, weight, b), out);
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  const at::Tensor c = cos.to(x.scalar_type()).unsqueeze(-2), s = sin.to(x.scalar_type()).unsqueeze(-2);
  const auto halves = x.chunk(2, -1);
  return finish(at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1), out);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed, const at::Tensor& out) {
  const int64_t queries = q.size(1), keys = k.size(2), times = q.size(2) / k.size(1);
  std::optional<at::Tensor> mask;
  if (allowed.defined()) {
    mask = allowed.unsqueeze(1);
  } else if (queries != keys && queries > 1) {
    mask = at::ones({queries, keys}, q.options().dtype(at::kBool)).tril(keys - queries);
  }
  const bool causal = !mask && queries > 1;
  const at::Tensor result =
      at::scaled_dot_product_attention(q.transpose(1, 2), repeat_heads(k, times), repeat_heads(v, times), mask, /*dropout_p=*/0.0, causal);
  return finish(result.transpose(1, 2), out);
}

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) { return finish(at::silu(gate) * up, out); }

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) { return finish(a + b, out); }

}  // namespace specdec::kernels::ref
