#include "tests/kernels/cudart/cudart.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

namespace specdec::cudart {
namespace {

constexpr int kDevices = 2;
constexpr size_t kMaxSharedBytes = 48 << 10;  // of a launch without opt-in

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
  std::vector<Work> work;
};
struct Stream {
  int device = 0;
  bool waits_for_legacy = true;  // not created with cudaStreamNonBlocking
  std::optional<Capture> capture;
};
using Graph = std::vector<Work>;

struct Runtime {
  std::mutex mutex;
  std::map<cudaStream_t, std::unique_ptr<Stream>> streams;
  std::map<cudaEvent_t, bool> events;  // whether it was last recorded in a capture
  std::map<const void*, std::unique_ptr<Graph>> graphs;
  std::map<const void*, std::string> kernels;
  std::map<std::string, cudaError_t> refusals;
  std::vector<Work> started, captured;
};
Runtime& runtime() {
  static Runtime all;
  return all;
}

// What the runtime keeps for each thread.
struct Thread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};
Thread& thread() {
  thread_local Thread own;
  return own;
}

bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

Stream* find(cudaStream_t stream) {
  const auto found = runtime().streams.find(stream);
  return found == runtime().streams.end() ? nullptr : found->second.get();
}

// A call of the function `name`. Locks the runtime and keeps the last error of the thread.
template <class F>
cudaError_t call(const char* name, const F& f) {
  const std::lock_guard lock(runtime().mutex);
  const auto refusal = runtime().refusals.find(name);
  cudaError_t code = cudaSuccess;
  if (refusal != runtime().refusals.end()) {
    code = refusal->second;
    runtime().refusals.erase(refusal);
  } else {
    code = f();
  }
  if (code != cudaSuccess) thread().last_error = code;
  return code;
}

// A use of the legacy stream, which waits for all streams that were not created as non-blocking.
cudaError_t use_legacy() {
  cudaError_t code = cudaSuccess;
  for (auto& [handle, stream] : runtime().streams) {
    if (!stream->capture || !stream->waits_for_legacy || stream->device != thread().device) continue;
    stream->capture->valid = false;
    code = cudaErrorStreamCaptureImplicit;
  }
  return code;
}

// A call that may be unsafe during a capture (cudaThreadExchangeStreamCaptureMode).
cudaError_t call_unsafe() {
  cudaError_t code = cudaSuccess;
  if (thread().mode == cudaStreamCaptureModeRelaxed) return code;
  for (auto& [handle, stream] : runtime().streams) {
    if (!stream->capture) continue;
    const bool own =
        stream->capture->thread == std::this_thread::get_id() && stream->capture->mode != cudaStreamCaptureModeRelaxed;
    const bool others =
        thread().mode == cudaStreamCaptureModeGlobal && stream->capture->mode == cudaStreamCaptureModeGlobal;
    if (!own && !others) continue;
    stream->capture->valid = false;
    code = cudaErrorStreamCaptureUnsupported;
  }
  return code;
}

// Waits for a stream or asks whether it is idle.
cudaError_t await(cudaStream_t handle) {
  if (is_legacy(handle)) return use_legacy();
  Stream* const stream = find(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (!stream->capture) return cudaSuccess;
  stream->capture->valid = false;
  return cudaErrorStreamCaptureUnsupported;
}

// Starts work on a stream, or adds it to the stream's capture.
cudaError_t start(std::vector<Work> work, cudaStream_t handle) {
  for (Work& one : work) one.stream = handle, one.device = thread().device;
  std::vector<Work>* list = &runtime().started;
  if (is_legacy(handle)) {
    if (const cudaError_t code = use_legacy()) return code;
  } else {
    Stream* const stream = find(handle);
    if (!stream || stream->device != thread().device) return cudaErrorInvalidResourceHandle;
    if (stream->capture && !stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture) list = &stream->capture->work;
  }
  list->insert(list->end(), work.begin(), work.end());
  return cudaSuccess;
}

uintptr_t last_handle = 0x1000;
template <class Handle>
Handle new_handle() {
  return reinterpret_cast<Handle>(last_handle += 0x10);
}

cudaError_t end_capture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  Stream* const stream = find(handle);
  if (!stream) return cudaErrorInvalidValue;
  if (!stream->capture) {
    return std::ranges::any_of(runtime().streams, [](const auto& one) { return one.second->capture.has_value(); })
               ? cudaErrorStreamCaptureUnmatched
               : cudaErrorIllegalState;
  }
  if (stream->capture->mode != cudaStreamCaptureModeRelaxed && stream->capture->thread != std::this_thread::get_id()) {
    stream->capture->valid = false;
    return cudaErrorStreamCaptureWrongThread;
  }
  const Capture ended = *std::exchange(stream->capture, std::nullopt);
  if (!ended.valid) return cudaErrorStreamCaptureInvalidated;
  runtime().captured = ended.work;
  *graph = new_handle<cudaGraph_t>();
  runtime().graphs[*graph] = std::make_unique<Graph>(ended.work);
  return cudaSuccess;
}

}  // namespace

std::vector<Work>& started() { return runtime().started; }
const std::vector<Work>& captured() { return runtime().captured; }
void refuse(const std::string& function, cudaError_t code) { runtime().refusals[function] = code; }
int64_t captures() {
  return std::ranges::count_if(runtime().streams, [](const auto& one) { return one.second->capture.has_value(); });
}
int64_t graphs() { return static_cast<int64_t>(runtime().graphs.size()); }

}  // namespace specdec::cudart

using namespace specdec::cudart;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(thread().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return thread().last_error; }
const char* cudaGetErrorString(cudaError_t code) { return code == cudaSuccess ? "no error" : "refused"; }
const char* cudaGetErrorName(cudaError_t code) { return code == cudaSuccess ? "cudaSuccess" : "cudaError"; }

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&] {
    *count = kDevices;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  *device = thread().device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  return call("cudaDeviceGetAttribute", [&] {
    if (attribute != cudaDevAttrComputeCapabilityMajor) return cudaErrorNotSupported;
    *value = 9;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&] {
    if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
    thread().device = device;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  return call("cudaGetDeviceProperties", [&] {
    *properties = {};
    properties->major = 9;
    return cudaSuccess;
  });
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call("cudaMemGetInfo", [&] {
    *free = 1 << 20, *total = 2 << 20;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return call("cudaStreamCreateWithPriority", [&] {
    *stream = new_handle<cudaStream_t>();
    runtime().streams[*stream] = std::make_unique<Stream>(
        Stream{.device = thread().device, .waits_for_legacy = (flags & cudaStreamNonBlocking) == 0, .capture = {}});
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&] { return await(stream); });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", [&] { return await(stream); });
}
cudaError_t cudaDeviceSynchronize() { return call("cudaDeviceSynchronize", call_unsafe); }

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&] {
    if (is_legacy(handle)) return cudaErrorStreamCaptureUnsupported;
    Stream* const stream = find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorIllegalState;
    stream->capture = Capture{.mode = mode, .thread = std::this_thread::get_id(), .valid = true, .work = {}};
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&] { return end_capture(stream, graph); });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&] {
    *status = cudaStreamCaptureStatusNone;
    if (is_legacy(handle)) return use_legacy();
    const Stream* const stream = find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture)
      *status = stream->capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread().mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return call("cudaGraphInstantiate", [&] {
    *executable = nullptr;
    const auto found = runtime().graphs.find(graph);
    if (found == runtime().graphs.end()) return cudaErrorInvalidValue;
    *executable = new_handle<cudaGraphExec_t>();
    runtime().graphs[*executable] = std::make_unique<Graph>(*found->second);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", [&] { return runtime().graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return call("cudaGraphExecDestroy",
              [&] { return runtime().graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&] {
    const auto found = runtime().graphs.find(graph);
    if (found == runtime().graphs.end()) return cudaErrorInvalidValue;
    std::vector<Work> work = {{.name = "graph"}};
    work.insert(work.end(), found->second->begin(), found->second->end());
    return start(std::move(work), stream);
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  return call("cudaLaunchKernelExC", [&] {
    const auto found = runtime().kernels.find(kernel);
    if (found == runtime().kernels.end()) return cudaErrorInvalidDeviceFunction;
    const dim3 &grid = config->gridDim, &block = config->blockDim;
    const uint64_t threads = uint64_t{block.x} * block.y * block.z;
    if (uint64_t{grid.x} * grid.y * grid.z == 0 || threads == 0 || threads > 1024) return cudaErrorInvalidConfiguration;
    if (config->dynamicSmemBytes > kMaxSharedBytes) return cudaErrorInvalidValue;
    Work work{.name = found->second};
    for (unsigned i = 0; i < config->numAttrs; ++i)
      work.early = work.early || (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                                  config->attrs[i].val.programmaticStreamSerializationAllowed != 0);
    return start({work}, config->stream);
  });
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&] { return start({{.name = "copy"}}, stream); });
}
cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) {
  return call("cudaMemcpy", [&] {
    const cudaError_t code = call_unsafe();
    return code == cudaSuccess ? start({{.name = "copy"}}, cudaStreamLegacy) : code;
  });
}
cudaError_t cudaMalloc(void** memory, size_t) {
  return call("cudaMalloc", [&] {
    *memory = nullptr;
    return call_unsafe();
  });
}
cudaError_t cudaFree(void*) { return call("cudaFree", call_unsafe); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call("cudaEventCreateWithFlags", [&] {
    *event = new_handle<cudaEvent_t>();
    runtime().events[*event] = false;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return call("cudaEventRecord", [&] {
    if (is_legacy(handle)) return use_legacy();
    const Stream* const stream = find(handle);
    if (!stream || !runtime().events.contains(event)) return cudaErrorInvalidResourceHandle;
    runtime().events[event] = stream->capture.has_value();
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&] {
    const cudaError_t code = call_unsafe();
    return code != cudaSuccess && runtime().events[event] ? cudaErrorCapturedEvent : code;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy",
              [&] { return runtime().events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

// nvcc's code registers its kernels by these when a program starts.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  runtime().kernels[host] = name;
}
}
