// The interface to CUDA. Everything that needs libtorch_cuda is in one shared library, libspecdec_cuda.so, which is
// loaded at the first use of a CUDA device. A process that runs on the CPU therefore starts without the CUDA half of
// LibTorch. In a build with SPECDEC_CUDA=OFF, every call reports that CUDA is not built in.
#pragma once

#include <cstdint>
#include <string>

#include "engine/kernels/cuda_tokens.h"

namespace specdec::kernels {

enum class CudaDtype : int32_t { kFloat, kBFloat16, kHalf };

// The most rows of a product that take part in decoding. A larger product is a prompt's, which other libraries multiply
// faster.
inline constexpr int64_t kMaxProductRows = 256;

// How a matrix [n, k] of a product lies in memory: row by row in 16 bits; quantised, as kernels/cpu/cpu.h describes
// Int8; or quantised by group, as kernels/quantised_matrix.h describes it for codes of 4 bits, of 8 bits, and E4M3.
enum class Packing : int32_t { kPlain, kInt8, kCodes4, kCodes8, kE4m3 };

// out = x weightᵀ + bias, with sums in fp32, for 16-bit numbers. x [rows, k], weight [n, k], bias [n] or null.
// Quantised weights begin at a multiple of 16 bytes.
struct RowsProduct {
  int64_t rows, n, k;
  const void *x, *weight, *bias;
  // If given, a second matrix [n, k] with its bias: `out` becomes silu(x weightᵀ + bias) · (x upᵀ + up_bias).
  const void *up, *up_bias;
  const void* residual;  // if given, [rows, n] that is added to the result; may be `out` itself
  void* out;             // row r begins at r · stride
  int64_t stride;
  Packing packing;  // of `weight` and `up`
  int64_t group;    // of weights quantised by group: inputs that share a scale, a multiple of kUnitInputs
  // Of weights quantised by group, if given, [k]: the input in x of each input of the matrix.
  const int32_t* order;
  const int32_t* live;  // if given and *live is 0, the product need not be computed (PagedPass::live)
};
inline constexpr int64_t kUnitInputs = 32;  // inputs of a unit (kernels/quantised_matrix.h)

// A matrix quantised by group, and where it is written in 16-bit numbers, each rounded once. out [n, k].
struct DequantisedMatrix {
  int64_t n, k;
  const void* weight;
  Packing packing;
  int64_t group;  // as in RowsProduct
  void* out;
};

// One row of a pass over cached sequences. The keys of a sequence lie in slots 0, 1, … of its blocks; a block of
// kPagedSlots slots is [layers, 2 (keys, values), kv_heads, kPagedSlots, d]. The row's own key and value go to `slot`.
// It sees the keys of the slots up to its own, but of the last 64 of these only those that `tail` names: bit i stands
// for slot - i. A row whose slot is below 0 is absent: its key and value go nowhere, and no tile has it.
struct PagedRow {
  uint64_t tail;
  int32_t table;  // where the addresses of its sequence's blocks begin in PagedPass::blocks
  int32_t slot;
};
inline constexpr int kPagedSlots = 64;
// Up to kPagedQueries neighbouring queries of rows of one sequence, which read its keys together. Query i belongs to
// row `row` + i / t and to the head i % t of the kv head, where t = heads / kv_heads.
struct PagedTile {
  int32_t row, first, queries;  // queries `first` up to first + queries of the rows from `row` on
  int32_t slots;                // all keys that its queries see are below this slot
  int32_t split;                // keys that one block reads: a multiple of kPagedSlots
  int32_t part;                 // where its splits begin among those of all tiles
};
inline constexpr int kPagedQueries = 16;
// What all layers of a pass share. All pointers are to device memory.
struct PagedPass {
  const PagedRow* rows;
  const PagedTile* tiles;
  const uint64_t* blocks;  // addresses
  float* parts;            // room for (splits of all tiles) · kv_heads · kPagedQueries · (d + 2) numbers
  // If given and *live is 0, nobody reads what the pass computes: kernels that take long then do nothing.
  const int32_t* live;
  int32_t num_rows, num_tiles, num_splits;
  int32_t heads, kv_heads, d;
};
inline constexpr int64_t kMaxPagedHead = 256;  // d is at most this, and a multiple of 8
// What differs between the layers. q, out [num_rows, heads, d]; k, v [num_rows, kv_heads, d]. If k is null, keys and
// values are in their slots already.
struct PagedLayer {
  int32_t layer;
  float scale, soft_cap;  // soft_cap 0: none
  int32_t window;         // a query sees only the last `window` of its keys; 0: all
  const void *q, *k, *v;
  void* out;
};
// A layer's heads on their way from the projection to attention: queries and keys are normalised and rotated, and keys
// and values go to their slots.
struct PagedHeads {
  int32_t layer;
  int32_t rotated;              // the first numbers of a head are rotated, this many; 0: none
  const void* projected;        // [num_rows, heads + 2 kv_heads, d]: queries, keys, values
  const void *q_norm, *k_norm;  // [d] each, or null
  float eps;
  const float *cos, *sin;  // [num_rows, rotated / 2]
  void* q;                 // [num_rows, heads, d]
};

// Tokens of a sequence whose keys and values, of 16 bits, move to other slots in all layers: from slot from[i] of one
// block to slot to[i] of another, or the same. In the order of the sequence both ascend, and no token moves forward.
struct SlotMoves {
  static constexpr int32_t kMost = 64;
  int32_t from[kMost], to[kMost];
  uint64_t from_block[kMost], to_block[kMost];  // addresses of the blocks that the slots are in
  int32_t count;
  int32_t planes;  // layers · 2 · kv_heads: a block is [planes, kPagedSlots, d]
  int32_t d;
};

// What the CUDA runtime says of a device.
struct CudaDevice {
  char name[256];
  int32_t major, minor;     // compute capability
  int32_t driver, runtime;  // versions of CUDA: 13000 is 13.0
};

// The functions of the shared library, with plain C types. Data pointers point to device memory. Launches go to the
// current stream of `device` and return a CUDA error code; 0 means launched, and kCudaException that a library threw.
struct CudaLibrary {
  int32_t version;            // must equal kCudaLibraryVersion
  int32_t (*device_count)();  // 0 if there is no driver or no device
  int32_t (*describe)(int32_t device, CudaDevice* description);
  int32_t (*memory)(int32_t device, int64_t* free_bytes, int64_t* total_bytes);
  const char* (*error_text)(int32_t code);  // of kCudaException, the last one's message in this thread
  int32_t (*synchronize)(int32_t device);   // waits until the current stream is idle
  // Computes out[r, :] = round(x[r, :] / sqrt(mean(x²) + eps)) · weight, where round() rounds to `dtype`; x, out [rows,
  // n].
  int32_t (*rms_norm)(CudaDtype dtype, int32_t device, const void* x, const void* weight, float eps, int64_t rows,
                      int64_t n, void* out);
  int32_t (*silu_mul)(CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n, void* out);
  // x, out [rows, heads, d]; cos, sin [rows, d / 2] fp32.
  int32_t (*rope)(CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin, int64_t rows,
                  int64_t heads, int64_t d, void* out);
  // out[r, :] = table[ids[r], :]; table [·, n], out [rows, n].
  int32_t (*gather_rows)(CudaDtype dtype, int32_t device, const void* table, const int32_t* ids, int64_t rows,
                         int64_t n, void* out);
  // Copies on the device, or between it and the host's pinned memory, which must stay as it is until the copy is done.
  int32_t (*copy)(int32_t device, void* to, const void* from, int64_t bytes);
  // A row's bits do not depend on the other rows.
  int32_t (*rows_product)(CudaDtype dtype, int32_t device, const RowsProduct* product);
  int32_t (*dequantise)(CudaDtype dtype, int32_t device, const DequantisedMatrix* matrix);
  int32_t (*prepare_heads)(CudaDtype dtype, int32_t device, const PagedPass* pass, const PagedHeads* heads);
  // Writes the rows' keys and values into their slots, then computes attention over the cached keys, for 16-bit
  // numbers. A row's bits depend only on its own query, keys and place.
  int32_t (*paged_attention)(CudaDtype dtype, int32_t device, const PagedPass* pass, const PagedLayer* layer);
  int32_t (*sample)(int32_t device, const SamplePass* pass);
  int32_t (*draft)(int32_t device, const DraftPass* pass);
  int32_t (*move_slots)(int32_t device, const SlotMoves* moves);
  int32_t (*verify)(int32_t device, const VerifyPass* pass);
  // From begin_capture() to end_capture() this thread's launches on the device are collected instead of run;
  // end_capture() makes a graph of them, or sets it to null after an error. launch_graph() runs them all.
  int32_t (*begin_capture)(int32_t device);
  int32_t (*end_capture)(int32_t device, void** graph);
  int32_t (*launch_graph)(int32_t device, void* graph);
  void (*free_graph)(void* graph);
  // Makes the NCCL group of `ranks` processes, which find each other in `store`, a c10d::Store*. Returns a
  // c10d::Backend* that the caller owns, or null with the reason in error[error_bytes].
  void* (*nccl_group)(void* store, int32_t rank, int32_t ranks, int64_t timeout_ms, char* error, int64_t error_bytes);
};
inline constexpr int32_t kCudaLibraryVersion = 11;
inline constexpr int32_t kCudaException = -1;

// Returns the library, which is loaded at the first call. Throws Error(kDevice) if CUDA is not built in, LibTorch has
// no CUDA half, or the library is missing or of another version.
const CudaLibrary& cuda_library();

// Returns the number of usable CUDA devices. If it is 0, `reason` (if given) is set to the cause (not built in, no
// driver, …). Checks for a driver first, so that nothing is loaded without one. Call it before any other ATen work,
// because ATen checks only once whether its CUDA half is loaded.
int cuda_device_count(std::string* reason = nullptr);

}  // namespace specdec::kernels
