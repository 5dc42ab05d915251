#include "engine/forward/forward.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/config/rope.h"
#include "engine/forward/forward_cpu.h"
#include "engine/forward/forward_cuda.h"
#include "engine/forward/paged_attention.h"
#include "engine/forward/recompute.h"
#include "engine/forward/rescaled_pass.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/quantised_matrix.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::model {

namespace {

namespace ops = kernels;
using ops::NormOptions;

// cos and sin of the rope at the positions of a pass.
struct PassAngles {
  at::Tensor cos, sin;
};
struct PassRotations {
  PassAngles global, local;
  PassAngles of(const LayerConfig& layer) const {
    return layer.rope == LayerRope::kNone ? PassAngles{} : layer.rope == LayerRope::kLocal ? local : global;
  }
};

bool has_local_rope(const DecoderConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [](const LayerConfig& layer) { return layer.rope == LayerRope::kLocal; });
}

NormOptions norm_options(const DecoderConfig& config) {
  return {config.rms_norm_eps, config.norm_offset, config.norm_rounds_last};
}

at::Tensor gated(const DecoderConfig& config, const at::Tensor& gate, const at::Tensor& up) {
  return config.activation == Activation::kSilu ? ops::silu_mul(gate, up) : ops::gelu_tanh_mul(gate, up);
}

// The elements of `chosen` [R, K] (the K experts of each row), sorted by expert. The elements of expert e are
// [begins[e], begins[e + 1]). `entries` are their flat indices into `chosen`, and `rows` their row numbers.
struct ExpertRows {
  at::Tensor entries, rows;  // [R · K] int64
  std::vector<int64_t> begins;
};
// Sorts on the host. On CUDA the host then waits once for the choices of all experts, instead of once per expert.
ExpertRows rows_by_expert(const at::Tensor& chosen, size_t experts) {
  const at::Tensor host = chosen.to(at::kCPU).contiguous();
  const int64_t count = host.numel(), *expert = host.const_data_ptr<int64_t>();
  ExpertRows out{{}, {}, std::vector<int64_t>(experts + 1)};
  for (int64_t i = 0; i < count; ++i) ++out.begins[static_cast<size_t>(expert[i]) + 1];
  std::partial_sum(out.begins.begin(), out.begins.end(), out.begins.begin());
  std::vector<int64_t> next(out.begins.begin(), out.begins.end() - 1), entries(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) entries[static_cast<size_t>(next[static_cast<size_t>(expert[i])]++)] = i;
  out.entries = at::tensor(entries, at::kLong).to(chosen.device());
  out.rows = at::div(out.entries, chosen.size(1), "floor");
  return out;
}

// Returns x · weightᵀ + bias. `order` is the order of the inputs if the matrix has stayed quantised.
at::Tensor ordered_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& order) {
  const bool moved = order.defined() && kernels::is_group_quantised(weight);
  return ops::linear(moved ? x.index_select(-1, order) : x, weight, bias);
}

// Returns x · weightᵀ + bias for a matrix whose columns are divided among the ranks, by summing the ranks' products.
at::Tensor summed_linear(const Decoder& decoder, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& order) {
  if (!decoder.group) return ordered_linear(x, weight, bias, order);
  const at::Tensor sum = decoder.group->sum(ops::linear(x, weight)).to(x.scalar_type());
  return bias.defined() ? sum + bias : sum;
}

// Normalises all heads of x [..., n · D] together as one row (QkNorm::kProjection); this rank has only a share of the
// heads. `copies` is the number of ranks that hold the same head.
at::Tensor norm_over_ranks(const Decoder& decoder, const at::Tensor& x, const at::Tensor& weight, int64_t copies) {
  const DecoderConfig& config = decoder.config;
  const at::Tensor wide = x.to(at::kFloat), squares = decoder.group->sum(wide.square().sum(-1, /*keepdim=*/true));
  const int64_t width = x.size(-1) * decoder.group->count() / copies;
  const at::Tensor scaled = wide * (squares / static_cast<double>(copies * width) + config.rms_norm_eps).rsqrt();
  return (scaled * (weight.to(at::kFloat) + config.norm_offset)).to(x.scalar_type());
}

// For each row of h [..., E], runs the experts with the largest router probabilities, and returns the sum of their
// outputs, weighted by these probabilities.
at::Tensor mixture(const Decoder& decoder, const LayerWeights& w, const at::Tensor& h) {
  const DecoderConfig& config = decoder.config;
  const at::Tensor rows = h.reshape({-1, config.hidden_size});
  auto [weights, chosen] = ops::linear(rows, w.router).to(at::kFloat).softmax(-1).topk(config.experts_per_token, -1);
  if (config.normalise_experts) weights = weights / weights.sum(-1, /*keepdim=*/true);
  const ExpertRows taken = rows_by_expert(chosen, w.experts.size());
  at::Tensor out = at::zeros_like(rows);
  for (size_t e = 0; e < w.experts.size(); ++e) {
    const auto [begin, end] = std::pair(taken.begins[e], taken.begins[e + 1]);
    if (begin == end) continue;
    const ExpertWeights& expert = w.experts[e];
    const at::Tensor entry = taken.entries.slice(0, begin, end), row = taken.rows.slice(0, begin, end),
                     x = rows.index_select(0, row);
    const at::Tensor inner = gated(config, ops::linear(x, expert.gate), ops::linear(x, expert.up));
    const at::Tensor weight = weights.flatten().index_select(0, entry);
    out = out.index_add(0, row, (ops::linear(inner, expert.down) * weight.unsqueeze(-1)).to(out.scalar_type()));
  }
  if (decoder.group) out = decoder.group->sum(out).to(h.scalar_type());
  return out.view(h.sizes());
}

// Runs layer `l` on the residual stream x. attend() is documented at run_layers().
template <class Attend>
at::Tensor run_layer(const Decoder& decoder, int64_t l, at::Tensor x, const PassAngles& angles, const Attend& attend) {
  const DecoderConfig& config = decoder.config;
  const NormOptions norm = norm_options(config);
  const LayerWeights& w = decoder.weights.layers[static_cast<size_t>(l)];
  const LayerConfig& flags = config.layers[static_cast<size_t>(l)];
  const auto heads = [&](const at::Tensor& projected, int64_t count) {
    auto shape = projected.sizes().vec();
    shape.back() = count;
    shape.push_back(config.head_dim);
    return projected.view(shape);
  };
  const auto turned = [&](at::Tensor projected, int64_t count, const at::Tensor& weight, int64_t copies) {
    if (flags.qk_norm == QkNorm::kProjection)
      projected =
          decoder.group ? norm_over_ranks(decoder, projected, weight, copies) : ops::rms_norm(projected, weight, norm);
    projected = heads(projected, count);
    if (flags.qk_norm == QkNorm::kHead) projected = ops::rms_norm(projected, weight, norm);
    return angles.cos.defined() ? ops::rope(projected, angles.cos, angles.sin) : projected;
  };
  at::Tensor h = flags.input_norm ? ops::rms_norm(x, w.input_norm, norm) : x;
  const auto projected = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return ordered_linear(h, weight, bias, w.attention_order);
  };
  const at::Tensor q = turned(projected(w.q, w.q_bias), config.num_heads, w.q_norm, 1);
  const at::Tensor k = turned(projected(w.k, w.k_bias), config.num_kv_heads, w.k_norm, decoder.key_copies);
  const at::Tensor v = heads(projected(w.v, w.v_bias), config.num_kv_heads);
  h = summed_linear(decoder, attend(l, q, k, v).flatten(-2), w.o, w.o_bias, w.o_order);
  x = ops::add(x, flags.attention_out_norm ? ops::rms_norm(h, w.attention_out_norm, norm) : h);
  h = flags.mlp_norm ? ops::rms_norm(x, w.mlp_norm, norm) : x;
  if (flags.experts) {
    h = mixture(decoder, w, h);
  } else {
    const at::Tensor gate = ordered_linear(h, w.gate, w.gate_bias, w.mlp_order),
                     up = ordered_linear(h, w.up, w.up_bias, w.mlp_order);
    h = summed_linear(decoder, gated(config, gate, up), w.down, w.down_bias, w.down_order);
  }
  return ops::add(x, flags.mlp_out_norm ? ops::rms_norm(h, w.mlp_out_norm, norm) : h);
}

// Runs all layers on the residual stream. attend(layer, q [..., S, H, D], k, v [..., S, G, D]) returns [..., S, H, D].
// With `recompute`, each layer stores only its input and a copy of `attend` for the backward pass.
template <class Attend>
at::Tensor run_layers(const Decoder& decoder, at::Tensor x, const PassRotations& rotations,
                      const HiddenObserver& observer, const Attend& attend, bool recompute = false) {
  if (observer) observer(0, x);
  for (int64_t l = 0; l < decoder.config.num_layers; ++l) {
    const PassAngles angles = rotations.of(decoder.config.layers[static_cast<size_t>(l)]);
    if (recompute)
      x = recomputed(
          x, [&decoder, l, angles, attend](const at::Tensor& in) { return run_layer(decoder, l, in, angles, attend); });
    else
      x = run_layer(decoder, l, x, angles, attend);
    if (observer) observer(l + 1, x);
  }
  return x;
}

// Multiplies rows of the embedding table, [..., E], by config.embedding_scale.
at::Tensor scaled(const Decoder& decoder, const at::Tensor& rows) {
  if (decoder.config.embedding_scale == 1) return rows;
  return rows *
         at::scalar_tensor(decoder.config.embedding_scale, rows.options().dtype(at::kFloat)).to(rows.scalar_type());
}

at::Tensor embed(const Decoder& decoder, const at::Tensor& ids) {
  const at::Tensor& table = decoder.weights.embed;
  return scaled(decoder, decoder.group ? shared_embedding(decoder, ids) : ops::embedding(table, ids));
}

ops::AttentionOptions attention_options(const DecoderConfig& config, int64_t layer) {
  return {.scale = config.attention_scale(),
          .soft_cap = config.attention_soft_cap,
          .window = config.layers[static_cast<size_t>(layer)].window};
}

at::Tensor positions_of(const TrainBatch& batch) {
  return batch.positions.defined() ? batch.positions
                                   : at::arange(batch.tokens.size(1), batch.tokens.options().dtype(at::kLong));
}

at::Tensor input_of(const Decoder& decoder, const TrainBatch& batch) {
  return batch.embedded.defined() ? scaled(decoder, batch.embedded) : embed(decoder, batch.tokens);
}

// Returns the text length that determines the rope scaling for these positions; 0 if the scaling does not depend on it.
int64_t longest_of(const DecoderConfig& config, const at::Tensor& positions) {
  return rope_varies(config.rope) || rope_varies(config.local_rope) ? positions.max().item<int64_t>() + 1 : 0;
}

PassRotations text_rotations(const DecoderConfig& config, const at::Tensor& positions, int64_t longest) {
  const auto angles = [&](const RopeConfig& rope) {
    const auto [cos, sin] =
        rope_angles(rope, config.head_dim, rope_varies(rope) ? rope_rescale(rope, longest) : 0, positions);
    return PassAngles{cos, sin};
  };
  return {angles(config.rope), has_local_rope(config) ? angles(config.local_rope) : PassAngles{}};
}

[[noreturn]] void inconsistent(const std::string& message) {
  throw Error(ErrorKind::kInternal, "decoder pass: " + message);
}

void check_part(const DecoderConfig& config, const SequencePart& part) {
  const auto count = static_cast<int64_t>(part.tokens.size());
  if (!part.cache || count == 0) inconsistent("a part needs a cache and at least one token");
  if (part.num_logits < 0 || part.num_logits > count)
    inconsistent(std::to_string(part.num_logits) + " logit rows wanted of " + std::to_string(count) + " tokens");
  if (!part.positions.empty() && part.positions.size() != part.tokens.size())
    inconsistent("one position per token expected");
  if (part.tree_mask.defined() &&
      (part.tree_mask.sizes() != at::IntArrayRef{count, count} || part.tree_mask.scalar_type() != at::kBool))
    inconsistent("tree_mask must be bool [T, T]");
  for (const int32_t token : part.tokens) {
    if (token < 0 || token >= config.vocab_size)
      throw Error(ErrorKind::kData, "token id " + std::to_string(token) + " is outside the model's vocabulary of " +
                                        std::to_string(config.vocab_size));
  }
}

// The tokens of all parts as flat tensors on the decoder's device; logit_rows are the indices of the rows that need
// logits.
struct FlatBatch {
  at::Tensor ids, positions, logit_rows;
};
FlatBatch flatten(std::span<const SequencePart> parts, at::Device device) {
  std::vector<int64_t> ids, positions, logit_rows;
  for (const SequencePart& part : parts) {
    for (size_t i = 0; i < part.tokens.size(); ++i) {
      if (i + static_cast<size_t>(part.num_logits) >= part.tokens.size())
        logit_rows.push_back(static_cast<int64_t>(ids.size()));
      ids.push_back(part.tokens[i]);
      positions.push_back(part.positions.empty() ? part.cache->length() + static_cast<int64_t>(i) : part.positions[i]);
    }
  }
  const auto upload = [&](const std::vector<int64_t>& values) { return at::tensor(values, at::kLong).to(device); };
  return {upload(ids), upload(positions), upload(logit_rows)};
}

// Returns the rope angles of all tokens of the pass. Each part uses the rope scaling of its own cache.
PassRotations cached_rotations(const DecoderConfig& config, std::span<const SequencePart> parts,
                               const at::Tensor& positions) {
  const auto angles = [&](const RopeConfig& rope) {
    std::vector<at::Tensor> cos, sin;
    int64_t row = 0;
    for (const SequencePart& part : parts) {
      const auto count = static_cast<int64_t>(part.tokens.size());
      if (!cos.empty() && !rope_varies(rope)) break;
      const auto [c, s] = rope_angles(rope, config.head_dim, part.cache->rope_rescale(),
                                      rope_varies(rope) ? positions.narrow(0, row, count) : positions);
      cos.push_back(c), sin.push_back(s);
      row += count;
    }
    return PassAngles{at::cat(cos), at::cat(sin)};
  };
  return {angles(config.rope), has_local_rope(config) ? angles(config.local_rope) : PassAngles{}};
}

// Computes attention for any device and dtype: one sequence after the other, over keys and values gathered from the
// cache.
class GatheredAttention {
 public:
  GatheredAttention(const DecoderConfig& config, std::span<const SequencePart> parts, at::Device device)
      : config_(config), parts_(parts), device_(device), allowed_(parts.size()) {}

  // Appends the keys and values of one part's rows to its cache, and returns the attention output of these rows, [T, H,
  // D].
  at::Tensor attend(size_t part, int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    if (!allowed_[part].defined()) allowed_[part] = allowed_keys(parts_[part], device_);
    const auto [keys, values] = parts_[part].cache->append(layer, k, v);
    const auto batched = [&](const at::Tensor& x) { return x.to(q.scalar_type()).unsqueeze(0); };
    return ops::attention(q.unsqueeze(0), batched(keys), batched(values), allowed_[part],
                          attention_options(config_, layer))
        .squeeze(0);
  }

 private:
  const DecoderConfig& config_;
  std::span<const SequencePart> parts_;
  at::Device device_;
  std::vector<at::Tensor> allowed_;
};

at::Tensor reference_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                          const std::vector<int64_t>& layers) {
  const DecoderConfig& config = decoder.config;
  const at::Device device = decoder.weights.embed.device();
  const at::ScalarType dtype = decoder.weights.embed.scalar_type();
  const FlatBatch flat = flatten(parts, device);
  GatheredAttention gathered(config, parts, device);
  std::optional<PagedAttention> paged;
  if (device.is_cuda() && !ops::reference_forced() && PagedAttention::covers(config, dtype))
    paged.emplace(kernels::cuda_library(), config, parts, dtype, device);
  const auto attend = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    const at::Tensor out = at::empty(q.sizes(), q.options());
    if (paged) paged->attend(layer, attention_options(config, layer), q, k, v, out);
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto count = static_cast<int64_t>(parts[i].tokens.size());
      const auto own = [&](const at::Tensor& x) { return x.narrow(0, row, count); };
      if (!paged || !paged->takes(i)) own(out).copy_(gathered.attend(i, layer, own(q), own(k), own(v)));
      row += count;
    }
    return out;
  };
  HiddenObserver told;
  if (observer)
    told = [&](int64_t layer, const at::Tensor& hidden) {
      if (is_observed(layers, layer)) observer(layer, hidden);
    };
  const at::Tensor x =
      run_layers(decoder, embed(decoder, flat.ids), cached_rotations(config, parts, flat.positions), told, attend);
  const at::Tensor logits = head_logits(decoder, x.index_select(0, flat.logit_rows)).to(at::kFloat);
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return logits;
}

}  // namespace

bool is_observed(const std::vector<int64_t>& layers, int64_t layer) {
  return layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end();
}

at::Tensor allowed_keys(const SequencePart& part, at::Device device) {
  if (!part.tree_mask.defined()) return {};
  const auto count = static_cast<int64_t>(part.tokens.size());
  const at::Tensor before = at::ones({count, part.cache->length()}, at::TensorOptions(device).dtype(at::kBool));
  return at::cat({before, part.tree_mask.to(device)}, 1).unsqueeze(0);
}

at::Tensor shared_embedding(const Decoder& decoder, const at::Tensor& ids) {
  const at::Tensor& table = decoder.weights.embed;
  const Share own = share_of(decoder.config.vocab_size, decoder.group->rank(), decoder.group->count());
  const at::Tensor local = ids - own.begin, here = local.ge(0).logical_and(local.lt(own.length));
  const at::Tensor rows =
      ops::embedding(table, local.clamp(0, own.length - 1)) * here.unsqueeze(-1).to(table.scalar_type());
  return decoder.group->sum(rows).to(table.scalar_type());
}

at::Tensor final_norm(const Decoder& decoder, const at::Tensor& hidden) {
  return ops::rms_norm(hidden, decoder.weights.norm, norm_options(decoder.config));
}

at::Tensor head_matrix(const Decoder& decoder) {
  const std::vector<int32_t>& kept = decoder.config.draft_vocab;
  at::Tensor rows = decoder.weights.lm_head;
  if (kept.empty() || rows.size(0) == static_cast<int64_t>(kept.size())) return rows;
  const at::ScalarType dtype = decoder.weights.norm.scalar_type();
  if (rows.scalar_type() == at::kChar) rows = ops::dequantise_int8(rows, decoder.config.hidden_size).to(dtype);
  if (rows.scalar_type() == at::kByte) rows = ops::unpack(rows, decoder.config.hidden_size, dtype);
  return rows.index_select(0, draft_vocab_index(kept, rows.device()));
}

at::Tensor head_logits(const Decoder& decoder, const at::Tensor& hidden) {
  return normed_logits(decoder, final_norm(decoder, hidden));
}

at::Tensor normed_logits(const Decoder& decoder, const at::Tensor& normed) {
  at::Tensor logits = ops::linear(normed, head_matrix(decoder));
  if (decoder.group) {
    const int64_t vocab = decoder.config.vocab_size;
    auto shape = logits.sizes().vec();
    shape.back() = vocab;
    logits = decoder.group->join(logits.flatten(0, -2), vocab).view(shape);
  }
  return decoder.config.final_soft_cap != 0 ? ops::soft_cap(logits, decoder.config.final_soft_cap) : logits;
}

at::Tensor forward(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer) {
  return head_logits(decoder, last_hidden(decoder, batch, observer));
}

at::Tensor last_hidden(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer) {
  const DecoderConfig& config = decoder.config;
  const at::Tensor positions = positions_of(batch);
  at::Tensor allowed;
  if (batch.segment.defined()) {
    const auto length = batch.tokens.size(1);
    const at::Tensor causal = at::ones({length, length}, batch.tokens.options().dtype(at::kBool)).tril();
    allowed = (batch.segment.unsqueeze(2) == batch.segment.unsqueeze(1)).logical_and(causal);
  }
  const auto attend = [allowed, &config](int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return ops::attention(q, k.transpose(1, 2), v.transpose(1, 2), allowed, attention_options(config, layer));
  };
  return run_layers(decoder, input_of(decoder, batch), text_rotations(config, positions, longest_of(config, positions)),
                    observer, attend, batch.recompute);
}

TrainPass::TrainPass(const Decoder& decoder, const TrainBatch& texts) : decoder_(decoder) {
  const DecoderConfig& config = decoder.config;
  if (texts.segment.defined()) inconsistent("packed rows cannot be continued");
  if (texts.recompute) inconsistent("the keys and values of recomputed layers cannot be continued");
  const at::Tensor positions = positions_of(texts);
  longest_ = longest_of(config, positions);
  layers_.resize(static_cast<size_t>(config.num_layers));
  const auto attend = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    layers_[static_cast<size_t>(layer)] = {k, v};
    return ops::attention(q, k.transpose(1, 2), v.transpose(1, 2), {}, attention_options(config, layer));
  };
  hidden_ = run_layers(decoder, input_of(decoder, texts), text_rotations(config, positions, longest_), {}, attend);
}

at::Tensor TrainPass::extend(const TrainBatch& tokens, const at::Tensor& allowed) {
  const DecoderConfig& config = decoder_.config;
  const auto attend = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    KeysValues& all = layers_[static_cast<size_t>(layer)];
    all = {at::cat({all.k, k}, 1), at::cat({all.v, v}, 1)};
    return ops::attention(q, all.k.transpose(1, 2), all.v.transpose(1, 2), allowed, attention_options(config, layer));
  };
  return run_layers(decoder_, input_of(decoder_, tokens), text_rotations(config, positions_of(tokens), longest_), {},
                    attend);
}

at::Tensor one_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                    const std::vector<int64_t>& layers) {
  const std::vector<int32_t>& kept = decoder.config.draft_vocab;
  at::Tensor ids;
  if (!kept.empty())
    ids = decoder.weights.draft_ids.defined() ? decoder.weights.draft_ids
                                              : draft_vocab_index(kept, decoder.weights.embed.device());
  at::Tensor logits = cuda_pass_applies(decoder, parts)  ? cuda_pass(decoder, parts, observer, layers)
                      : cpu_pass_applies(decoder, parts) ? cpu_pass(decoder, parts, observer, layers)
                                                         : reference_pass(decoder, parts, observer, layers);
  if (!kept.empty() && logits.size(1) != static_cast<int64_t>(kept.size())) logits = logits.index_select(1, ids);
  return spread_logits(logits, ids, decoder.config.vocab_size);
}

at::Tensor forward(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                   const std::vector<int64_t>& layers) {
  for (const SequencePart& part : parts) check_part(decoder.config, part);
  const c10::NoGradGuard no_gradients;
  if (rope_varies(decoder.config.rope)) return rescaled_pass(decoder, parts, observer, layers);
  for (const SequencePart& part : parts) {
    if (part.cache->records()) part.cache->record(part.tokens, part.positions);
  }
  return one_pass(decoder, parts, observer, layers);
}

}  // namespace specdec::model
