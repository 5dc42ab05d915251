// The operations of a decoder as free functions. ops_ref.cpp (ATen, differentiable) defines the correct results.
// dispatch.cpp picks a faster variant by device, dtype and whether gradients are needed. SPECDEC_KERNELS=ref in the
// environment forces the reference. If `out` is undefined, an operation returns a new tensor. If `out` is defined, the
// result is written there; it must be contiguous, with the shape and dtype of the result, and gradients are not
// supported. Letters in shapes: B batch, S queries, L keys, H heads, G kv heads, D head_dim, E hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace specdec::kernels {

// Returns the rows of `table` [V, E] for ids [...] int64, as [..., E].
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out = {});

// rms_norm() returns x / sqrt(mean(x²) + eps), computed in fp32, times offset + weight; x [..., E], weight [E]. By
// default, the quotient is rounded to x's dtype before the multiplication (Llama). With rounds_last, the result is
// rounded only after the multiplication (OLMo 2, and Gemma, whose 1 + weight does not fit in bf16).
struct NormOptions {
  NormOptions(double eps, double offset = 0, bool rounds_last = false)
      : eps(eps), offset(offset), rounds_last(rounds_last) {}
  double eps, offset;
  bool rounds_last;
};
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options,
                    const at::Tensor& out = {});

// Returns x Wᵀ + bias. x [..., K], weight [N, K], bias [N] or undefined. On a CPU with up to 16 rows, and on CUDA in
// bf16 and fp16 with up to 256 rows, each row is bit-identical to the same row computed alone. `weight` may be the
// result of pack(), quantise_int8() or pack_codes() (quantised_matrix.h). After pack_codes(), the columns of x must be
// in the packed order. On a CPU each call unpacks or dequantises the whole matrix, so decoding on a CPU uses other
// functions for such weights.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                  const at::Tensor& out = {});

// Returns x with the pairs (i, i + R/2) of the first R values of each head rotated by the angles of their position. x
// [..., S, H, D]; cos, sin [..., S, R/2] fp32; R <= D. cos and sin may include a common factor.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out = {});

// attention() returns softmax(cap(scale · q kᵀ)) v with cap(s) = soft_cap · tanh(s / soft_cap). Query head h reads kv
// head h / (H / G). q [B, S, H, D], k and v [B, G, L, D] -> [B, S, H, D]. `allowed` is bool [B or 1, S, L]. If it is
// undefined, attention is causal with the last query at the last key (query s sees keys 0 .. L - S + s). With a window,
// a query sees only the last `window` of the keys that it may see.
struct AttentionOptions {
  double scale = 0;     // 0: 1 / sqrt(D)
  double soft_cap = 0;  // 0: no cap
  int64_t window = 0;   // 0: all keys
};
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed = {},
                     const AttentionOptions& options = {}, const at::Tensor& out = {});

// Attention for training an EAGLE-3 head on its own drafts (training-time test). Query s sees keys 0 .. s of `causal`
// (k, v [B, G, S, D]), the text. It also sees key s of each pair in `own` (k, v [B, S, G, D]), which are tokens drafted
// after position s. One softmax covers all these keys. q [B, S, H, D] -> [B, S, H, D].
struct KeysValues {
  at::Tensor k, v;
};
at::Tensor diagonal_attention(const at::Tensor& q, const KeysValues& causal, const std::vector<KeysValues>& own,
                              double scale = 0);

// Returns silu(gate) · up (SwiGLU).
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out = {});
// Returns gelu(gate) · up, with the tanh form of gelu.
at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out = {});
at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out = {});  // cap · tanh(x / cap)
at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out = {});

// Quantises a matrix to int8 with scales: fp32 or bf16 [N, K] -> kChar [N, pack_row_bytes(K)] in the layout of
// kernels/cpu/cpu.h. Computes on a CPU, and returns the result on the matrix's device. dequantise_int8() converts it
// back to fp32. Quantisation is symmetric: the error of a weight is at most half a scale, about 1/254 of the largest
// weight of its group.
at::Tensor quantise_int8(const at::Tensor& matrix);
at::Tensor dequantise_int8(const at::Tensor& quantised, int64_t k);
// Packs a matrix on a CPU into the layout in which products read it (kernels/cpu/cpu.h): fp32 or bf16 [N, K] -> kByte
// [N, pack_row_bytes(K)]. unpack() restores exactly the same values.
at::Tensor pack(const at::Tensor& matrix);
at::Tensor unpack(const at::Tensor& packed, int64_t k, at::ScalarType dtype);

bool reference_forced();
// Turns the reference variants on or off, overriding SPECDEC_KERNELS. For parity tests and benchmarks; must not be
// called during a pass.
void force_reference(bool on);

}  // namespace specdec::kernels
