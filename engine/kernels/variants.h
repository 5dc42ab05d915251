// The variants that dispatch.cpp chooses from. They have the arguments of ops.h; `out` is always defined except in ref.
#pragma once

#include <ATen/ATen.h>

#include "engine/kernels/ops.h"

namespace specdec::kernels {

namespace ref {
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out);
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options, const at::Tensor& out);
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out);
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out);
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed,
                     const AttentionOptions& options, const at::Tensor& out);
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out);
at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);
}  // namespace ref

// For a CPU: fp32 or bf16 (arithmetic in fp32, rounded once at the end), no gradients.
namespace cpu {
inline constexpr int64_t kMaxRows = 16;  // of linear and attention; with more rows ATen's blocked products are faster
void rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options, const at::Tensor& out);
void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out);
void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out);
void attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed,
               const AttentionOptions& options, const at::Tensor& out);
void silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
void gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
// Causal attention with as many queries as keys, fp32, without window or soft cap; scale 0: 1 / sqrt(D).
// Differentiable.
at::Tensor sequence_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale);
}  // namespace cpu

// For CUDA: fp32, bf16 or fp16 (arithmetic in fp32), no gradients, on the current stream. Norms are Llama's only, and
// rope rotates whole heads.
namespace cuda {
void rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out);
void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out);
void silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
}  // namespace cuda

}  // namespace specdec::kernels
