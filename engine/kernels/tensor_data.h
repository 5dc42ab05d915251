// Gives operations access to the numbers of tensors as plain pointers.
#pragma once

#include <ATen/ATen.h>

#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels {

// Calls f<float>() or f<cpu::Bf16>() according to the dtype of x.
template <class F>
void by_dtype(const at::Tensor& x, const F& f) {
  x.scalar_type() == at::kFloat ? f.template operator()<float>() : f.template operator()<cpu::Bf16>();
}

// Returns the address of the first number of x, or null if x is undefined.
template <class T>
const T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.const_data_ptr()) : nullptr;
}

// Runs f(memory), where memory is `out` itself if it is contiguous, else a buffer that is then copied to `out`.
template <class F>
void into(const at::Tensor& out, const F& f) {
  const at::Tensor memory = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  f(memory);
  if (!memory.is_same(out)) out.copy_(memory);
}

}  // namespace specdec::kernels
