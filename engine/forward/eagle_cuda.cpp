#include "engine/forward/eagle_cuda.h"

#include "engine/config/rope.h"
#include "engine/forward/forward_cuda.h"
#include "engine/kernels/ops.h"

namespace specdec::model {

namespace {

bool covers(const EagleHead& head) {
  const DecoderConfig& c = head.config.layer;
  const at::ScalarType dtype = head.weights.fc.scalar_type();
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && head.weights.embed.scalar_type() == dtype &&
         c.head_dim % 8 == 0 && c.head_dim <= kernels::kMaxPagedHead && !rope_varies(c.rope);
}

}  // namespace

const kernels::CudaLibrary* cuda_head_library(const EagleHead& head) {
  const bool on_gpu = head.weights.fc.is_cuda();
  if ((!on_gpu && !head.library) || kernels::reference_forced() || !covers(head)) return nullptr;
  return head.library ? head.library : &kernels::cuda_library();
}

bool cuda_head_applies(const EagleHead& head, std::span<const SequencePart> parts) {
  return cuda_head_library(head) && few_causal_rows(parts, head.weights.fc.scalar_type());
}

CudaHeadPass::CudaHeadPass(const EagleHead& head)
    : head_(head), kernels_(*cuda_head_library(head), head.weights.fc, true), rows_(head.config.layer) {}

EagleOutput CudaHeadPass::run(const DeviceUpload& upload, const at::Tensor& hidden) const {
  const DecoderConfig& config = head_.config.layer;
  const EagleWeights& w = head_.weights;
  const int64_t d = config.head_dim, heads = config.num_heads, kv_heads = config.num_kv_heads;
  const double eps = config.rms_norm_eps;
  const at::Tensor none;
  const auto buffer = [&](int64_t width) { return at::empty({num_rows(), width}, w.fc.options()); };
  const at::Tensor sums =
      at::empty({CudaRows::part_values(config, rows_.paged().num_parts())}, w.fc.options().dtype(at::kFloat));
  const CudaPassInputs inputs = rows_.inputs(rows_.piece(upload), sums);
  const int32_t* const live = inputs.paged.live;
  const at::Tensor h = buffer(config.hidden_size), sum = buffer(config.hidden_size),
                   normed_hidden = buffer(config.hidden_size), projected = buffer((heads + 2 * kv_heads) * d),
                   q = buffer(heads * d), attended = buffer(heads * d), inner = buffer(config.intermediate_size);
  kernels_.gather(w.embed, inputs.ids, sum);
  kernels_.norm(sum, w.layer.input_norm, eps, h);
  kernels_.norm(hidden, w.hidden_norm, eps, normed_hidden);
  kernels_.project(at::cat({h, normed_hidden}, -1), {w.layer.q, w.layer.k, w.layer.v, none, none, none, none, live},
                   projected);
  kernels_.prepare(inputs.paged, {.layer = 0,
                                  .rotated = static_cast<int32_t>(rotary_dim(config.rope, d)),
                                  .projected = data(projected),
                                  .q_norm = nullptr,
                                  .k_norm = nullptr,
                                  .eps = 0,
                                  .cos = inputs.cos[0],
                                  .sin = inputs.sin[0],
                                  .q = q.mutable_data_ptr()});
  kernels_.attend(inputs.paged, {.layer = 0,
                                 .scale = static_cast<float>(config.attention_scale()),
                                 .soft_cap = 0,
                                 .window = 0,
                                 .q = data(q),
                                 .k = nullptr,
                                 .v = nullptr,
                                 .out = attended.mutable_data_ptr()});
  const at::Tensor& residual = head_.config.norm_before_residual ? normed_hidden : hidden;
  kernels_.multiply(
      {.x = attended, .weight = w.layer.o, .bias = none, .out = sum, .residual = &residual, .live = live});
  kernels_.norm(sum, w.layer.mlp_norm, eps, h);
  kernels_.multiply(
      {.x = h, .weight = w.layer.gate, .bias = none, .out = inner, .up = &w.layer.up, .up_bias = &none, .live = live});
  kernels_.multiply({.x = inner, .weight = w.layer.down, .bias = none, .out = sum, .residual = &sum, .live = live});
  const at::Tensor last = rows_.with_logits(sum, upload), normed = at::empty_like(last);
  kernels_.norm(last, w.norm, eps, normed);
  return {head_.config.norm_output ? normed : last, normed};
}

EagleOutput cuda_head_pass(const EagleHead& head, std::span<const SequencePart> parts, const at::Tensor& hidden) {
  CudaHeadPass pass(head);
  for (const SequencePart& part : parts) add_part(part, static_cast<int64_t>(part.tokens.size()), pass);
  DeviceUpload upload(head.weights.fc.device());
  pass.describe(upload);
  upload.send();
  return pass.run(upload, hidden.contiguous());
}

namespace {

at::Tensor score_rows(const CudaKernels& kernels, const EagleHead& head, const at::Tensor& normed,
                      const int32_t* live) {
  const at::Tensor none, rows = normed.contiguous(),
                         logits = at::empty({rows.size(0), head.weights.lm_head.size(0)}, rows.options());
  kernels.multiply({.x = rows, .weight = head.weights.lm_head, .bias = none, .out = logits, .live = live});
  return logits;
}

}  // namespace

at::Tensor CudaHeadPass::score(const at::Tensor& normed, const DeviceUpload& upload) const {
  return score_rows(kernels_, head_, normed, rows_.may_rest() ? upload.at<int32_t>(rows_.live_place()) : nullptr);
}

at::Tensor cuda_head_logits(const EagleHead& head, const at::Tensor& normed) {
  return score_rows(CudaKernels(*cuda_head_library(head), head.weights.fc, true), head, normed, nullptr);
}

}  // namespace specdec::model
