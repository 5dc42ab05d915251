// Lists a decoder's parameters with their shapes and their names in checkpoints.
#include "engine/config/families.h"
#include "engine/weights/weights.h"

namespace specdec::model {

namespace {

class ParameterList {
 public:
  std::vector<Parameter> all;

  void add(const std::string& name, at::Tensor& tensor, std::vector<int64_t> shape, bool in_products = false,
           Split split = Split::kNone) {
    const int64_t rows = shape[0];
    all.push_back({name + ".weight", &tensor, std::move(shape), name + ".weight", 0, rows, in_products, split});
  }
  // Adds a matrix and its bias; `bias` is null if the layer has none. The bias is divided among ranks like the matrix's
  // rows.
  void linear(const std::string& name, at::Tensor& weight, at::Tensor* bias, int64_t out, int64_t in, Split split) {
    add(name, weight, {out, in}, true, split);
    const bool by_columns = split == Split::kQueryHeadColumns || split == Split::kInnerColumns;
    if (bias)
      all.push_back({name + ".bias", bias, {out}, name + ".bias", 0, out, false, by_columns ? Split::kNone : split});
  }
  // Marks the matrices from index `first` on as consecutive parts of one stored tensor.
  void join(size_t first, const std::string& name) {
    int64_t rows = 0;
    for (size_t i = first; i < all.size(); ++i) {
      all[i].stored = name + ".weight";
      all[i].row = rows;
      rows += all[i].shape[0];
    }
    for (size_t i = first; i < all.size(); ++i) all[i].stored_rows = rows;
  }
};

// Adds the parameters of one layer, whose names begin with `name`.
struct Layer {
  std::string name;  // such as "model.layers.0."
  const DecoderConfig& config;
  const Family& family;
  const LayerConfig& flags;
  LayerWeights& weights;
};

void add_attention(ParameterList& list, const Layer& layer) {
  const auto& [name, config, family, flags, w] = layer;
  const int64_t e = config.hidden_size, h = config.num_heads * config.head_dim,
                g = config.num_kv_heads * config.head_dim;
  const std::string attention = name + "self_attn.";
  const size_t first = list.all.size();
  list.linear(attention + "q_proj", w.q, flags.qkv_bias ? &w.q_bias : nullptr, h, e, Split::kQueryHeads);
  list.linear(attention + "k_proj", w.k, flags.qkv_bias ? &w.k_bias : nullptr, g, e, Split::kKeyHeads);
  list.linear(attention + "v_proj", w.v, flags.qkv_bias ? &w.v_bias : nullptr, g, e, Split::kKeyHeads);
  if (family.fused) list.join(first, attention + "qkv_proj");
  if (flags.qk_norm != QkNorm::kNone) {
    const bool whole = flags.qk_norm == QkNorm::kProjection;
    const auto norm = [&](const char* norm_name, at::Tensor& weight, int64_t size, Split split) {
      list.add(attention + norm_name, weight, {whole ? size : config.head_dim}, false, whole ? split : Split::kNone);
    };
    norm("q_norm", w.q_norm, h, Split::kQueryHeads);
    norm("k_norm", w.k_norm, g, Split::kKeyHeads);
  }
  list.linear(attention + "o_proj", w.o, flags.out_bias ? &w.o_bias : nullptr, e, h, Split::kQueryHeadColumns);
}

void add_feed_forward(ParameterList& list, const Layer& layer) {
  const auto& [name, config, family, flags, w] = layer;
  const int64_t e = config.hidden_size, i = config.intermediate_size, x = config.expert_intermediate_size;
  if (flags.experts) {
    const ExpertNames& names = family.experts;
    if (!names.router)
      throw Error(ErrorKind::kInternal, "config: " + name + " has experts, and model_type '" + family.model_type +
                                            "' has no names for their tensors");
    const int64_t count = config.num_experts;
    list.add(name + names.router, w.router, {count, e});
    list.all.back().joined = {name + "mlp.gate.weight", {count, e}, 0, count, 0};
    w.experts.resize(static_cast<size_t>(count));
    const std::string gate_up = name + "mlp.experts.gate_up_proj", down = name + "mlp.experts.down_proj";
    for (int64_t k = 0; k < count; ++k) {
      ExpertWeights& expert = w.experts[static_cast<size_t>(k)];
      const std::string prefix = name + names.experts + "." + std::to_string(k) + ".";
      list.add(prefix + names.gate, expert.gate, {x, e}, true, Split::kInner);
      list.all.back().joined = {gate_up, {count, 2 * x, e}, k, 1, 0};
      list.add(prefix + names.up, expert.up, {x, e}, true, Split::kInner);
      list.all.back().joined = {gate_up, {count, 2 * x, e}, k, 1, x * e};
      list.add(prefix + names.down, expert.down, {e, x}, true, Split::kInnerColumns);
      list.all.back().joined = {down, {count, e, x}, k, 1, 0};
    }
    return;
  }
  const std::string mlp = name + "mlp.";
  const size_t first = list.all.size();
  list.linear(mlp + "gate_proj", w.gate, flags.mlp_bias ? &w.gate_bias : nullptr, i, e, Split::kInner);
  list.linear(mlp + "up_proj", w.up, flags.mlp_bias ? &w.up_bias : nullptr, i, e, Split::kInner);
  if (family.fused) list.join(first, mlp + "gate_up_proj");
  list.linear(mlp + "down_proj", w.down, flags.mlp_bias ? &w.down_bias : nullptr, e, i, Split::kInnerColumns);
}

}  // namespace

std::vector<Parameter> list_parameters(DecoderWeights& weights, const DecoderConfig& config) {
  const Family& family = find_family(config.model_type, "config");
  const int64_t e = config.hidden_size, v = config.vocab_size;
  ParameterList list;
  weights.layers.resize(config.layers.size());
  list.add("model.embed_tokens", weights.embed, {v, e}, false, Split::kVocabulary);
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    LayerWeights& w = weights.layers[l];
    const LayerConfig& flags = config.layers[l];
    const std::string name = "model.layers." + std::to_string(l) + ".";
    const Layer layer{name, config, family, flags, w};
    if (flags.input_norm) list.add(name + "input_layernorm", w.input_norm, {e});
    add_attention(list, layer);
    // In Llama, post_attention_layernorm is the norm before the feed-forward part; in Gemma and OLMo, it is the norm of
    // the attention's output.
    if (flags.attention_out_norm) list.add(name + "post_attention_layernorm", w.attention_out_norm, {e});
    if (flags.mlp_norm)
      list.add(name + (flags.attention_out_norm ? "pre_feedforward_layernorm" : "post_attention_layernorm"), w.mlp_norm,
               {e});
    add_feed_forward(list, layer);
    if (flags.mlp_out_norm) list.add(name + "post_feedforward_layernorm", w.mlp_out_norm, {e});
  }
  list.add("model.norm", weights.norm, {e});
  if (!config.tie_embeddings) list.add("lm_head", weights.lm_head, {v, e}, true, Split::kVocabulary);
  return list.all;
}

}  // namespace specdec::model
