// Products of many rows, by cuBLASLt. LibTorch brings this library along, so it is looked up at run time: a LibTorch
// without it only makes wide passes slower.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

// The functions of cuBLASLt that are used here. All are null if the library is missing.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) free_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) free_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) free_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  bool complete = false;

  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* const handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!handle) return;
    complete = true;
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      complete = complete && function != nullptr;
    };
    find(create, "cublasLtCreate");
    find(matmul, "cublasLtMatmul");
    find(choose, "cublasLtMatmulAlgoGetHeuristic");
    find(make_operation, "cublasLtMatmulDescCreate");
    find(free_operation, "cublasLtMatmulDescDestroy");
    find(set_operation, "cublasLtMatmulDescSetAttribute");
    find(make_layout, "cublasLtMatrixLayoutCreate");
    find(free_layout, "cublasLtMatrixLayoutDestroy");
    find(make_preference, "cublasLtMatmulPreferenceCreate");
    find(free_preference, "cublasLtMatmulPreferenceDestroy");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
  }
};

const Library& library() {
  static const Library one;
  return one;
}

uintptr_t address(const void* at) { return reinterpret_cast<uintptr_t>(at); }

// Returns the largest power of two, at most 256, that divides all the addresses of which `bits` is the union.
uint32_t alignment_of(uintptr_t bits) { return static_cast<uint32_t>((bits | 256) & (~(bits | 256) + 1)); }

// Returns the alignment of all matrices of a product and of all their rows.
uint32_t alignment_of(const RowsProduct& p) {
  const int64_t rows = 2 * (p.k | p.stride | (p.residual ? p.n : 0));  // the distances of rows in bytes
  return alignment_of(address(p.x) | address(p.weight) | address(p.out) | address(p.residual) |
                      static_cast<uintptr_t>(rows));
}

// Returns whether the product is added to the matrix that `out` holds.
bool adds_in_place(const RowsProduct& p) { return p.residual == p.out && p.stride == p.n; }

// What cuBLASLt needs to know of products of one shape, and the algorithm that it chose. cuBLASLt has columns where
// this project has rows: out is [n, rows] there, with columns of `stride` numbers, and weight [k, n] is transposed.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, residual = nullptr, out = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};
  bool usable = false;

  Plan(cublasLtHandle_t handle, CudaDtype dtype, const RowsProduct& p, int64_t workspace_bytes) {
    const cudaDataType_t type = dtype == CudaDtype::kHalf ? CUDA_R_16F : CUDA_R_16BF;
    const auto rows = static_cast<uint64_t>(p.rows), n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
    const Library& lt = library();
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t adds_bias = CUBLASLT_EPILOGUE_BIAS;
    bool good = lt.make_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
                set(CUBLASLT_MATMUL_DESC_TRANSA, transposed) && lt.make_layout(&weight, type, k, n, p.k) == 0 &&
                lt.make_layout(&x, type, k, rows, p.k) == 0 && lt.make_layout(&residual, type, n, rows, p.n) == 0 &&
                lt.make_layout(&out, type, n, rows, p.stride) == 0;
    if (good && p.bias) good = set(CUBLASLT_MATMUL_DESC_EPILOGUE, adds_bias) && set_bias(p.bias);
    if (good) usable = choose(handle, p, workspace_bytes);
  }
  ~Plan() {
    const Library& lt = library();
    for (const cublasLtMatrixLayout_t layout : {weight, x, residual, out})
      if (layout) lt.free_layout(layout);
    if (operation) lt.free_operation(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Returns the layout of the matrix that is added to the product. It must be that of `out` if both are one matrix.
  cublasLtMatrixLayout_t added(const RowsProduct& p) const { return p.residual && !adds_in_place(p) ? residual : out; }
  bool set_bias(const void* bias) { return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }

 private:
  template <class T>
  bool set(cublasLtMatmulDescAttributes_t what, const T& value) {
    return library().set_operation(operation, what, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  }
  bool choose(cublasLtHandle_t handle, const RowsProduct& p, int64_t workspace_bytes) {
    const Library& lt = library();
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt.make_preference(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      return lt.set_preference(preference, what, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
    };
    const uint32_t alignment = alignment_of(p);
    // Without this mask, partial sums of a divided k may be rounded to 16 bits before they are added.
    bool good = prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes)) &&
                prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      good = good && prefer(what, alignment);
    int found = 0;
    good = good && lt.choose(handle, operation, weight, x, added(p), out, preference, 1, &chosen, &found) ==
                       CUBLAS_STATUS_SUCCESS;
    lt.free_preference(preference);
    return good && found > 0 && chosen.state == CUBLAS_STATUS_SUCCESS;
  }
};

// The plans of one device.
struct Plans {
  cublasLtHandle_t handle = nullptr;
  bool failed = false;  // no handle could be made
  // The dtype; rows, n, k and stride; the alignment of the bias, 0 without one; what is added (0 nothing, 1 a matrix of
  // its own, 2 `out`); the alignment of the matrices; the size of the workspace.
  using Shape = std::tuple<CudaDtype, int64_t, int64_t, int64_t, int64_t, uint32_t, int, uint32_t, int64_t>;
  std::map<Shape, std::unique_ptr<Plan>> plans;

  Plan* find(CudaDtype dtype, const RowsProduct& p, int64_t workspace_bytes) {
    failed = failed || (!handle && library().create(&handle) != CUBLAS_STATUS_SUCCESS);
    if (failed) return nullptr;
    std::unique_ptr<Plan>& plan =
        plans[{dtype, p.rows, p.n, p.k, p.stride, p.bias ? alignment_of(address(p.bias)) : 0,
               p.residual ? (adds_in_place(p) ? 2 : 1) : 0, alignment_of(p), workspace_bytes}];
    if (!plan) plan = std::make_unique<Plan>(handle, dtype, p, workspace_bytes);
    return plan->usable ? plan.get() : nullptr;
  }
};

}  // namespace

int launch_wide_product(CudaDtype dtype, int32_t device, const RowsProduct& p, void* workspace, int64_t bytes,
                        Stream stream) {
  if (dtype == CudaDtype::kFloat || p.packing != Packing::kPlain || p.up || p.rows == 0) return kNotSupported;
  if (!library().complete) return kNotSupported;
  static std::mutex mutex;
  static std::map<int32_t, Plans> devices;  // with its handles, until the process ends
  const std::lock_guard lock(mutex);
  Plan* const plan = devices[device].find(dtype, p, bytes);
  if (!plan || (p.bias && !plan->set_bias(p.bias))) return kNotSupported;
  const float one = 1, beta = p.residual ? 1 : 0;
  const cublasStatus_t status =
      library().matmul(devices[device].handle, plan->operation, &one, p.weight, plan->weight, p.x, plan->x, &beta,
                       p.residual ? p.residual : p.out, plan->added(p), p.out, plan->out, &plan->chosen.algo, workspace,
                       static_cast<size_t>(bytes), stream);
  if (status == CUBLAS_STATUS_SUCCESS) return 0;
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? kNotSupported : static_cast<int>(code);
}

}  // namespace specdec::kernels::cuda
