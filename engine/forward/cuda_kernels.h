// Launches our own CUDA kernels on tensors of one 16-bit dtype and device. Failures are thrown by
// kernels::throw_cuda_error().
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "engine/kernels/cuda.h"

namespace specdec::model {

class CudaKernels {
 public:
  // Prepares launches on tensors with the dtype and device of `like`. The library must outlive this object. With
  // `exact`, the bits of a product's row never depend on the number of rows. Without `exact`, they may depend on it in
  // products of more than kernels::kMostNarrowRows rows, which are then faster.
  CudaKernels(const kernels::CudaLibrary& library, const at::Tensor& like, bool exact);

  // out = x weightᵀ + bias, with the options of kernels::RowsProduct. n and out_column select a part of a wider `out`.
  struct Product {
    const at::Tensor &x, &weight, &bias, &out;
    const at::Tensor* order = nullptr;  // order of the inputs, if quantised by group (kernels/quantised_matrix.h)
    const at::Tensor *up = nullptr, *up_bias = nullptr, *residual = nullptr;
    int64_t n = 0, out_column = 0;
    // If given and 0 on the device, the product may be skipped (kernels::PagedPass::live).
    const int32_t* live = nullptr;
  };
  void multiply(const Product& product) const;
  // Computes queries, keys and values next to each other, in one product if their weights are adjacent in memory.
  struct Projection {
    const at::Tensor &q, &k, &v, &q_bias, &k_bias, &v_bias;
    const at::Tensor& order;  // see Product::order
    const int32_t* live = nullptr;
  };
  void project(const at::Tensor& x, const Projection& weights, const at::Tensor& out) const;
  void norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) const;
  void gather(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out) const;
  void copy(const at::Tensor& from, const at::Tensor& to) const;  // same size, both contiguous
  void prepare(const kernels::PagedPass& pass, const kernels::PagedHeads& heads) const;
  void attend(const kernels::PagedPass& pass, const kernels::PagedLayer& layer) const;

  const kernels::CudaLibrary& library() const { return library_; }
  int32_t device() const { return device_; }
  // Returns the bytes of memory that a decoder's kernels allocate at the first wide product
  // (CudaLibrary::wide_product).
  static int64_t wide_bytes(int64_t intermediate_size, at::ScalarType dtype);

 private:
  bool multiply_wide(const Product& product, kernels::RowsProduct call) const;
  bool launch_wide(const kernels::RowsProduct& call) const;
  void check(int32_t code, const char* what) const;

  const kernels::CudaLibrary& library_;
  kernels::CudaDtype dtype_;
  int32_t device_;
  bool exact_;
  at::TensorOptions options_;
  // Memory for wide products. second_ holds the product with `up` (Product::up). Both are allocated when they are first
  // needed, which is before a pass is captured as a graph.
  mutable at::Tensor workspace_, second_;
};

// Returns the address of a tensor's data, or null for an undefined tensor.
inline const void* data(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

}  // namespace specdec::model
