// Stands in for cuBLASLt in tests of engine/kernels/cuda/nvidia/wide_product.cpp. It multiplies on the host, by the
// definition in cuBLASLt's documentation: D = op(A) op(B) + beta · C + bias, where matrices are stored by columns and
// the bias is added to each column. It refuses what these tests do not need.
#include "tests/kernels/cudart/cublaslt.h"

#include <cublasLt.h>

#include <cstring>
#include <vector>

namespace {

struct Layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t ld;
};
struct Operation {
  cublasOperation_t a = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

const Layout& of(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<const Layout*>(layout); }
const Operation& of(cublasLtMatmulDesc_t operation) { return *reinterpret_cast<const Operation*>(operation); }

float read(cudaDataType type, const void* at, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const uint16_t*>(at) + i, sizeof bits);
  if (type == CUDA_R_16F) {
    _Float16 half;
    std::memcpy(&half, &bits, sizeof half);
    return static_cast<float>(half);
  }
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

void write(cudaDataType type, void* at, int64_t i, float x) {
  uint16_t bits;
  if (type == CUDA_R_16F) {
    const auto half = static_cast<_Float16>(x);
    std::memcpy(&bits, &half, sizeof bits);
  } else {
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof wide);
    bits = static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  std::memcpy(static_cast<uint16_t*>(at) + i, &bits, sizeof bits);
}

}  // namespace

namespace specdec::cublaslt {

Counts& counts() {
  static Counts all;
  return all;
}

}  // namespace specdec::cublaslt

using specdec::cublaslt::counts;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
  if (ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *out = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, ld});
  ++counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  --counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *out = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  ++counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  --counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  Operation& own = *reinterpret_cast<Operation*>(operation);
  const auto set = [&](auto& member) {
    if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  if (what == CUBLASLT_MATMUL_DESC_TRANSA) return set(own.a);
  if (what == CUBLASLT_MATMUL_DESC_EPILOGUE) return set(own.epilogue);
  if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return set(own.bias);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  *out = reinterpret_cast<cublasLtMatmulPreference_t>(new uint64_t(256));  // cuBLASLt assumes this alignment by default
  ++counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<uint64_t*>(preference);
  --counts().alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    size_t bytes) {
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    if (bytes != sizeof counts().reductions) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&counts().reductions, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  uint32_t alignment = 0;
  if (bytes != sizeof alignment) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&alignment, value, bytes);
  *reinterpret_cast<uint64_t*>(preference) = alignment;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t* result, int* found) {
  ++counts().chosen;
  counts().alignment = *reinterpret_cast<uint64_t*>(preference);
  *result = {};
  *found = counts().refuses ? 0 : 1;
  return counts().refuses ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  const Layout &la = of(a_layout), &lb = of(b_layout), &lc = of(c_layout), &ld = of(d_layout);
  const Operation& own = of(operation);
  const bool turned = own.a == CUBLAS_OP_T;
  const uint64_t k = turned ? la.rows : la.cols;
  if ((turned ? la.cols : la.rows) != ld.rows || lb.rows != k || lb.cols != ld.cols || lc.rows != ld.rows ||
      lc.cols != ld.cols || (c == d && c_layout != d_layout))
    return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  counts().stream = stream;
  for (uint64_t j = 0; j < ld.cols; ++j)
    for (uint64_t i = 0; i < ld.rows; ++i) {
      const auto row = static_cast<int64_t>(i), column = static_cast<int64_t>(j);
      float sum = 0;
      for (int64_t l = 0; l < static_cast<int64_t>(k); ++l)
        sum += read(la.type, a, turned ? row * la.ld + l : l * la.ld + row) * read(lb.type, b, column * lb.ld + l);
      sum *= scale;
      if (kept != 0) sum += kept * read(lc.type, c, column * lc.ld + row);
      if (own.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += read(ld.type, own.bias, row);
      write(ld.type, d, column * ld.ld + row, sum);
    }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
