// Makes small decoders and EAGLE-3 heads with random weights, whose passes use the CUDA kernels on fibers.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "engine/kernels/ops.h"
#include "engine/weights/eagle_head.h"
#include "engine/weights/weights.h"
#include "tests/kernels/fibers/model/fiber_library.h"
#include "tests/model/toy_decoders.h"

namespace specdec::model {

// Returns the decoder in another dtype, for the kernels. With kChar, products are int8 and the rest is bf16.
inline std::shared_ptr<Decoder> on_fibers(const Decoder& decoder, at::ScalarType dtype) {
  auto out = std::make_shared<Decoder>(decoder);
  const at::ScalarType side = dtype == at::kChar ? at::kBFloat16 : dtype;
  for (const Parameter& p : list_parameters(out->weights, out->config))
    *p.tensor = dtype == at::kChar && p.in_products ? kernels::quantise_int8(*p.tensor) : p.tensor->to(side);
  out->config.dtype = side;
  out->library = &fibers::fiber_library();
  return out;
}

// Returns an EAGLE-3 head with random weights in a 16-bit dtype for an fp32 decoder, run by the kernels. It proposes
// only the token ids in `kept`, or all ids if `kept` is empty.
inline std::shared_ptr<EagleHead> head_on_fibers(const Decoder& target, std::vector<int32_t> kept, uint64_t seed,
                                                 at::ScalarType dtype) {
  auto out = std::make_shared<EagleHead>(new_eagle_head(target, std::move(kept), seed, at::kFloat));
  uint64_t number = 0;
  out->weights.visit(out->config, [&](const std::string&, at::Tensor& tensor) {
    at::manual_seed(seed * 1000 + ++number);  // so that norms differ
    if (tensor.dim() == 1) tensor = tensor + 0.2 * at::randn(tensor.sizes());
    tensor = tensor.to(dtype);
  });
  out->weights.embed = out->weights.embed.to(dtype);
  out->library = &fibers::fiber_library();
  return out;
}

}  // namespace specdec::model
