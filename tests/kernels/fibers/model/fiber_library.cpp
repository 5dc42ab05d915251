#include "tests/kernels/fibers/model/fiber_library.h"

#include "engine/kernels/cuda/launch.h"

namespace specdec::fibers {

namespace {

using namespace kernels;

int32_t describe(int32_t, CudaDevice* description) {
  *description = {"fibers", 0, 0, 0, 0};
  return 0;
}
int32_t memory(int32_t, int64_t* free_bytes, int64_t* total_bytes) {
  *free_bytes = *total_bytes = int64_t{64} << 20;
  return 0;
}
const char* error_text(int32_t) { return "refused"; }
int32_t no_work(int32_t) { return 0; }
int32_t rms_norm(CudaDtype dtype, int32_t, const void* x, const void* weight, float eps, int64_t rows, int64_t n,
                 void* out) {
  return cuda::launch_rms_norm(dtype, x, weight, eps, rows, n, out, nullptr);
}
int32_t silu_mul(CudaDtype dtype, int32_t, const void* gate, const void* up, int64_t n, void* out) {
  return cuda::launch_silu_mul(dtype, gate, up, n, out, nullptr);
}
int32_t rope(CudaDtype dtype, int32_t, const void* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
             int64_t d, void* out) {
  return cuda::launch_rope(dtype, x, cos, sin, rows, heads, d, out, nullptr);
}
int32_t rows_product(CudaDtype dtype, int32_t, const RowsProduct* product) {
  return cuda::launch_rows_product(dtype, *product, nullptr);
}
int32_t unpack(CudaDtype dtype, int32_t, const UnpackedMatrix* matrix) {
  return cuda::launch_unpack(dtype, *matrix, nullptr);
}
int32_t prepare_heads(CudaDtype dtype, int32_t, const PagedPass* pass, const PagedHeads* heads) {
  return cuda::launch_prepare_heads(dtype, *pass, *heads, nullptr);
}
int32_t paged_attention(CudaDtype dtype, int32_t, const PagedPass* pass, const PagedLayer* layer) {
  return cuda::launch_paged_attention(dtype, *pass, *layer, nullptr);
}

constexpr unsigned kThreads = 64;  // fewer than on a GPU, so that tests are quick
int32_t sample(int32_t, const SamplePass* pass) { return cuda::launch_sample(*pass, kThreads, nullptr); }
int32_t verify(int32_t, const VerifyPass* pass) { return cuda::launch_verify(*pass, kThreads, nullptr); }

}  // namespace

const CudaLibrary& fiber_library() {
  static const CudaLibrary library = {.version = kCudaLibraryVersion,
                                      .device_count = [] { return 1; },
                                      .describe = describe,
                                      .memory = memory,
                                      .error_text = error_text,
                                      .synchronize = no_work,
                                      .rms_norm = rms_norm,
                                      .silu_mul = silu_mul,
                                      .rope = rope,
                                      .rows_product = rows_product,
                                      .unpack = unpack,
                                      .prepare_heads = prepare_heads,
                                      .paged_attention = paged_attention,
                                      .sample = sample,
                                      .verify = verify,
                                      .nccl_group = nullptr};
  return library;
}

}  // namespace specdec::fibers
