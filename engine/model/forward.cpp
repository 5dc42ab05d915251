#include "engine/model/forward.h"

#include <c10/core/GradMode.h>

#include <string>

#include "base/error.h"
#include "engine/kernels/ops.h"
#include "engine/model/forward_cpu.h"
#include "engine/model/rope.h"

namespace specdec::model {

namespace {

namespace ops = kernels;

// Residual stream in, residual stream out. attend(layer, q [..., S, H, D], k, v [..., S, G, D]) -> [..., S, H, D].
template <class Attend>
at::Tensor run_layers(const Decoder& decoder, at::Tensor x, const at::Tensor& positions, const HiddenObserver& observer, const Attend& attend) {
  const DecoderConfig& config = decoder.config;
  const auto [cos, sin] = rope_angles(inverse_frequencies(config), positions);
  const auto heads = [&](const at::Tensor& projected, int64_t count) {
    auto shape = projected.sizes().vec();
    shape.back() = count;
    shape.push_back(config.head_dim);
    return projected.view(shape);
  };
  if (observer) observer(0, x);
  for (int64_t l = 0; l < config.num_layers; ++l) {
    const LayerWeights& w = decoder.weights.layers[static_cast<size_t>(l)];
    at::Tensor h = ops::rms_norm(x, w.input_norm, config.rms_norm_eps);
    const at::Tensor q = ops::rope(heads(ops::linear(h, w.q, w.q_bias), config.num_heads), cos, sin);
    const at::Tensor k = ops::rope(heads(ops::linear(h, w.k, w.k_bias), config.num_kv_heads), cos, sin);
    const at::Tensor v = heads(ops::linear(h, w.v, w.v_bias), config.num_kv_heads);
    x = ops::add(x, ops::linear(attend(l, q, k, v).flatten(-2), w.o, w.o_bias));
    h = ops::rms_norm(x, w.post_norm, config.rms_norm_eps);
    const at::Tensor inner = ops::silu_mul(ops::linear(h, w.gate, w.gate_bias), ops::linear(h, w.up, w.up_bias));
    x = ops::add(x, ops::linear(inner, w.down, w.down_bias));
    if (observer) observer(l + 1, x);
  }
  return x;
}

at::Tensor head(const Decoder& decoder, const at::Tensor& x) {
  return ops::linear(ops::rms_norm(x, decoder.weights.norm, decoder.config.rms_norm_eps), decoder.weights.lm_head);
}

[[noreturn]] void inconsistent(const std::string& message) { throw Error(ErrorKind::kInternal, "decoder pass: " + message); }

void check_part(const DecoderConfig& config, const SequencePart& part) {
  const auto count = static_cast<int64_t>(part.tokens.size());
  if (!part.cache || count == 0) inconsistent("a part needs a cache and at least one token");
  if (part.num_logits < 0 || part.num_logits > count)
    inconsistent(std::to_string(part.num_logits) + " logit rows wanted of " + std::to_string(count) + " tokens");
  if (!part.positions.empty() && part.positions.size() != part.tokens.size()) inconsistent("one position per token expected");
  if (part.tree_mask.defined() && (part.tree_mask.sizes() != at::IntArrayRef{count, count} || part.tree_mask.scalar_type() != at::kBool))
    inconsistent("tree_mask must be bool [T, T]");
  for (const int32_t token : part.tokens) {
    if (token < 0 || token >= config.vocab_size)
      throw Error(ErrorKind::kData, "token id " + std::to_string(token) + " is outside the model's vocabulary of " + std::to_string(config.vocab_size));
  }
}

// The rows of all parts as flat tensors on the decoder's device.
struct FlatBatch {
  at::Tensor ids, positions, logit_rows;
};
FlatBatch flatten(std::span<const SequencePart> parts, at::Device device) {
  std::vector<int64_t> ids, positions, logit_rows;
  for (const SequencePart& part : parts) {
    for (size_t i = 0; i < part.tokens.size(); ++i) {
      if (i + static_cast<size_t>(part.num_logits) >= part.tokens.size()) logit_rows.push_back(static_cast<int64_t>(ids.size()));
      ids.push_back(part.tokens[i]);
      positions.push_back(part.positions.empty() ? part.cache->length() + static_cast<int64_t>(i) : part.positions[i]);
    }
  }
  const auto upload = [&](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong).to(device); };
  return {upload(ids), upload(positions), upload(logit_rows)};
}

// [1, T, L] or undefined: everything cached before this pass, and what the tree mask allows within it.
at::Tensor allowed_keys(const SequencePart& part, at::Device device) {
  if (!part.tree_mask.defined()) return {};
  const auto count = static_cast<int64_t>(part.tokens.size());
  const at::Tensor before = at::ones({count, part.cache->length()}, at::TensorOptions(device).dtype(at::kBool));
  return at::cat({before, part.tree_mask.to(device)}, 1).unsqueeze(0);
}

}  // namespace

at::Tensor forward(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer) {
  const auto length = batch.tokens.size(1);
  const at::Tensor positions = batch.positions.defined() ? batch.positions : at::arange(length, batch.tokens.options().dtype(at::kLong));
  at::Tensor allowed;
  if (batch.segment.defined()) {
    const at::Tensor causal = at::ones({length, length}, batch.tokens.options().dtype(at::kBool)).tril();
    allowed = (batch.segment.unsqueeze(2) == batch.segment.unsqueeze(1)).logical_and(causal);
  }
  const auto attend = [&](int64_t, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return ops::attention(q, k.transpose(1, 2), v.transpose(1, 2), allowed);
  };
  return head(decoder, run_layers(decoder, ops::embedding(decoder.weights.embed, batch.tokens), positions, observer, attend));
}

at::Tensor forward(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer) {
  for (const SequencePart& part : parts) check_part(decoder.config, part);
  const c10::NoGradGuard no_gradients;
  if (cpu_pass_applies(decoder, parts)) return cpu_pass(decoder, parts, observer);

  const at::Device device = decoder.weights.embed.device();
  const FlatBatch flat = flatten(parts, device);
  std::vector<at::Tensor> allowed;
  for (const SequencePart& part : parts) allowed.push_back(allowed_keys(part, device));
  const auto attend = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    std::vector<at::Tensor> out;
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto count = static_cast<int64_t>(parts[i].tokens.size());
      const auto [keys, values] = parts[i].cache->append(layer, k.narrow(0, row, count), v.narrow(0, row, count));
      const auto batched = [&](const at::Tensor& x) { return x.to(q.scalar_type()).unsqueeze(0); };
      out.push_back(ops::attention(q.narrow(0, row, count).unsqueeze(0), batched(keys), batched(values), allowed[i]).squeeze(0));
      row += count;
    }
    return out.size() == 1 ? out.front() : at::cat(out, 0);
  };
  const at::Tensor x = run_layers(decoder, ops::embedding(decoder.weights.embed, flat.ids), flat.positions, observer, attend);
  const at::Tensor logits = head(decoder, x.index_select(0, flat.logit_rows)).to(at::kFloat);
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return logits;
}

}  // namespace specdec::model
