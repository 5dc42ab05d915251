// The operations of a decoder as free functions. ops_ref.cpp (ATen, differentiable) defines what is right; dispatch.cpp
// picks a faster variant by device, dtype and whether gradients are needed. SPECDEC_KERNELS=ref in the environment
// forces the reference. `out`: undefined = a new tensor; defined = written there (shape and dtype of the result,
// contiguous; not with gradients). Letters: B batch, S queries, L keys, H heads, G kv heads, D head_dim, E hidden, V
// vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace specdec::kernels {

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids,
                     const at::Tensor& out = {});  // [V, E], [...] int64 -> [..., E]

// x / sqrt(mean(x²) + eps) in fp32, times offset + weight. x [..., E], weight [E]. Rounded to x's dtype before the
// multiplication (Llama) or after it (Gemma, whose 1 + weight bf16 could not hold; OLMo 2).
struct NormOptions {
  NormOptions(double eps, double offset = 0, bool rounds_last = false)
      : eps(eps), offset(offset), rounds_last(rounds_last) {}
  double eps, offset;
  bool rounds_last;
};
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options,
                    const at::Tensor& out = {});

// x Wᵀ + bias. x [..., K], weight [N, K], bias [N] or undefined. Up to 16 rows on a CPU: each row as if it were alone,
// bit for bit. `weight` may be packed (pack, quantise_int8): it is unpacked as a whole first, so steps of decoding do
// not come here.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  const at::Tensor& out = {});

// Turns the pairs (d, d + R/2) of the first R values of each head by the position's angles. x [..., S, H, D]; cos, sin
// [..., S, R/2] fp32, R <= D; cos and sin may carry a common factor.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out = {});

// softmax(cap(scale · q kᵀ)) v, cap(s) = soft_cap · tanh(s / soft_cap); query head h reads kv head h / (H / G).
// q [B, S, H, D], k and v [B, G, L, D] -> [B, S, H, D]. allowed [B or 1, S, L] bool, undefined = causal with the last
// query at the last key (query s sees keys 0 .. L - S + s). Of the keys that a query may see only the last `window`
// count.
struct AttentionOptions {
  double scale = 0;     // 0: 1 / sqrt(D)
  double soft_cap = 0;  // 0: none
  int64_t window = 0;   // 0: all keys
};
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed = {},
                     const AttentionOptions& options = {}, const at::Tensor& out = {});

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up,
                    const at::Tensor& out = {});  // silu(gate) · up (SwiGLU)
at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up,
                         const at::Tensor& out = {});                              // gelu(gate) · up, gelu's tanh form
at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out = {});  // cap · tanh(x / cap)
at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out = {});

// Matrices as int8 with scales, on a CPU: fp32 or bf16 [N, K] -> [N, int8_row_bytes(K)] kChar, whose bytes only
// kernels/cpu/cpu.h explains, and back as fp32. Symmetric, within half a scale of each weight: 1/254 of the largest of
// its group.
at::Tensor quantise_int8(const at::Tensor& matrix);
at::Tensor dequantise_int8(const at::Tensor& quantised, int64_t k);
// Matrices as the stream that a product reads, on a CPU: fp32 or bf16 [N, K] -> [N, pack_row_bytes(K)] kByte, exactly,
// and back.
at::Tensor pack(const at::Tensor& matrix);
at::Tensor unpack(const at::Tensor& packed, int64_t k, at::ScalarType dtype);

bool reference_forced();
void force_reference(bool on);  // overrides the environment; for parity tests and benches, not while a pass runs

}  // namespace specdec::kernels
