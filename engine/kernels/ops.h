// The operations of a decoder as free functions. ops_ref.cpp (ATen, differentiable) defines the correct results;
// dispatch.cpp picks a faster variant by device, dtype and whether gradients are needed. SPECDEC_KERNELS=ref in the
// environment forces the reference. `out`: if undefined, a new tensor is returned; if defined, the result is written
// there (it must have the result's shape and dtype and be contiguous; not with gradients). Letters: B batch, S queries,
// L keys, H heads, G kv heads, D head_dim, E hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace specdec::kernels {

// Returns rows of `table` [V, E] for ids [...] int64: [..., E].
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out = {});

// Returns x / sqrt(mean(x²) + eps) in fp32, times offset + weight. x [..., E], weight [E]. Rounded to x's dtype before
// the multiplication (Llama) or after it (Gemma, whose 1 + weight does not fit in bf16; OLMo 2).
struct NormOptions {
  NormOptions(double eps, double offset = 0, bool rounds_last = false)
      : eps(eps), offset(offset), rounds_last(rounds_last) {}
  double eps, offset;
  bool rounds_last;
};
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options,
                    const at::Tensor& out = {});

// Returns x Wᵀ + bias. x [..., K], weight [N, K], bias [N] or undefined. With up to 16 rows on a CPU each row is
// bit-identical to the row alone. `weight` may be packed (pack, quantise_int8); it is then unpacked as a whole first,
// so decoding does not use this function for packed weights.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  const at::Tensor& out = {});

// Rotates the pairs (d, d + R/2) of the first R values of each head by the position's angles. x [..., S, H, D]; cos,
// sin [..., S, R/2] fp32, R <= D; cos and sin may carry a common factor.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out = {});

// Returns softmax(cap(scale · q kᵀ)) v with cap(s) = soft_cap · tanh(s / soft_cap); query head h reads kv head h / (H /
// G). q [B, S, H, D], k and v [B, G, L, D] -> [B, S, H, D]. allowed: [B or 1, S, L] bool; undefined = causal with the
// last query at the last key (query s sees keys 0 .. L - S + s). A window keeps only the last `window` of the keys that
// a query may see.
struct AttentionOptions {
  double scale = 0;     // 0: 1 / sqrt(D)
  double soft_cap = 0;  // 0: no cap
  int64_t window = 0;   // 0: all keys
};
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed = {},
                     const AttentionOptions& options = {}, const at::Tensor& out = {});

// silu(gate) · up (SwiGLU).
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out = {});
// gelu(gate) · up, with the tanh form of gelu.
at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out = {});
at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out = {});  // cap · tanh(x / cap)
at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out = {});

// Quantise a matrix to int8 with scales, on a CPU: fp32 or bf16 [N, K] -> [N, pack_row_bytes(K)] kChar in the layout of
// kernels/cpu/cpu.h; and back to fp32. Symmetric: the error is at most half a scale, which is 1/254 of the largest
// weight of its group.
at::Tensor quantise_int8(const at::Tensor& matrix);
at::Tensor dequantise_int8(const at::Tensor& quantised, int64_t k);
// Pack a matrix into the stream that a product reads, on a CPU: fp32 or bf16 [N, K] -> [N, pack_row_bytes(K)] kByte,
// exactly; and back.
at::Tensor pack(const at::Tensor& matrix);
at::Tensor unpack(const at::Tensor& packed, int64_t k, at::ScalarType dtype);

bool reference_forced();
// Overrides the environment, for parity tests and benches. Must not be called during a pass.
void force_reference(bool on);

}  // namespace specdec::kernels
