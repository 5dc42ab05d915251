// Small decoders with random weights whose passes run in the CUDA kernels, on fibers.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "engine/kernels/ops.h"
#include "engine/model/weights.h"
#include "tests/kernels/fibers/model/fiber_library.h"
#include "tests/model/toy_decoders.h"

namespace specdec::model {

// Returns the same decoder in a dtype, run by the kernels. kChar gives int8 products with bf16 beside them.
inline std::shared_ptr<Decoder> on_fibers(const Decoder& decoder, at::ScalarType dtype) {
  auto out = std::make_shared<Decoder>(decoder);
  const at::ScalarType side = dtype == at::kChar ? at::kBFloat16 : dtype;
  for (const Parameter& p : list_parameters(out->weights, out->config))
    *p.tensor = dtype == at::kChar && p.in_products ? kernels::quantise_int8(*p.tensor) : p.tensor->to(side);
  out->config.dtype = side;
  out->library = &fibers::fiber_library();
  return out;
}

}  // namespace specdec::model
