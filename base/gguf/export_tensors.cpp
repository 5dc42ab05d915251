#include "base/gguf/export_tensors.h"

#include "base/error.h"

namespace specdec::gguf {

namespace {

// A parameter of a layer, without the "model.layers.N." before its name, and the tensor, without "blk.N.".
struct LayerTensor {
  std::string source, name;
  int64_t permuted_heads = 0;
  double plus = 0;
  bool may_miss = false;
};

std::vector<LayerTensor> norms_of(const ExportFamily& family) {
  const double plus = family.norm_offset;
  std::vector<LayerTensor> out;
  switch (family.norms) {
    case ExportNorms::kBefore:
      out = {{"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}};
      break;
    case ExportNorms::kAround:
      out = {{"input_layernorm", "attn_norm"},
             {"post_attention_layernorm", "post_attention_norm"},
             {"pre_feedforward_layernorm", "ffn_norm"},
             {"post_feedforward_layernorm", "post_ffw_norm"}};
      break;
    case ExportNorms::kAfter:
      out = {{"post_attention_layernorm", "post_attention_norm"}, {"post_feedforward_layernorm", "post_ffw_norm"}};
      break;
  }
  if (family.qk_norm) {
    out.push_back({"self_attn.q_norm", "attn_q_norm"});
    out.push_back({"self_attn.k_norm", "attn_k_norm"});
  }
  for (LayerTensor& norm : out) norm.source += ".weight", norm.name += ".weight", norm.plus = plus;
  return out;
}

std::vector<LayerTensor> layer_tensors(const ExportFamily& family, const ExportShape& shape) {
  std::vector<LayerTensor> out = norms_of(family);
  const auto matrix = [&](const char* source, const char* name, bool has_bias, int64_t heads = 0) {
    out.push_back({std::string(source) + ".weight", std::string(name) + ".weight", heads});
    if (has_bias)
      out.push_back({std::string(source) + ".bias", std::string(name) + ".bias", heads, 0, /*may_miss=*/true});
  };
  const bool permutes = family.permutes_heads;
  if (family.fused) {
    matrix("self_attn.qkv_proj", "attn_qkv", false);
    matrix("mlp.gate_up_proj", "ffn_up", false);
  } else {
    matrix("self_attn.q_proj", "attn_q", family.qkv_bias, permutes ? shape.heads : 0);
    matrix("self_attn.k_proj", "attn_k", family.qkv_bias, permutes ? shape.kv_heads : 0);
    matrix("self_attn.v_proj", "attn_v", family.qkv_bias);
    matrix("mlp.gate_proj", "ffn_gate", family.mlp_bias);
    matrix("mlp.up_proj", "ffn_up", family.mlp_bias);
  }
  matrix("self_attn.o_proj", "attn_output", family.out_bias);
  matrix("mlp.down_proj", "ffn_down", family.mlp_bias);
  return out;
}

}  // namespace

std::vector<ExportedTensor> exported_tensors(const ExportFamily& family, const ExportedConfig& config,
                                             const std::set<std::string>& present, const std::string& where) {
  std::vector<ExportedTensor> out;
  std::set<std::string> left = present;
  const auto take = [&](ExportedTensor tensor, bool may_miss = false) {
    left.erase(tensor.source);
    if (present.contains(tensor.source))
      out.push_back(std::move(tensor));
    else if (!may_miss)
      throw Error(ErrorKind::kModel, where + ": has no tensor " + tensor.source);
  };
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  take({"token_embd.weight", embedding});
  for (const auto& [name, values] : config.factors) out.push_back({.name = name, .source = "", .values = values});
  const std::vector<LayerTensor> tensors = layer_tensors(family, config.shape);
  for (int64_t layer = 0; layer < config.shape.layers; ++layer) {
    const std::string number = std::to_string(layer), before = "model.layers." + number + ".";
    for (const LayerTensor& t : tensors)
      take({"blk." + number + "." + t.name, before + t.source, t.permuted_heads, t.plus}, t.may_miss);
    left.erase(before + "self_attn.rotary_emb.inv_freq");
  }
  take({"output_norm.weight", "model.norm.weight", 0, family.norm_offset});
  if (!config.shape.tied)
    take({"output.weight", head});
  else if (family.needs_head)
    take({"output.weight", embedding});
  if (config.shape.tied) left.erase(head);
  if (!left.empty())
    throw Error(ErrorKind::kModel,
                where + ": tensor " + *left.begin() + ": llama.cpp has no place for it in " + family.architecture);
  return out;
}

}  // namespace specdec::gguf
