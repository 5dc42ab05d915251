// Tests the function table of libspecdec_cuda.so, with LibTorch's streams, over a CUDA runtime that computes nothing
// (cudart.h): where its work goes, and that captures leave the thread as they found it.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/cudart/cudart.h"

extern "C" const specdec::kernels::CudaLibrary* specdec_cuda_library();

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(DeviceIndex));  // no header has it
}

namespace specdec::kernels {

void* cuda::nccl_group(void*, int32_t, int32_t, int64_t, char*, int64_t) { return nullptr; }

namespace {

using cudart::Work;

const CudaLibrary& library() { return *specdec_cuda_library(); }

// What libtorch_cuda tells libc10_cuda when it is loaded: whether somebody has used a device.
const bool is_told = [] {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  return true;
}();

alignas(16) char memory[64];  // stands for the arrays, which nothing reads

// A call of each function that gives the device work, and the names of the work.
struct Call {
  std::function<int32_t(int32_t device)> run;
  std::vector<std::string> names;
};
std::vector<Call> calls() {
  static float* const numbers = reinterpret_cast<float*>(memory);
  static int32_t* const ids = reinterpret_cast<int32_t*>(memory);
  static const CudaDtype dtype = CudaDtype::kBFloat16;
  static const RowsProduct product = {.rows = 1, .n = 8, .k = 8, .x = memory, .weight = memory, .out = memory};
  static const RowsProduct int8 = {
      .rows = 1, .n = 8, .k = 8, .x = memory, .weight = memory, .out = memory, .packing = Packing::kInt8};
  static const DequantisedMatrix matrix = {
      .n = 8, .k = 32, .weight = memory, .packing = Packing::kE4m3, .group = 32, .out = memory};
  static const PagedPass pass = {.num_rows = 1, .num_tiles = 1, .num_splits = 1, .heads = 1, .kv_heads = 1, .d = 8};
  static const PagedHeads heads = {};
  static const PagedLayer layer = {.k = memory, .v = memory};
  static const SamplePass sample = {.num_rows = 1, .vocab = 4};
  static const DraftPass draft = {.num_rows = 1, .vocab = 4};
  static const SlotMoves moves = {.count = 1, .planes = 1, .d = 8};
  static const VerifyPass verify = {
      .scores = reinterpret_cast<VerifyScore*>(memory), .num_tasks = 1, .num_nodes = 1, .vocab = 4};
  return {
      {[](int32_t d) { return library().rms_norm(dtype, d, memory, memory, 0, 1, 8, memory); }, {"rms_norm_rows"}},
      {[](int32_t d) { return library().silu_mul(dtype, d, memory, memory, 8, memory); }, {"silu_mul_elements"}},
      {[](int32_t d) { return library().rope(dtype, d, memory, numbers, numbers, 1, 1, 8, memory); }, {"rope_pairs"}},
      {[](int32_t d) { return library().gather_rows(dtype, d, memory, ids, 1, 8, memory); }, {"gather"}},
      {[](int32_t d) { return library().copy(d, memory, memory, 8); }, {"copy"}},
      {[](int32_t d) { return library().rows_product(dtype, d, &product); }, {"rows_linear_tiles"}},
      {[](int32_t d) { return library().rows_product(dtype, d, &int8); }, {"rows_linear_quantised_tiles"}},
      {[](int32_t d) { return library().dequantise(dtype, d, &matrix); }, {"dequantise_units"}},
      {[](int32_t d) { return library().prepare_heads(dtype, d, &pass, &heads); }, {"prepare"}},
      {[](int32_t d) { return library().paged_attention(dtype, d, &pass, &layer); },
       {"write_slots", "attend_split", "merge_splits"}},
      {[](int32_t d) { return library().sample(d, &sample); }, {"sample_rows"}},
      {[](int32_t d) { return library().draft(d, &draft); }, {"draft_rows"}},
      {[](int32_t d) { return library().move_slots(d, &moves); }, {"move_numbers"}},
      {[](int32_t d) { return library().verify(d, &verify); }, {"score_nodes", "verify_tasks"}},
  };
}

// Runs all calls and returns the names of their work in order.
std::vector<std::string> run_all(int32_t device) {
  std::vector<std::string> names;
  for (const Call& call : calls()) {
    EXPECT_EQ(call.run(device), 0) << call.names[0];
    names.insert(names.end(), call.names.begin(), call.names.end());
  }
  return names;
}

void expect_work(const std::vector<Work>& found, const std::vector<std::string>& names, cudaStream_t stream,
                 int device) {
  ASSERT_EQ(found.size(), names.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NE(found[i].name.find(names[i]), std::string::npos) << found[i].name << ", expected " << names[i];
    EXPECT_EQ(found[i].stream, stream) << names[i];
    EXPECT_EQ(found[i].device, device) << names[i];
  }
}

cudaStream_t current(int32_t device = 0) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

// Expects that the thread is as it was before the capture: on `stream`, where work starts, and without an error that
// LibTorch would take for that of its next kernel.
void expect_no_capture(cudaStream_t stream) {
  EXPECT_EQ(cudart::captures(), 0);
  EXPECT_EQ(cudart::graphs(), 0);
  EXPECT_EQ(current(), stream);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  cudart::started().clear();
  EXPECT_EQ(calls()[0].run(0), 0);
  expect_work(cudart::started(), {"rms_norm_rows"}, stream, 0);
}

// Products prefetch their weights while the previous kernel still runs. Other kernels read what that kernel writes.
TEST(CudaLibrary, OnlyProductsStartEarly) {
  cudart::started().clear();
  run_all(0);
  int64_t early = 0;
  for (const Work& work : cudart::started()) {
    const bool product = work.name.find("rows_linear") != std::string::npos;
    EXPECT_EQ(work.early, product) << work.name;
    early += work.early ? 1 : 0;
  }
  EXPECT_EQ(early, 2);
  // The kernel before a product may have written its weights.
  const RowsProduct fresh = {
      .rows = 1, .n = 8, .k = 8, .x = memory, .weight = memory, .out = memory, .new_weights = true};
  cudart::started().clear();
  EXPECT_EQ(library().rows_product(CudaDtype::kBFloat16, 0, &fresh), 0);
  ASSERT_EQ(cudart::started().size(), 1u);
  EXPECT_FALSE(cudart::started()[0].early);
}

// Makes one of LibTorch's own streams current, as its users may.
struct OtherStream {
  c10::cuda::CUDAStreamGuard guard{c10::cuda::getStreamFromPool(false, 0)};
  cudaStream_t stream = current();
};

TEST(CudaLibrary, WorkGoesToTheCurrentStreamOfItsDevice) {
  ASSERT_EQ(library().device_count(), 2);
  cudart::started().clear();
  const std::vector<std::string> names = run_all(0);
  expect_work(cudart::started(), names, nullptr, 0);
  const OtherStream other;
  for (const int32_t device : {0, 1}) {
    cudart::started().clear();
    run_all(device);
    expect_work(cudart::started(), names, device == 0 ? other.stream : nullptr, device);
  }
  int device = -1;
  cudaGetDevice(&device);
  EXPECT_EQ(device, 0);
}

void expect_capture(int32_t device, cudaStream_t outer) {
  cudart::started().clear();
  ASSERT_EQ(library().begin_capture(device), 0);
  const cudaStream_t side = current(device);
  EXPECT_NE(side, outer);
  const std::vector<std::string> names = run_all(device);
  EXPECT_TRUE(cudart::started().empty());
  void* graph = nullptr;
  ASSERT_EQ(library().end_capture(device, &graph), 0);
  ASSERT_TRUE(graph);
  expect_work(cudart::captured(), names, side, device);
  EXPECT_EQ(current(device), outer);
  EXPECT_EQ(cudart::captures(), 0);
  EXPECT_EQ(cudart::graphs(), 1);
  std::vector<std::string> launched = {"graph"};
  launched.insert(launched.end(), names.begin(), names.end());
  for (int again = 0; again < 2; ++again) {
    cudart::started().clear();
    EXPECT_EQ(library().launch_graph(device, graph), 0);
    expect_work(cudart::started(), launched, outer, device);
  }
  library().free_graph(graph);
  EXPECT_EQ(cudart::graphs(), 0);
}

TEST(CudaLibrary, ACaptureTakesAllWorkAndLeavesTheStream) {
  expect_capture(0, nullptr);
  expect_capture(1, nullptr);
  const OtherStream other;
  expect_capture(0, other.stream);
  expect_no_capture(other.stream);
}

TEST(CudaLibrary, ARefusedBeginLeavesNothing) {
  const OtherStream other;
  cudart::refuse("cudaStreamBeginCapture", cudaErrorNotSupported);
  EXPECT_EQ(library().begin_capture(0), static_cast<int32_t>(cudaErrorNotSupported));
  expect_no_capture(other.stream);
}

TEST(CudaLibrary, ASecondBeginIsRefusedAndChangesNothing) {
  const OtherStream other;
  ASSERT_EQ(library().begin_capture(0), 0);
  const cudaStream_t side = current();
  EXPECT_EQ(library().begin_capture(0), static_cast<int32_t>(cudaErrorIllegalState));
  EXPECT_EQ(current(), side);
  const std::vector<std::string> names = run_all(0);
  void* graph = nullptr;
  ASSERT_EQ(library().end_capture(0, &graph), 0);
  expect_work(cudart::captured(), names, side, 0);
  library().free_graph(graph);
  expect_no_capture(other.stream);
}

// What CUDA forbids during a capture, and the code with which it refuses it.
struct Illegal {
  const char* name;
  std::function<int32_t()> run;
  cudaError_t code;
};
TEST(CudaLibrary, ACaptureWithAnIllegalCallFailsAndTheNextLaunchWorks) {
  cudaEvent_t event = nullptr, captured_event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&captured_event, 0), cudaSuccess);
  void* room = nullptr;
  const std::vector<Illegal> all = {
      {"synchronize", [] { return library().synchronize(0); }, cudaErrorStreamCaptureUnsupported},
      {"cudaMalloc", [&] { return static_cast<int32_t>(cudaMalloc(&room, 8)); }, cudaErrorStreamCaptureUnsupported},
      {"cudaMemcpy", [] { return static_cast<int32_t>(cudaMemcpy(memory, memory, 8, cudaMemcpyDeviceToHost)); },
       cudaErrorStreamCaptureUnsupported},
      {"cudaDeviceSynchronize", [] { return static_cast<int32_t>(cudaDeviceSynchronize()); },
       cudaErrorStreamCaptureUnsupported},
      {"cudaEventQuery", [&] { return static_cast<int32_t>(cudaEventQuery(event)); },
       cudaErrorStreamCaptureUnsupported},
      {"cudaEventSynchronize of the capture",
       [&] {
         EXPECT_EQ(cudaEventRecord(captured_event, current()), cudaSuccess);
         return static_cast<int32_t>(cudaEventSynchronize(captured_event));
       },
       cudaErrorCapturedEvent},
  };
  for (const bool pool : {false, true}) {
    std::optional<OtherStream> other;
    if (pool) other.emplace();
    const cudaStream_t outer = current();
    for (const Illegal& illegal : all) {
      SCOPED_TRACE(illegal.name);
      ASSERT_EQ(library().begin_capture(0), 0);
      EXPECT_EQ(calls()[0].run(0), 0);
      EXPECT_EQ(illegal.run(), static_cast<int32_t>(illegal.code));
      EXPECT_EQ(calls()[0].run(0), static_cast<int32_t>(cudaErrorStreamCaptureInvalidated));
      void* graph = memory;
      EXPECT_EQ(library().end_capture(0, &graph), static_cast<int32_t>(cudaErrorStreamCaptureInvalidated));
      EXPECT_EQ(graph, nullptr);
      expect_no_capture(outer);
    }
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(captured_event), cudaSuccess);
}

TEST(CudaLibrary, ARefusedEndLeavesNothing) {
  const OtherStream other;
  ASSERT_EQ(library().begin_capture(0), 0);
  cudart::refuse("cudaGraphInstantiate", cudaErrorMemoryAllocation);
  void* graph = memory;
  EXPECT_EQ(library().end_capture(0, &graph), static_cast<int32_t>(cudaErrorMemoryAllocation));
  EXPECT_EQ(graph, nullptr);
  expect_no_capture(other.stream);
  EXPECT_NE(library().end_capture(0, &graph), 0) << "nothing is being captured";
  expect_no_capture(other.stream);
}

TEST(CudaLibrary, OtherThreadsMayDoWhatACaptureForbids) {
  ASSERT_EQ(library().begin_capture(0), 0);
  std::thread([] {
    void* room = nullptr;
    EXPECT_EQ(cudaMalloc(&room, 8), cudaSuccess);
    EXPECT_EQ(library().synchronize(0), 0);
    cudart::started().clear();
    const std::vector<std::string> names = run_all(0);
    expect_work(cudart::started(), names, nullptr, 0);
  }).join();
  void* graph = nullptr;
  EXPECT_EQ(library().end_capture(0, &graph), 0);
  EXPECT_TRUE(cudart::captured().empty());
  library().free_graph(graph);
  expect_no_capture(nullptr);
}

// The runtime keeps the last error of a thread, and LibTorch asks for it after each of its own kernels.
TEST(CudaLibrary, AFailedCallLeavesNoErrorForLibTorch) {
  cudart::refuse("cudaLaunchKernelExC", cudaErrorLaunchOutOfResources);
  EXPECT_EQ(calls()[0].run(0), static_cast<int32_t>(cudaErrorLaunchOutOfResources));
  expect_no_capture(nullptr);
  cudart::refuse("cudaMemcpyAsync", cudaErrorInvalidValue);
  EXPECT_EQ(library().copy(0, memory, memory, 8), static_cast<int32_t>(cudaErrorInvalidValue));
  expect_no_capture(nullptr);
  EXPECT_NE(calls()[0].run(7), 0) << "there is no such device";
  expect_no_capture(nullptr);
}

}  // namespace
}  // namespace specdec::kernels
