// Our own CUDA kernels on tensors of one 16-bit dtype and device. Failures are those of kernels::throw_cuda_error().
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "engine/kernels/cuda.h"

namespace specdec::model {

class CudaKernels {
 public:
  // For tensors of the dtype and device of `like`. The library must outlive this object.
  CudaKernels(const kernels::CudaLibrary& library, const at::Tensor& like);

  // out = x weightᵀ + bias, with what RowsProduct adds to it. n and out_column are given for a part of a wider `out`.
  struct Product {
    const at::Tensor &x, &weight, &bias, &out;
    const at::Tensor* order = nullptr;  // of the inputs, if quantised by group (kernels/quantised_matrix.h)
    const at::Tensor *up = nullptr, *up_bias = nullptr, *residual = nullptr;
    int64_t n = 0, out_column = 0;
    const int32_t* live = nullptr;  // kernels::PagedPass::live
  };
  void multiply(const Product& product) const;
  // Writes queries, keys and values side by side, in one product if the weights lie one after the other.
  struct Projection {
    const at::Tensor &q, &k, &v, &q_bias, &k_bias, &v_bias;
    const at::Tensor& order;  // as Product::order
    const int32_t* live = nullptr;
  };
  void project(const at::Tensor& x, const Projection& weights, const at::Tensor& out) const;
  void norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) const;
  void gather(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out) const;
  void copy(const at::Tensor& from, const at::Tensor& to) const;  // of the same size, both contiguous
  void prepare(const kernels::PagedPass& pass, const kernels::PagedHeads& heads) const;
  void attend(const kernels::PagedPass& pass, const kernels::PagedLayer& layer) const;

  const kernels::CudaLibrary& library() const { return library_; }
  int32_t device() const { return device_; }

 private:
  void check(int32_t code, const char* what) const;

  const kernels::CudaLibrary& library_;
  kernels::CudaDtype dtype_;
  int32_t device_;
};

// Returns where a tensor's numbers begin, and null for an undefined one.
inline const void* data(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

}  // namespace specdec::model
