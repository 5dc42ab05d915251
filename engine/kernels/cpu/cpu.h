// CPU kernels on plain memory for few rows, without torch. Activations and sums are fp32; weights are fp32, bf16,
// int8 or quantised in blocks; KV caches are fp32 or bf16. Each output element is one sum. The order of its additions
// depends only on its length, never on the number of rows or threads, so each row of a batch is bit-identical to the
// same row computed alone. Instruction sets may round differently; with packed and int8 weights only `baseline`
// differs, because it has no fused multiply-add. No function allocates, throws or starts threads. Pointers need only
// the alignment of their element type.
#pragma once

#include <cstdint>

namespace specdec::kernels::cpu {

struct Bf16 {
  uint16_t bits;
};

// A matrix [n, k] stored in the order in which a product reads it. The matrix is cut into blocks of kPackOutputs
// outputs, and each block into groups of kPackGroup inputs. The last block and the last group may be smaller. A group
// stores:
// * Packed<float>: fp32 [inputs, outputs]
// * Packed<Bf16>: bf16 [inputs / 2, outputs, 2]; an odd number of inputs is padded with zeros
// * Int8: one scale per output, fp32 [outputs], then int8 [kPackGroup / 2, outputs, 2], with zeros beyond k
template <class T>
struct Packed {
  T value;
};
struct Int8 {
  int8_t value;
};
inline constexpr int64_t kPackOutputs = 32, kPackGroup = 64;
static inline int64_t pack_scale_bytes(const void*, int64_t) { return 0; }
static inline int64_t pack_scale_bytes(const Int8*, int64_t outputs) { return 4 * outputs; }
static constexpr int64_t pack_group_bytes(const Packed<float>*, int64_t inputs, int64_t outputs) {
  return 4 * inputs * outputs;
}
static constexpr int64_t pack_group_bytes(const Packed<Bf16>*, int64_t inputs, int64_t outputs) {
  return 2 * (inputs + inputs % 2) * outputs;
}
static constexpr int64_t pack_group_bytes(const Int8*, int64_t, int64_t outputs) { return (kPackGroup + 4) * outputs; }
// Returns the packed size of one output in bytes. The block that begins with output i starts at byte i times this size,
// and a whole matrix takes n times this size.
template <class S>
static inline int64_t pack_row_bytes(const S* type, int64_t k) {
  return k / kPackGroup * pack_group_bytes(type, kPackGroup, 1) +
         (k % kPackGroup != 0 ? pack_group_bytes(type, k % kPackGroup, 1) : 0);
}
// Packs and unpacks outputs [begin, end) of a row-major matrix [n, k]. begin must be a multiple of kPackOutputs; end
// must be such a multiple or n.
template <class T>
void pack(const T* w, int64_t k, int64_t n, int64_t begin, int64_t end, Packed<T>* out);
template <class T>
void unpack(const Packed<T>* w, int64_t k, int64_t n, int64_t begin, int64_t end, T* out);
// Converts finite weights to int8 and back. Quantisation is symmetric: the scale of a group is max |w| / 127, rounded
// up to 16 significant bits, and values are rounded to nearest even. The product scale · value is then exact in fp32.
// Quantising dequantised weights therefore gives the same bits.
void quantise(const float* w, int64_t k, int64_t n, int64_t begin, int64_t end, Int8* out);
void dequantise(const Int8* w, int64_t k, int64_t n, int64_t begin, int64_t end, float* out);

// A group of kPackGroup inputs as integers, for products with int8 weights: x ≈ scale · value. The scale is a power of
// two, and the error is at most 2^-15 of the largest |x| in the group. For comparison: bf16 inputs, as on GPUs, have a
// relative error of 2^-9, and int8 weights have an error of 2^-8 of the largest |w| in their group. The scale is NaN if
// an input of the group is not finite.
struct FixedInputs {
  int16_t value[kPackGroup];
  float scale;
};
inline constexpr int64_t kFixedRows = 24;  // maximum rows of one linear_int8 call
static inline int64_t fixed_groups(int64_t k) { return (k + kPackGroup - 1) / kPackGroup; }

// The kinds of block-quantised matrices, in the layout of block_matrix.h. ggml's names.
enum class BlockKind : uint8_t { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };
struct Blocks {
  uint8_t byte;
};
inline constexpr int64_t kBlockInputs = 32;
// Distance in bytes at which products prefetch block-quantised weights when they first read a block.
inline constexpr int64_t kBlockAhead = 4096;
// A group of kBlockInputs inputs as pairs of bytes, for products with block-quantised weights: x ≈ scale · (128 · high
// + low). high and low lie in [-64, 64], so that no sum of two products with unsigned bytes overflows 16 bits. The
// error is at most max |x| / 16382, and a group below 1e-30 counts as zero. The scale is NaN if an input of the group
// is not finite.
struct SplitInputs {
  int8_t high[kBlockInputs], low[kBlockInputs];
  float scale;
  int32_t sum[2];  // of 128 · high + low, over each half of the group
};
// Returns the bytes per output of a super (block_matrix.h), and the number of its inputs.
int64_t block_super_bytes(BlockKind kind);
int64_t block_super_inputs(BlockKind kind);
// Packs outputs [begin, end) of a matrix [n, k]. `rows` holds the blocks of the file, row after row; output i is row
// order[i] of it, or row i if order is null. k must be a multiple of block_super_inputs(). `out` has room for
// block_outputs(n) outputs. begin must be a multiple of kPackOutputs; end must be such a multiple or n. Returns false
// if a scale is not finite.
bool pack_blocks(BlockKind kind, const uint8_t* rows, const int64_t* order, int64_t k, int64_t n, int64_t begin,
                 int64_t end, Blocks* out);
// Writes outputs [begin, end), which need not be aligned, in fp32 to out [end - begin, k].
void unpack_blocks(BlockKind kind, const Blocks* w, int64_t k, int64_t begin, int64_t end, float* out);

// Arguments of a product: out[r, n] = Σ_k x[r, k] · w[n, k] + bias[n] for n in [n_begin, n_end). With `add`, the result
// is added to `out` instead of replacing it.
template <class T, class Bias = T>
struct LinearCall {
  const float* x;  // [rows, k], row stride ldx
  int64_t ldx, rows;
  const T* w;  // [n, k], row-major or packed
  int64_t k, n_begin, n_end;
  const Bias* bias;  // [n] or null
  float* out;        // [rows, n], row stride ldo
  int64_t ldo;
  bool add;
  int64_t n = 0;                      // only for packed, int8 and block w: total number of outputs
  FixedInputs* fixed = nullptr;       // only for int8: workspace [rows, fixed_groups(k)]
  SplitInputs* split = nullptr;       // only for blocks: workspace [rows, k / kBlockInputs]
  BlockKind kind = BlockKind::kQ8_0;  // only for blocks
};

// The keys that one query position sees, as a list of slots: first [0, prefix), then the `extra` slots. With a sliding
// window, only the entries of this list from index `first` on are seen.
struct Visible {
  int64_t prefix;
  const int32_t* extra;  // slots beyond the prefix, ascending
  int64_t num_extra;
  int64_t first = 0;  // index in the list at which the sliding window begins
};

// Keys or values of one kv head, stored in blocks of kBlockSlots slots. Slot i is row i % kBlockSlots of the matrix
// [kBlockSlots, d] that begins `offset` elements after the address blocks[i / kBlockSlots].
inline constexpr int64_t kBlockSlots = 64;
struct Slots {
  const void* const* blocks;
  int64_t offset = 0;
};

// Arguments of attention, softmax(cap(scale · q kᵀ)) v with cap(s) = soft_cap · tanh(s / soft_cap), for several
// positions of one sequence and for the query heads that share one kv head. Positions share a call so that keys and
// values are read once. Each position's result is bit-identical to that of a call for this position alone.
template <class T>
struct AttentionCall {
  const float* q;  // [rows, heads, d], row stride ldq, heads adjacent
  int64_t ldq, rows, heads, d;
  Slots k, v;              // elements are of type T
  const Visible* visible;  // [rows]; the result of a row that sees nothing is zero
  float scale;
  float* scores;       // workspace [rows, heads, slots]
  int64_t slots;       // at least prefix + num_extra of every row
  float* out;          // [rows, heads, d], row stride ldq
  float soft_cap = 0;  // 0: no cap
};

// The largest raw score of a softmax row and 1 / Σ exp(scale · (score − largest)). The gradients recompute the row's
// probabilities from these two numbers.
struct SoftmaxRow {
  float largest, inverse;
};

// Arguments of causal attention over one whole sequence (position i sees positions 0 … i), in fp32, for the query heads
// that share one kv head.
struct SequenceAttentionCall {
  const float* q;  // [length, heads, d], row stride ldq, heads adjacent
  int64_t ldq, heads, d, length;
  const float *k, *v;  // [length, d], row stride ldk
  int64_t ldk;
  float scale;
  float* out;        // laid out like q; the gradients read it
  SoftmaxRow* rows;  // [heads, length]; the gradients read it
  float* workspace;  // sequence_workspace(length, d) floats
};
struct SequenceAttentionGradCall {
  SequenceAttentionCall forward;
  const float* dout;  // gradients of `out`, laid out like q
  float* dq;          // laid out like q
  float *dk, *dv;     // [length, d], row stride ldk, summed over the heads
  int64_t ldk;
};
inline constexpr int64_t kQueryBlock = 16;
static inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }  // whole vectors of any instruction set
static inline int64_t sequence_workspace(int64_t length, int64_t d) {
  return 2 * d * padded(length) + 3 * length * padded(d) + 2 * kQueryBlock * padded(length) +
         3 * kQueryBlock * padded(d);
}

// Arguments of the gradients of a normalised row y = x · scale · (offset + weight), where scale = 1 / sqrt(mean(x²) +
// eps). All numbers are fp32. dy [n] holds the gradients of y. dx is overwritten, and dweight is added to.
struct NormGradCall {
  const float *x, *dy;
  int64_t n;
  float eps, offset;
  float *dx, *dweight;
};
// Arguments of the gradients of silu(gate) · up for n numbers; dy holds the gradients of the result.
struct GateGradCall {
  const float *gate, *up, *dy;
  int64_t n;
  float *dgate, *dup;
};

template <class T>
struct Kernels {
  const char* name;  // name of the instruction set
  void (*linear)(const LinearCall<T>& call);
  void (*linear_packed)(const LinearCall<Packed<T>, T>& call);
  void (*linear_int8)(const LinearCall<Int8, T>& call);
  void (*linear_blocks)(const LinearCall<Blocks, T>& call);
  void (*attention)(const AttentionCall<T>& call);
  // Normalises n values and multiplies them by offset + weight; out may be x.
  void (*rms_norm)(const float* x, const T* weight, float eps, float offset, int64_t n, float* out);
  void (*widen)(const T* in, int64_t n, float* out);
  void (*narrow)(const float* in, int64_t n, T* out);                                // rounds to nearest even
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);       // out may be gate
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n, float* out);  // out may be gate
  void (*soft_cap)(float* x, int64_t n, float scale, float cap);                     // x <- cap · tanh(scale · x / cap)
  // Rotates one head; cos, sin [d / 2]; out may be x.
  void (*rope)(const float* x, const float* cos, const float* sin, int64_t d, float* out);
  void (*sequence_attention)(const SequenceAttentionCall& call);
  void (*sequence_attention_grad)(const SequenceAttentionGradCall& call);
  void (*rms_norm_grad)(const NormGradCall& call, const T* weight);
  void (*silu_mul_grad)(const GateGradCall& call);
};

// Returns the kernels for the best instruction set of this machine: avx512_vnni, avx512, avx_vnni, avx2 or baseline.
// The environment variable SPECDEC_KERNELS=<name> selects another supported one.
template <class T>
const Kernels<T>& kernels();
// Fills `out` with the kernels of every instruction set that this machine supports, best first, and returns their
// number. Tests compare them.
inline constexpr int kInstructionSets = 5;
template <class T>
int available(const Kernels<T>* out[kInstructionSets]);

}  // namespace specdec::kernels::cpu
