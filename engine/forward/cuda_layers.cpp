#include "engine/forward/cuda_layers.h"

#include "engine/config/rope.h"
#include "engine/forward/forward_cuda.h"

namespace specdec::model {

namespace {

int32_t narrow(int64_t n) { return static_cast<int32_t>(n); }

}  // namespace

CudaLayers::CudaLayers(const Decoder& decoder)
    : decoder_(decoder),
      config_(decoder.config),
      kernels_(*cuda_pass_library(decoder), decoder.weights.embed, decoder.exact) {}

CudaLayers::Room CudaLayers::Room::first(int64_t rows) const {
  const auto part = [&](const at::Tensor& memory) { return memory.narrow(0, 0, rows); };
  return {part(x), part(h), part(projected), part(q), part(attended), part(inner)};
}

CudaLayers::Room CudaLayers::make_room(int64_t rows) const {
  const auto buffer = [&](int64_t width) { return at::empty({rows, width}, decoder_.weights.embed.options()); };
  const int64_t e = config_.hidden_size, d = config_.head_dim, heads = config_.num_heads;
  return {.x = buffer(e),
          .h = buffer(e),
          .projected = buffer((heads + 2 * config_.num_kv_heads) * d),
          .q = buffer(heads * d),
          .attended = buffer(heads * d),
          .inner = buffer(config_.intermediate_size)};
}

// Adds a product to p.out. If ranks divide the columns of the matrix, adds the sum of the ranks' products and
// overwrites `work`, which has the shape of p.out.
void CudaLayers::add_product(const CudaKernels::Product& p, const at::Tensor& work) const {
  if (!decoder_.group) {
    CudaKernels::Product whole = p;
    whole.residual = &p.out;
    return kernels_.multiply(whole);
  }
  kernels_.multiply({.x = p.x, .weight = p.weight, .bias = at::Tensor(), .out = work});
  p.out.add_(decoder_.group->sum(work).to(p.out.scalar_type()));
  if (p.bias.defined()) p.out.add_(p.bias);
}

void CudaLayers::run(const CudaPassInputs& inputs, const Room& room, const HiddenObserver& observer,
                     const std::vector<int64_t>& layers) const {
  const auto& [x, h, projected, q, attended, inner] = room;
  const double eps = config_.rms_norm_eps;
  const int32_t* const live = inputs.paged.live;
  const auto observe = [&](int64_t layer) {
    if (observer && is_observed(layers, layer)) observer(layer, x);
  };
  if (decoder_.group)
    x.copy_(shared_embedding(decoder_, inputs.ids));
  else
    kernels_.gather(decoder_.weights.embed, inputs.ids, x);
  observe(0);
  for (int64_t l = 0; l < config_.num_layers; ++l) {
    const LayerWeights& w = decoder_.weights.layers[static_cast<size_t>(l)];
    const LayerConfig& flags = config_.layers[static_cast<size_t>(l)];
    const size_t which = flags.rope == LayerRope::kLocal ? 1 : 0;
    const RopeConfig& rope = which == 0 ? config_.rope : config_.local_rope;
    kernels_.norm(x, w.input_norm, eps, h);
    kernels_.project(h, {w.q, w.k, w.v, w.q_bias, w.k_bias, w.v_bias, w.attention_order, live}, projected);
    kernels_.prepare(inputs.paged,
                     {.layer = narrow(l),
                      .rotated = flags.rope != LayerRope::kNone ? narrow(rotary_dim(rope, config_.head_dim)) : 0,
                      .projected = data(projected),
                      .q_norm = data(w.q_norm),
                      .k_norm = data(w.k_norm),
                      .eps = static_cast<float>(eps),
                      .cos = inputs.cos[which],
                      .sin = inputs.sin[which],
                      .q = q.mutable_data_ptr()});
    kernels_.attend(inputs.paged, {.layer = narrow(l),
                                   .scale = static_cast<float>(config_.attention_scale()),
                                   .soft_cap = static_cast<float>(config_.attention_soft_cap),
                                   .window = narrow(flags.window),
                                   .q = data(q),
                                   .k = nullptr,
                                   .v = nullptr,
                                   .out = attended.mutable_data_ptr()});
    add_product({.x = attended, .weight = w.o, .bias = w.o_bias, .out = x, .order = &w.o_order, .live = live}, h);
    kernels_.norm(x, w.mlp_norm, eps, h);
    kernels_.multiply({.x = h,
                       .weight = w.gate,
                       .bias = w.gate_bias,
                       .out = inner,
                       .order = &w.mlp_order,
                       .up = &w.up,
                       .up_bias = &w.up_bias,
                       .live = live});
    add_product({.x = inner, .weight = w.down, .bias = w.down_bias, .out = x, .order = &w.down_order, .live = live}, h);
    observe(l + 1);
  }
}

void CudaLayers::score(const at::Tensor& x, const at::Tensor& normed, const at::Tensor& logits,
                       const int32_t* live) const {
  kernels_.norm(x, decoder_.weights.norm, config_.rms_norm_eps, normed);
  const at::Tensor no_bias;
  kernels_.multiply({.x = normed, .weight = decoder_.weights.lm_head, .bias = no_bias, .out = logits, .live = live});
}

}  // namespace specdec::model
