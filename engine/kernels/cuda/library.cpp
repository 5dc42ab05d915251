// Builds the function table that libspecdec_cuda.so exports. Launches go to ATen's current stream. No function throws
// across the library boundary.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <optional>
#include <string>

#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels {

namespace {

int32_t device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) cudaGetLastError();  // clears the error: no driver or no device is a normal answer
  return code == cudaSuccess ? count : 0;
}

// Returns the message of the last exception in this thread.
std::string& exception_text() {
  thread_local std::string text;
  return text;
}

// Runs f(stream) with `device` as the current device and returns its code. If LibTorch throws, returns the exception's
// CUDA error code if it has one, else kCudaException. Clears the thread's last error if it returns an error; otherwise
// LibTorch would report the same error for its next kernel.
template <class F>
int32_t on_device(int32_t device, const F& f) {
  try {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    const int32_t code = f(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream());
    if (code != 0) cudaGetLastError();
    return code;
  } catch (const c10::AcceleratorError& e) {
    return e.get_error_code();
  } catch (const c10::OutOfMemoryError&) {
    return static_cast<int32_t>(cudaErrorMemoryAllocation);
  } catch (const std::exception& e) {
    exception_text() = e.what();
    exception_text().resize(exception_text().find('\n') == std::string::npos ? exception_text().size()
                                                                             : exception_text().find('\n'));
    return kCudaException;
  }
}

int32_t describe(int32_t device, CudaDevice* description) {
  return on_device(device, [&](cudaStream_t) {
    cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceProperties(&properties, device);
    if (code == cudaSuccess) code = cudaDriverGetVersion(&description->driver);
    if (code == cudaSuccess) code = cudaRuntimeGetVersion(&description->runtime);
    if (code != cudaSuccess) return static_cast<int32_t>(code);
    static_assert(sizeof description->name == sizeof properties.name);
    std::memcpy(description->name, properties.name, sizeof properties.name);
    description->major = properties.major, description->minor = properties.minor;
    return 0;
  });
}

int32_t memory(int32_t device, int64_t* free_bytes, int64_t* total_bytes) {
  return on_device(device, [&](cudaStream_t) {
    size_t free = 0, total = 0;
    const cudaError_t code = cudaMemGetInfo(&free, &total);
    *free_bytes = static_cast<int64_t>(free);
    *total_bytes = static_cast<int64_t>(total);
    return static_cast<int32_t>(code);
  });
}

const char* error_text(int32_t code) {
  return code == kCudaException ? exception_text().c_str() : cudaGetErrorString(static_cast<cudaError_t>(code));
}

int32_t synchronize(int32_t device) {
  return on_device(device, [](cudaStream_t stream) { return static_cast<int32_t>(cudaStreamSynchronize(stream)); });
}

int32_t rms_norm(CudaDtype dtype, int32_t device, const void* x, const void* weight, float eps, int64_t rows, int64_t n,
                 void* out) {
  return on_device(
      device, [&](cudaStream_t stream) { return cuda::launch_rms_norm(dtype, x, weight, eps, rows, n, out, stream); });
}

int32_t silu_mul(CudaDtype dtype, int32_t device, const void* gate, const void* up, int64_t n, void* out) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_silu_mul(dtype, gate, up, n, out, stream); });
}

int32_t rope(CudaDtype dtype, int32_t device, const void* x, const float* cos, const float* sin, int64_t rows,
             int64_t heads, int64_t d, void* out) {
  return on_device(
      device, [&](cudaStream_t stream) { return cuda::launch_rope(dtype, x, cos, sin, rows, heads, d, out, stream); });
}

int32_t gather_rows(CudaDtype dtype, int32_t device, const void* table, const int32_t* ids, int64_t rows, int64_t n,
                    void* out) {
  return on_device(
      device, [&](cudaStream_t stream) { return cuda::launch_gather_rows(dtype, table, ids, rows, n, out, stream); });
}

int32_t copy(int32_t device, void* to, const void* from, int64_t bytes) {
  return on_device(device, [&](cudaStream_t stream) {
    return static_cast<int32_t>(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
  });
}

int32_t rows_product(CudaDtype dtype, int32_t device, const RowsProduct* product) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_rows_product(dtype, *product, stream); });
}

int32_t wide_product(CudaDtype dtype, int32_t device, const RowsProduct* product, void* workspace) {
  return on_device(device, [&](cudaStream_t stream) {
    return cuda::launch_wide_product(dtype, device, *product, workspace, kWideProductBytes, stream);
  });
}

int32_t dequantise(CudaDtype dtype, int32_t device, const DequantisedMatrix* matrix) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_dequantise(dtype, *matrix, stream); });
}

int32_t prepare_heads(CudaDtype dtype, int32_t device, const PagedPass* pass, const PagedHeads* heads) {
  return on_device(device,
                   [&](cudaStream_t stream) { return cuda::launch_prepare_heads(dtype, *pass, *heads, stream); });
}

int32_t paged_attention(CudaDtype dtype, int32_t device, const PagedPass* pass, const PagedLayer* layer) {
  return on_device(device,
                   [&](cudaStream_t stream) { return cuda::launch_paged_attention(dtype, *pass, *layer, stream); });
}

// The stream that was current before this thread began a capture.
std::optional<c10::cuda::CUDAStream>& outer_stream() {
  thread_local std::optional<c10::cuda::CUDAStream> stream;
  return stream;
}

void end_side_stream() {
  if (outer_stream()) c10::cuda::setCurrentCUDAStream(*outer_stream());
  outer_stream().reset();
}

// The default stream cannot be captured, so a stream of LibTorch's pool is current during a capture.
int32_t begin_capture(int32_t device) {
  return on_device(device, [&](cudaStream_t) {
    if (outer_stream()) return static_cast<int32_t>(cudaErrorIllegalState);
    const auto index = static_cast<c10::DeviceIndex>(device);
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, index);
    const cudaError_t code = cudaStreamBeginCapture(side.stream(), cudaStreamCaptureModeThreadLocal);
    if (code != cudaSuccess) return static_cast<int32_t>(code);
    outer_stream() = c10::cuda::getCurrentCUDAStream(index);
    c10::cuda::setCurrentCUDAStream(side);
    return 0;
  });
}

int32_t end_capture(int32_t device, void** graph) {
  *graph = nullptr;
  const int32_t ended = on_device(device, [&](cudaStream_t side) {
    cudaGraph_t captured = nullptr;
    cudaError_t code = cudaStreamEndCapture(side, &captured);
    cudaGraphExec_t made = nullptr;
    if (code == cudaSuccess) code = cudaGraphInstantiate(&made, captured, 0);
    if (captured) cudaGraphDestroy(captured);
    *graph = made;
    return static_cast<int32_t>(code);
  });
  end_side_stream();
  return ended;
}

int32_t launch_graph(int32_t device, void* graph) {
  return on_device(device, [&](cudaStream_t stream) {
    return static_cast<int32_t>(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream));
  });
}

void free_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

int32_t sample(int32_t device, const SamplePass* pass) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_sample(*pass, kMaxSweepThreads, stream); });
}

int32_t draft(int32_t device, const DraftPass* pass) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_draft(*pass, kMaxSweepThreads, stream); });
}

int32_t move_slots(int32_t device, const SlotMoves* moves) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_move_slots(*moves, stream); });
}

int32_t verify(int32_t device, const VerifyPass* pass) {
  return on_device(device, [&](cudaStream_t stream) { return cuda::launch_verify(*pass, kMaxVerifyThreads, stream); });
}

}  // namespace

}  // namespace specdec::kernels

extern "C" __attribute__((visibility("default"))) const specdec::kernels::CudaLibrary* specdec_cuda_library() {
  using namespace specdec::kernels;
  static const CudaLibrary library = {.version = kCudaLibraryVersion,
                                      .device_count = device_count,
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
                                      .nccl_group = cuda::nccl_group};
  return &library;
}
