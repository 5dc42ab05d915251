// Declares the functions that launch the kernels of libspecdec_cuda.so on a given stream. This header does not include
// ATen, so nvcc compiles it in seconds. Streams are cudaStream_t; results are cudaError_t.
#pragma once

#include "engine/kernels/cuda.h"

struct CUstream_st;

namespace specdec::kernels {

namespace cuda {
using Stream = CUstream_st*;
int launch_rms_norm(CudaDtype dtype, const void* x, const void* weight, float eps, int64_t rows, int64_t n, void* out,
                    Stream stream);
int launch_silu_mul(CudaDtype dtype, const void* gate, const void* up, int64_t n, void* out, Stream stream);
int launch_rope(CudaDtype dtype, const void* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
                int64_t d, void* out, Stream stream);
int launch_gather_rows(CudaDtype dtype, const void* table, const int32_t* ids, int64_t rows, int64_t n, void* out,
                       Stream stream);
// Products with 16-bit weights and with quantised weights.
int launch_rows_linear(CudaDtype dtype, const RowsProduct& product, Stream stream);
int launch_rows_linear_quantised(CudaDtype dtype, const RowsProduct& product, Stream stream);
inline int launch_rows_product(CudaDtype dtype, const RowsProduct& product, Stream stream) {
  return product.packing == Packing::kPlain ? launch_rows_linear(dtype, product, stream)
                                            : launch_rows_linear_quantised(dtype, product, stream);
}
// See CudaLibrary::wide_product; `workspace` has `bytes`.
int launch_wide_product(CudaDtype dtype, int32_t device, const RowsProduct& product, void* workspace, int64_t bytes,
                        Stream stream);
int launch_dequantise(CudaDtype dtype, const DequantisedMatrix& matrix, Stream stream);
int launch_prepare_heads(CudaDtype dtype, const PagedPass& pass, const PagedHeads& heads, Stream stream);
int launch_paged_attention(CudaDtype dtype, const PagedPass& pass, const PagedLayer& layer, Stream stream);
int launch_move_slots(const SlotMoves& moves, Stream stream);
// The next three functions launch one block per task or row, with `threads` threads, a multiple of 32. The results do
// not depend on `threads`.
int launch_sample(const SamplePass& pass, unsigned threads, Stream stream);
int launch_draft(const DraftPass& pass, unsigned threads, Stream stream);
int launch_verify(const VerifyPass& pass, unsigned threads, Stream stream);
void* nccl_group(void* store, int32_t rank, int32_t ranks, int64_t timeout_ms, char* error, int64_t error_bytes);
}  // namespace cuda

}  // namespace specdec::kernels
