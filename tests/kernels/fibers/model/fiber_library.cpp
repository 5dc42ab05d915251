#include "tests/kernels/fibers/model/fiber_library.h"

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/fibers/fibers.h"

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

// Copies that were started and are not done. Each thread has a stream of its own.
std::vector<std::function<void()>>& late_copies() {
  thread_local std::vector<std::function<void()>> copies;
  return copies;
}
void finish_copies() {
  for (const auto& copy : std::exchange(late_copies(), {})) copy();
}
int32_t synchronize(int32_t) {
  finish_copies();
  return 0;
}

using Graph = std::vector<std::function<int32_t()>>;
// The graph that is being captured, or null.
std::unique_ptr<Graph>& capture() {
  thread_local std::unique_ptr<Graph> graph;
  return graph;
}
int32_t run(std::function<int32_t()> call) {
  if (capture()) {
    capture()->push_back(std::move(call));
    return 0;
  }
  finish_copies();
  return call();
}
int32_t begin_capture(int32_t) {
  capture() = std::make_unique<Graph>();
  return 0;
}
int32_t end_capture(int32_t, void** graph) {
  ++graph_counts().captured;
  *graph = capture().release();
  return 0;
}
int32_t launch_graph(int32_t, void* graph) {
  ++graph_counts().launched;
  finish_copies();
  for (const auto& call : *static_cast<Graph*>(graph))
    if (const int32_t code = call()) return code;
  return 0;
}
void free_graph(void* graph) {
  ++graph_counts().freed;
  delete static_cast<Graph*>(graph);
}

int32_t rms_norm(CudaDtype dtype, int32_t, const void* x, const void* weight, float eps, int64_t rows, int64_t n,
                 void* out) {
  return run([=] { return cuda::launch_rms_norm(dtype, x, weight, eps, rows, n, out, stream()); });
}
int32_t silu_mul(CudaDtype dtype, int32_t, const void* gate, const void* up, int64_t n, void* out) {
  return run([=] { return cuda::launch_silu_mul(dtype, gate, up, n, out, stream()); });
}
int32_t rope(CudaDtype dtype, int32_t, const void* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
             int64_t d, void* out) {
  return run([=] { return cuda::launch_rope(dtype, x, cos, sin, rows, heads, d, out, stream()); });
}
int32_t gather_rows(CudaDtype dtype, int32_t, const void* table, const int32_t* ids, int64_t rows, int64_t n,
                    void* out) {
  return run([=] { return cuda::launch_gather_rows(dtype, table, ids, rows, n, out, stream()); });
}
int32_t copy(int32_t, void* to, const void* from, int64_t bytes) {
  const auto start = [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); };
  if (!capture()) {
    ++graph_counts().copies;
    late_copies().push_back(start);
    return 0;
  }
  return run([=] {
    start();
    return 0;
  });
}
int32_t rows_product(CudaDtype dtype, int32_t, const RowsProduct* product) {
  return run([=, product = *product] {
    if (product.live && *product.live == 0) ++graph_counts().products_at_rest;
    return cuda::launch_rows_product(dtype, product, stream());
  });
}
// Computes the same as rows_product(), so only the count shows which of the two functions a pass called.
int32_t wide_product(CudaDtype dtype, int32_t, const RowsProduct* product, void* workspace) {
  if (dtype == CudaDtype::kFloat || product->packing != Packing::kPlain || product->up || !workspace)
    return kNotSupported;
  ++graph_counts().wide_products;
  return run([=, product = *product] { return cuda::launch_rows_product(dtype, product, fibers::stream()); });
}
int32_t dequantise(CudaDtype dtype, int32_t, const DequantisedMatrix* matrix) {
  return run([=, matrix = *matrix] { return cuda::launch_dequantise(dtype, matrix, stream()); });
}
int32_t prepare_heads(CudaDtype dtype, int32_t, const PagedPass* pass, const PagedHeads* heads) {
  return run([=, pass = *pass, heads = *heads] { return cuda::launch_prepare_heads(dtype, pass, heads, stream()); });
}
int32_t paged_attention(CudaDtype dtype, int32_t, const PagedPass* pass, const PagedLayer* layer) {
  return run([=, pass = *pass, layer = *layer] { return cuda::launch_paged_attention(dtype, pass, layer, stream()); });
}

constexpr unsigned kThreads = 64;  // fewer than on a GPU, so that tests are quick
int32_t sample(int32_t, const SamplePass* pass) {
  return run([pass = *pass] { return cuda::launch_sample(pass, kThreads, stream()); });
}
int32_t draft(int32_t, const DraftPass* pass) {
  return run([pass = *pass] { return cuda::launch_draft(pass, kThreads, stream()); });
}
int32_t move_slots(int32_t, const SlotMoves* moves) {
  return run([moves = *moves] { return cuda::launch_move_slots(moves, stream()); });
}
int32_t verify(int32_t, const VerifyPass* pass) {
  return run([pass = *pass] { return cuda::launch_verify(pass, kThreads, stream()); });
}

}  // namespace

GraphCounts& graph_counts() {
  static GraphCounts counts;
  return counts;
}

const CudaLibrary& fiber_library() {
  static const CudaLibrary library = {.version = kCudaLibraryVersion,
                                      .device_count = [] { return 1; },
                                      .describe = describe,
                                      .memory = memory,
                                      .error_text = error_text,
                                      .synchronize = synchronize,
                                      .rms_norm = rms_norm,
                                      .silu_mul = silu_mul,
                                      .rope = rope,
                                      .gather_rows = gather_rows,
                                      .copy = copy,
                                      .rows_product = rows_product,
                                      .wide_product = wide_product,
                                      .dequantise = dequantise,
                                      .prepare_heads = prepare_heads,
                                      .paged_attention = paged_attention,
                                      .sample = sample,
                                      .draft = draft,
                                      .move_slots = move_slots,
                                      .verify = verify,
                                      .begin_capture = begin_capture,
                                      .end_capture = end_capture,
                                      .launch_graph = launch_graph,
                                      .free_graph = free_graph,
                                      .nccl_group = nullptr};
  return library;
}

}  // namespace specdec::fibers
