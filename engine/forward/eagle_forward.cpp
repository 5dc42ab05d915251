#include "engine/forward/eagle_forward.h"

#include <c10/core/GradMode.h>

#include "engine/config/rope.h"
#include "engine/forward/eagle_cuda.h"
#include "engine/kernels/ops.h"

namespace specdec::model {

namespace {

kernels::NormOptions eagle_norm(const EagleHead& head) { return {head.config.layer.rms_norm_eps}; }

}  // namespace

HiddenObserver TapReader::observer() {
  return [this](int64_t layer, const at::Tensor& hidden) {
    for (size_t i = 0; i < taps_.size(); ++i)
      if (taps_[i] == layer) found_[i] = hidden;
  };
}

at::Tensor TapReader::rows() const { return at::cat(found_, -1); }

HeadMemory head_memory(const EagleConfig& head) {
  const bool shares = head.layer.hidden_size == head.target_hidden_size;
  return {.elements = num_parameters(head) + (shares ? 0 : head.layer.vocab_size * head.layer.hidden_size),
          .state_width = head.num_taps() * head.target_hidden_size,
          .shares_embedding = shares};
}

at::Tensor fuse_taps(const EagleHead& head, const at::Tensor& taps) {
  const EagleWeights& w = head.weights;
  at::Tensor x = taps.to(w.fc.scalar_type());
  if (head.config.norm_before_fc) x = kernels::rms_norm(x, w.taps_norm, eagle_norm(head));
  if (head.config.fc_norm) {
    std::vector<at::Tensor> parts = x.chunk(head.config.num_taps(), -1);
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i] = kernels::rms_norm(parts[i].contiguous(), w.tap_norms[i], eagle_norm(head));
    x = at::cat(parts, -1);
  }
  return kernels::linear(x, w.fc);
}

EagleOutput eagle_forward(const EagleHead& head, const EagleInput& input, const EagleAttention& attend) {
  const DecoderConfig& config = head.config.layer;
  const EagleWeights& w = head.weights;
  const kernels::NormOptions norm = eagle_norm(head);
  const at::Tensor embedded = kernels::embedding(w.embed, input.tokens).to(input.hidden.scalar_type());
  const at::Tensor hidden = kernels::rms_norm(input.hidden, w.hidden_norm, norm);
  const at::Tensor x = at::cat({kernels::rms_norm(embedded, w.layer.input_norm, norm), hidden}, -1);
  const auto [cos, sin] = rope_angles(config.rope, config.head_dim, input.rope_rescale, input.positions);
  const auto heads = [&](const at::Tensor& weight, int64_t count) {
    auto shape = x.sizes().vec();
    shape.back() = count;
    shape.push_back(config.head_dim);
    return kernels::linear(x, weight).view(shape);
  };
  const at::Tensor q = kernels::rope(heads(w.layer.q, config.num_heads), cos, sin),
                   k = kernels::rope(heads(w.layer.k, config.num_kv_heads), cos, sin),
                   v = heads(w.layer.v, config.num_kv_heads);
  at::Tensor sum = kernels::add(head.config.norm_before_residual ? hidden : input.hidden,
                                kernels::linear(attend(q, k, v).flatten(-2), w.layer.o));
  const at::Tensor h = kernels::rms_norm(sum, w.layer.mlp_norm, norm);
  const at::Tensor inner = kernels::silu_mul(kernels::linear(h, w.layer.gate), kernels::linear(h, w.layer.up));
  sum = kernels::add(sum, kernels::linear(inner, w.layer.down));
  const at::Tensor normed = kernels::rms_norm(sum, w.norm, norm);
  return {head.config.norm_output ? normed : sum, normed};
}

namespace {

EagleOutput reference_head_pass(const EagleHead& head, std::span<const SequencePart> parts, const at::Tensor& hidden) {
  const at::Device device = head.weights.fc.device();
  std::vector<int64_t> tokens, positions;
  for (const SequencePart& part : parts) {
    for (size_t i = 0; i < part.tokens.size(); ++i) {
      tokens.push_back(part.tokens[i]);
      positions.push_back(part.positions.empty() ? part.cache->length() + static_cast<int64_t>(i) : part.positions[i]);
    }
  }
  const auto upload = [&](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong).to(device); };
  const kernels::AttentionOptions options{.scale = head.config.layer.attention_scale()};
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    std::vector<at::Tensor> out;
    int64_t row = 0;
    for (const SequencePart& part : parts) {
      const auto count = static_cast<int64_t>(part.tokens.size());
      const at::Tensor allowed = allowed_keys(part, device);
      const auto [keys, values] = part.cache->append(0, k.narrow(0, row, count), v.narrow(0, row, count));
      const auto batched = [&](const at::Tensor& x) { return x.to(q.scalar_type()).unsqueeze(0); };
      out.push_back(
          kernels::attention(q.narrow(0, row, count).unsqueeze(0), batched(keys), batched(values), allowed, options)
              .squeeze(0));
      row += count;
    }
    return out.size() == 1 ? out.front() : at::cat(out, 0);
  };
  return eagle_forward(head, {upload(tokens), hidden, upload(positions), 0}, attend);
}

}  // namespace

EagleOutput eagle_pass(const EagleHead& head, std::span<const SequencePart> parts, const at::Tensor& hidden) {
  const c10::NoGradGuard no_gradients;
  for (const SequencePart& part : parts)
    if (part.cache->records()) part.cache->record(part.tokens, part.positions);
  EagleOutput out =
      cuda_head_applies(head, parts) ? cuda_head_pass(head, parts, hidden) : reference_head_pass(head, parts, hidden);
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return out;
}

at::Tensor eagle_logits(const EagleHead& head, const at::Tensor& normed) {
  if (!at::GradMode::is_enabled() && cuda_head_library(head) && normed.dim() == 2 &&
      normed.size(0) <= kernels::kMaxProductRows)
    return cuda_head_logits(head, normed);
  return kernels::linear(normed, head.weights.lm_head);
}

}  // namespace specdec::model
