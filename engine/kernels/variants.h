// Declares the variants from which dispatch.cpp chooses. Their arguments are those of ops.h, except that only the
// functions in namespace ref accept an undefined `out`.
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
at::Tensor diagonal_attention(const at::Tensor& q, const KeysValues& causal, const std::vector<KeysValues>& own,
                              double scale);
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out);
at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);
}  // namespace ref

// CPU variants for fp32 and bf16. Arithmetic is fp32, and results are rounded once at the end. Only
// sequence_attention(), diagonal_attention() and the functions trained_*() compute gradients.
namespace cpu {
// Maximum number of rows of linear() and attention(); with more rows ATen's blocked products are faster.
inline constexpr int64_t kMaxRows = 16;
void rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options, const at::Tensor& out);
void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out);
void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out);
void attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed,
               const AttentionOptions& options, const at::Tensor& out);
void silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
void gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
// Computes causal attention with as many queries as keys, in fp32, without window or soft cap; scale = 0 means 1 /
// sqrt(D). Differentiable.
at::Tensor sequence_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale);
// Computes diagonal_attention() of ops.h in fp32. `own` must not be empty. Differentiable.
at::Tensor diagonal_attention(const at::Tensor& q, const KeysValues& causal, const std::vector<KeysValues>& own,
                              double scale);
// Variants with gradients. All inputs must have the same dtype.
at::Tensor trained_rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options);
at::Tensor trained_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor trained_silu_mul(const at::Tensor& gate, const at::Tensor& up);
}  // namespace cpu

// CUDA variants for fp32, bf16 and fp16, on the current stream. They compute in fp32 and have no gradients. rms_norm()
// has only Llama's form (no offset, rounding before the multiplication), and rope() rotates only whole heads.
namespace cuda {
void rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out);
void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out);
void silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out);
// Supports bf16 and fp16 with at most kMaxProductRows rows, and with any number of rows if the weight is int8. If the
// matrix is quantised by group, the columns of x must be in the order of the packed matrix.
void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out);
// Writes a matrix that is quantised by group (quantised_matrix.h) to out [N, K] in bf16 or fp16.
void dequantise(const at::Tensor& weight, const at::Tensor& out);
}  // namespace cuda

}  // namespace specdec::kernels
