// Products of rows with a matrix of a decoder on a CPU, whatever layout the matrix has.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/kernels/block_quantised.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/weights/weights.h"

namespace specdec::model {

namespace cpu = kernels::cpu;

// T is the type of embeddings, norms and biases. Each thread has an object of its own.
template <class T>
class RowProduct {
 public:
  // Input values [count, width] of a product.
  struct Input {
    const float* values;
    int64_t width, count;
  };
  struct Matrix {
    const at::Tensor& weight;  // [outputs, inputs]
    const at::Tensor* bias = nullptr;
  };
  // Output values [count, width], which a product overwrites or, with `add`, adds to.
  struct Output {
    float* values;
    int64_t width;
    bool add = false;
  };

  // Returns the number of floats of one thread's workspace for products of `rows` rows with up to `width` inputs.
  static int64_t workspace(const Decoder& decoder, int64_t rows, int64_t width) {
    if (decoder.weights.lm_head.scalar_type() == at::kChar)
      return std::min(rows, cpu::kFixedRows) * cpu::fixed_groups(width) * kFixedFloats;
    return decoder.config.quantisation.method == Quantisation::Method::kGguf ? split_floats(rows, width) : 0;
  }
  // Returns the same for a decoder from a GGUF file.
  static int64_t split_floats(int64_t rows, int64_t width) {
    return std::min(rows, kSplitRows) * (width / cpu::kBlockInputs + 1) * kSplitFloats;
  }

  RowProduct(const cpu::Kernels<T>& kernels, float* workspace) : kernels_(kernels), workspace_(workspace) {}

  // Computes columns [columns.first, columns.second) of input · weightᵀ + bias.
  void run(const Input& in, const Matrix& matrix, std::pair<int64_t, int64_t> columns, const Output& out) const {
    const at::Tensor& w = matrix.weight;
    const auto call = [&]<class S>(const S* values) {
      return cpu::LinearCall<S, T>{.x = in.values,
                                   .ldx = in.width,
                                   .rows = in.count,
                                   .w = values,
                                   .k = in.width,
                                   .n_begin = columns.first,
                                   .n_end = columns.second,
                                   .bias = matrix.bias && matrix.bias->defined()
                                               ? static_cast<const T*>(matrix.bias->const_data_ptr())
                                               : nullptr,
                                   .out = out.values,
                                   .ldo = out.width,
                                   .add = out.add,
                                   .n = w.size(0)};
    };
    switch (w.scalar_type()) {
      case at::kChar: {
        auto product = call(static_cast<const cpu::Int8*>(w.const_data_ptr()));
        product.fixed = reinterpret_cast<cpu::FixedInputs*>(workspace_);
        return in_pieces(product, cpu::kFixedRows, kernels_.linear_int8);
      }
      case at::ScalarType::Bits8: {
        auto product = call(static_cast<const cpu::Blocks*>(w.const_data_ptr()));
        product.split = reinterpret_cast<cpu::SplitInputs*>(workspace_);
        product.kind = kernels::block_kind_of(w);
        return in_pieces(product, kSplitRows, kernels_.linear_blocks);
      }
      case at::kByte:
        return kernels_.linear_packed(call(static_cast<const cpu::Packed<T>*>(w.const_data_ptr())));
      default:
        return kernels_.linear(call(static_cast<const T*>(w.const_data_ptr())));
    }
  }

 private:
  static constexpr int64_t kFixedFloats = sizeof(cpu::FixedInputs) / sizeof(float),
                           kSplitFloats = sizeof(cpu::SplitInputs) / sizeof(float);
  // Maximum number of rows whose inputs are kept as bytes while the weights of a block are in a cache.
  static constexpr int64_t kSplitRows = 128;

  // Computes a product whose inputs are converted to integers first, at most `most` rows at a time. Every thread
  // converts all inputs itself, which is cheaper than a barrier.
  template <class Call>
  static void in_pieces(Call call, int64_t most, void (*kernel)(const Call&)) {
    for (int64_t left = call.rows; left > 0;
         left -= call.rows, call.x += call.rows * call.ldx, call.out += call.rows * call.ldo) {
      call.rows = std::min(left, most);
      kernel(call);
    }
  }

  const cpu::Kernels<T>& kernels_;
  float* workspace_;
};

}  // namespace specdec::model
