// The interface to CUDA. All code that needs libtorch_cuda is in one shared library, libspecdec_cuda.so, which is
// loaded at the first use of a CUDA device. A process that runs on the CPU therefore never loads the CUDA part of
// LibTorch. In a build with SPECDEC_CUDA=OFF, every call reports that CUDA is not built in.
#pragma once

#include <cstdint>
#include <string>

#include "engine/kernels/cuda_tokens.h"

namespace specdec::kernels {

enum class CudaDtype : int32_t { kFloat, kBFloat16, kHalf };

// The maximum number of rows of x for which our kernel computes a product, as in decoding. Prefill has more rows, and
// for these LibTorch is faster.
inline constexpr int64_t kMaxProductRows = 256;
// In passes with more rows than this, CudaLibrary::wide_product computes the matrix products that it supports, unless
// the user gives --exact.
inline constexpr int64_t kMostNarrowRows = 64;
// Memory on the device that CudaLibrary::wide_product may use for its sums.
inline constexpr int64_t kWideProductBytes = int64_t{32} << 20;

// The layout of a product's matrix [n, k] in memory: row-major in 16 bits; quantised to int8 (Int8 in
// kernels/cpu/cpu.h); or quantised by group with 4-bit codes, 8-bit codes or E4M3 (kernels/quantised_matrix.h).
enum class Packing : int32_t { kPlain, kInt8, kCodes4, kCodes8, kE4m3 };

// Computes out = x weightᵀ + bias on 16-bit numbers with sums in fp32: x [rows, k], weight [n, k], bias [n] or null.
// Quantised weights begin at a multiple of 16 bytes.
struct RowsProduct {
  int64_t rows, n, k;
  const void *x, *weight, *bias;
  // If given, `up` is a second matrix [n, k] and up_bias its bias: `out` becomes silu(x weightᵀ + bias) · (x upᵀ +
  // up_bias).
  const void *up, *up_bias;
  // If given, a matrix [rows, n] that is added to the result. It may be `out` itself. Not together with `up`.
  const void* residual;
  void* out;  // row r begins at element r · stride
  int64_t stride;
  Packing packing;  // layout of `weight` and `up`
  int64_t group;    // for weights quantised by group: number of inputs that share a scale, a multiple of kUnitInputs
  // [k], optional, only for weights quantised by group: for each input of the packed matrix, its index in x.
  const int32_t* order;
  const int32_t* live;  // if given and *live is 0, the product may be skipped (see PagedPass::live)
  // true: the kernel before this one may have written the weights, so they are not read before it has ended.
  bool new_weights = false;
};
inline constexpr int64_t kUnitInputs = 32;  // inputs per unit (see kernels/quantised_matrix.h)

// Arguments of dequantise(): a matrix quantised by group, and its output [n, k] of 16-bit numbers, each rounded once.
struct DequantisedMatrix {
  int64_t n, k;
  const void* weight;
  Packing packing;
  int64_t group;  // number of inputs that share a scale (see RowsProduct)
  void* out;
};

// One row (token) of a pass over cached sequences. The keys of a sequence lie in slots 0, 1, … of its blocks; a block
// of kPagedSlots slots is [layers, 2 (keys, values), kv_heads, kPagedSlots, d]. The row's own key and value are written
// to `slot`. `tail` describes the last 64 slots up to `slot`: the row sees slot − i if bit i is set. The row sees all
// older slots. A row with slot < 0 is absent: its key and value are not stored, and no tile contains it.
struct PagedRow {
  uint64_t tail;
  int32_t table;  // index in PagedPass::blocks of the first block address of the row's sequence
  int32_t slot;
};
inline constexpr int kPagedSlots = 64;
// A tile: up to kPagedQueries consecutive queries of one sequence's rows, which are computed together so that keys are
// read once. Query i belongs to row `row` + i / t and to head i % t of the kv head, where t = heads / kv_heads.
struct PagedTile {
  int32_t row, first, queries;  // queries [first, first + queries) of the rows from `row` on
  int32_t slots;                // all keys that the tile's queries see are below this slot
  int32_t split;                // keys per split, a multiple of kPagedSlots; one block of threads reads each split
  int32_t part;                 // number of splits of all earlier tiles
};
inline constexpr int kPagedQueries = 16;
// The arguments of a pass that are the same for all layers. All pointers are to device memory.
struct PagedPass {
  const PagedRow* rows;
  const PagedTile* tiles;
  const uint64_t* blocks;  // addresses of cache blocks
  float* parts;            // workspace: (splits of all tiles) · kv_heads · kPagedQueries · (d + 2) numbers
  // If given and *live is 0, the results of the pass are not needed, so expensive kernels return at once.
  const int32_t* live;
  int32_t num_rows, num_tiles, num_splits;
  int32_t heads, kv_heads, d;
};
inline constexpr int64_t kMaxPagedHead = 256;  // maximum of d, which is a multiple of 8
// The arguments of attention that differ between layers. q, out [num_rows, heads, d]; k, v [num_rows, kv_heads, d]. A
// null k means that keys and values have been written to their slots already.
struct PagedLayer {
  int32_t layer;
  float scale, soft_cap;  // soft_cap 0: no cap
  int32_t window;         // a query sees only the last `window` of its keys; 0: all of them
  const void *q, *k, *v;
  void* out;
};
// Arguments of prepare_heads(), which normalises and rotates the projected queries and keys of a layer, and writes keys
// and values to their slots.
struct PagedHeads {
  int32_t layer;
  int32_t rotated;              // number of leading values of each head that are rotated; 0: none
  const void* projected;        // [num_rows, heads + 2 kv_heads, d]: queries, keys, values
  const void *q_norm, *k_norm;  // [d] each, or null
  float eps;
  const float *cos, *sin;  // [num_rows, rotated / 2]
  void* q;                 // [num_rows, heads, d]
};

// Arguments of move_slots(), which moves the 16-bit keys and values of tokens in all layers. Token i moves from slot
// from[i] of block from_block[i] to slot to[i] of block to_block[i]. The tokens are ordered by their positions in the
// sequence, both before and after the move, and no token moves to a later position.
struct SlotMoves {
  static constexpr int32_t kMost = 64;
  int32_t from[kMost], to[kMost];
  uint64_t from_block[kMost], to_block[kMost];  // addresses of the blocks that contain the slots
  int32_t count;
  int32_t planes;  // layers · 2 (keys, values) · kv_heads: a block is [planes, kPagedSlots, d]
  int32_t d;
};

// The properties of a device as the CUDA runtime reports them.
struct CudaDevice {
  char name[256];
  int32_t major, minor;     // compute capability
  int32_t driver, runtime;  // CUDA versions of driver and runtime: 13000 means 13.0
};

// The functions of the shared library, with plain C types. Data pointers point to device memory. Functions that launch
// kernels use the current stream of `device`. They return a CUDA error code: 0 if the kernel was launched,
// kCudaException if LibTorch threw.
struct CudaLibrary {
  int32_t version;            // must equal kCudaLibraryVersion
  int32_t (*device_count)();  // 0 if there is no driver or no device
  int32_t (*describe)(int32_t device, CudaDevice* description);
  int32_t (*memory)(int32_t device, int64_t* free_bytes, int64_t* total_bytes);
  const char* (*error_text)(int32_t code);  // for kCudaException: the message of this thread's last exception
  int32_t (*synchronize)(int32_t device);   // waits until the current stream is idle
  // Computes out[r, :] = round(x[r, :] / sqrt(mean(x²) + eps)) · weight, where round() rounds to `dtype`; x, out [rows,
  // n].
  int32_t (*rms_norm)(CudaDtype dtype, int32_t device, const void* x, const void* weight, float eps, int64_t rows,
                      int64_t n, void* out);
  int32_t (*silu_mul)(CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n, void* out);
  // Rotary embedding: x, out [rows, heads, d]; cos, sin [rows, d / 2] fp32.
  int32_t (*rope)(CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin, int64_t rows,
                  int64_t heads, int64_t d, void* out);
  // out[r, :] = table[ids[r], :]; table [·, n], out [rows, n].
  int32_t (*gather_rows)(CudaDtype dtype, int32_t device, const void* table, const int32_t* ids, int64_t rows,
                         int64_t n, void* out);
  // Copies within device memory, or between device memory and the host's pinned memory. The host must not change pinned
  // memory until the copy is done.
  int32_t (*copy)(int32_t device, void* to, const void* from, int64_t bytes);
  // The result of a row is bit-identical whatever other rows the call has.
  int32_t (*rows_product)(CudaDtype dtype, int32_t device, const RowsProduct* product);
  // Computes the same product faster if it has many rows, but a row's bits depend on the number of rows. Returns
  // kNotSupported, with nothing done, for quantised weights, for fp32, with `up`, or if cuBLASLt is missing or refuses
  // the shape. `workspace` is device memory of kWideProductBytes that no other launch uses at the same time.
  int32_t (*wide_product)(CudaDtype dtype, int32_t device, const RowsProduct* product, void* workspace);
  int32_t (*dequantise)(CudaDtype dtype, int32_t device, const DequantisedMatrix* matrix);
  int32_t (*prepare_heads)(CudaDtype dtype, int32_t device, const PagedPass* pass, const PagedHeads* heads);
  // Writes the rows' keys and values into their slots, then computes attention over the cached keys, for 16-bit
  // numbers. The result of a row is bit-identical whatever other rows the pass has.
  int32_t (*paged_attention)(CudaDtype dtype, int32_t device, const PagedPass* pass, const PagedLayer* layer);
  int32_t (*sample)(int32_t device, const SamplePass* pass);
  int32_t (*draft)(int32_t device, const DraftPass* pass);
  int32_t (*move_slots)(int32_t device, const SlotMoves* moves);
  int32_t (*verify)(int32_t device, const VerifyPass* pass);
  // Between begin_capture() and end_capture(), this thread's launches on the device are recorded instead of run.
  // end_capture() makes a CUDA graph of the recorded launches, or sets it to null after an error. launch_graph() runs
  // the graph.
  int32_t (*begin_capture)(int32_t device);
  int32_t (*end_capture)(int32_t device, void** graph);
  int32_t (*launch_graph)(int32_t device, void* graph);
  void (*free_graph)(void* graph);
  // Creates the NCCL process group of `ranks` processes, which find each other through `store`, a c10d::Store*. Returns
  // a c10d::Backend* that the caller owns, or null with the reason in error[error_bytes].
  void* (*nccl_group)(void* store, int32_t rank, int32_t ranks, int64_t timeout_ms, char* error, int64_t error_bytes);
};
// The one function that the shared library exports. It returns the table.
using CudaLibraryFunction = const CudaLibrary* (*)();
inline constexpr const char* kCudaLibrarySymbol = "specdec_cuda_library";
inline constexpr int32_t kCudaLibraryVersion = 11;
inline constexpr int32_t kCudaException = -1;
inline constexpr int32_t kNotSupported = -2;

// Returns the library; the first call loads it. Throws Error(kDevice) if CUDA is not built in, LibTorch has no CUDA
// part, or the library is missing or has another version.
const CudaLibrary& cuda_library();

// Returns the number of usable CUDA devices. If it is 0, sets `reason` (if given) to the cause (not built in, no
// driver, …). Checks for a driver first, so that no library is loaded without a driver. Call it before any other ATen
// work, because ATen checks only once whether its CUDA part is loaded.
int cuda_device_count(std::string* reason = nullptr);

}  // namespace specdec::kernels
