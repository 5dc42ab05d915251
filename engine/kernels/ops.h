// The operations of a decoder as free functions. ops_ref.cpp (ATen, differentiable) defines what is right; dispatch.cpp picks
// a faster variant by device, dtype and whether gradients are needed. SPECDEC_KERNELS=ref in the environment forces the reference.
// `out`: undefined = a new tensor; defined = written there (shape and dtype of the result, contiguous; not with gradients).
// Letters: B batch, S queries, L keys, H heads, G kv heads, D head_dim, E hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace specdec::kernels {

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out = {});  // [V, E], [...] int64 -> [..., E]

// x / sqrt(mean(x²) + eps) in fp32, rounded to x's dtype, times weight. x [..., E], weight [E].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out = {});

// x Wᵀ + bias. x [..., K], weight [N, K], bias [N] or undefined. Up to 16 rows on a CPU: each row as if it were alone, bit for bit.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}, const at::Tensor& out = {});

// Rotates the pairs (d, d + D/2) of each head by the position's angles. x [..., S, H, D]; cos, sin [..., S, D/2] fp32.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out = {});

// softmax(q kᵀ / sqrt(D)) v; query head h reads kv head h / (H / G). q [B, S, H, D], k and v [B, G, L, D] -> [B, S, H, D].
// allowed [B or 1, S, L] bool, undefined = causal with the last query at the last key (query s sees keys 0 .. L - S + s).
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed = {}, const at::Tensor& out = {});

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out = {});  // silu(gate) · up (SwiGLU)
at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out = {});

bool reference_forced();
void force_reference(bool on);  // overrides the environment; for parity tests and benches, not while a pass runs

}  // namespace specdec::kernels
