#include "engine/weights/quantised_layers.h"

#include <algorithm>
#include <vector>

#include "engine/weights/tensor_reader.h"

namespace specdec::model {

namespace {

// Matrices that are multiplied by the same x, and the order in which they need the columns of x.
struct SameInputs {
  std::vector<at::Tensor*> matrices;
  at::Tensor* order;
};
std::vector<SameInputs> same_inputs(LayerWeights& w) {
  return {{{&w.q, &w.k, &w.v}, &w.attention_order},
          {{&w.o}, &w.o_order},
          {{&w.gate, &w.up}, &w.mlp_order},
          {{&w.down}, &w.down_order}};
}

bool same_order(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
}

}  // namespace

at::Tensor keep_quantised(DecoderWeights& weights, const at::Tensor* parameter,
                          const kernels::QuantisedMatrix& matrix) {
  const std::optional<kernels::PackedCodes> packed = kernels::pack_codes(matrix);
  if (!packed) return {};
  for (LayerWeights& layer : weights.layers)
    for (const SameInputs& inputs : same_inputs(layer)) {
      if (std::find(inputs.matrices.begin(), inputs.matrices.end(), parameter) == inputs.matrices.end()) continue;
      const bool first = std::none_of(inputs.matrices.begin(), inputs.matrices.end(),
                                      [](const at::Tensor* other) { return kernels::is_group_quantised(*other); });
      if (first) *inputs.order = packed->order;
      return same_order(*inputs.order, packed->order) ? packed->matrix : at::Tensor();
    }
  return packed->order.defined() ? at::Tensor() : packed->matrix;  // for experts, no order of inputs can be stored
}

void finish_quantised(Decoder& decoder, at::Device device) {
  const DecoderConfig& config = decoder.config;
  for (LayerWeights& w : decoder.weights.layers) {
    const bool alike = w.gate.defined() && w.gate.scalar_type() == w.up.scalar_type() &&
                       w.gate.sizes().slice(1) == w.up.sizes().slice(1);
    for (at::Tensor* matrix : {&w.gate, &w.up}) {
      if (alike || !kernels::is_group_quantised(*matrix)) continue;
      const at::Tensor wide = kernels::dequantise({matrix->cpu(), w.mlp_order}, config.hidden_size);
      *matrix = converted(wide, side_dtype(kAsStored, config), "a gate").to(device);
    }
    for (const SameInputs& inputs : same_inputs(w))
      if (inputs.order->defined()) *inputs.order = inputs.order->to(device);
  }
}

}  // namespace specdec::model
