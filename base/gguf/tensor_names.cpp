// Gives tensors of a GGUF file the names that they have in Hugging Face checkpoints. Source of the names: gguf-py's
// tensor_mapping.py.
#include <charconv>

#include "base/gguf/architectures.h"
#include "base/gguf/header_reader.h"
#include "base/gguf/model_files.h"

namespace specdec::gguf {

namespace {

using Norms = Architecture::Norms;

// Returns the Hugging Face name of a part of a layer, such as "self_attn.q_proj" for "attn_q", or "" if layers of this
// architecture have no such part.
std::string layer_part(const Architecture& row, const std::string& part) {
  const bool before = row.norms != Norms::kAfter, after = row.norms != Norms::kBefore;
  const struct {
    const char *stored, *name;
    bool exists;
  } parts[] = {
      {"attn_q", "self_attn.q_proj", !row.fused},
      {"attn_k", "self_attn.k_proj", !row.fused},
      {"attn_v", "self_attn.v_proj", !row.fused},
      {"attn_qkv", "self_attn.qkv_proj", row.fused},
      {"attn_output", "self_attn.o_proj", true},
      {"attn_q_norm", "self_attn.q_norm", row.qk_norms},
      {"attn_k_norm", "self_attn.k_norm", row.qk_norms},
      {"attn_norm", "input_layernorm", before},
      {"ffn_norm", after ? "pre_feedforward_layernorm" : "post_attention_layernorm", before},
      {"post_attention_norm", "post_attention_layernorm", after},
      {"post_ffw_norm", "post_feedforward_layernorm", after},
      {"ffn_gate", "mlp.gate_proj", !row.fused},
      {"ffn_up", row.fused ? "mlp.gate_up_proj" : "mlp.up_proj", true},
      {"ffn_down", "mlp.down_proj", true},
  };
  for (const auto& known : parts)
    if (known.exists && part == known.stored) return known.name;
  return "";
}

bool may_have_bias(const Architecture& row, const std::string& part) {
  if (part == "attn_q" || part == "attn_k" || part == "attn_v") return row.attention_bias || row.qkv_bias;
  if (part == "attn_output") return row.attention_bias;
  if (part == "ffn_gate" || part == "ffn_up" || part == "ffn_down") return row.mlp_bias;
  return false;
}

// Parses "blk.<layer>.<part>.<weight | bias>". Returns nothing for another name and for a layer that the model lacks.
std::optional<Place> layer_place(const GgufFile& file, const Architecture& row, const std::string& tensor) {
  constexpr size_t kStart = sizeof "blk." - 1;
  if (!tensor.starts_with("blk.")) return std::nullopt;
  const size_t dot = tensor.find('.', kStart), end = tensor.rfind('.');
  if (dot == std::string::npos || end <= dot) return std::nullopt;
  const std::string layer = tensor.substr(kStart, dot - kStart), part = tensor.substr(dot + 1, end - dot - 1),
                    kind = tensor.substr(end + 1);
  int64_t number = -1;
  const auto parsed = std::from_chars(layer.data(), layer.data() + layer.size(), number);
  const std::string prefix = row.name;
  if (parsed.ec != std::errc() || parsed.ptr != layer.data() + layer.size() || std::to_string(number) != layer ||
      number < 0 || number >= file.integer(prefix + ".block_count", 1, 1024))
    return std::nullopt;
  const std::string name = layer_part(row, part);
  if (name.empty() || (kind != "weight" && !(kind == "bias" && may_have_bias(row, part)))) return std::nullopt;
  Place place{.name = "model.layers." + layer + "." + name + "." + kind};
  if (row.permuted && (part == "attn_q" || part == "attn_k")) {
    const int64_t heads = file.integer(prefix + ".attention.head_count", 1, 1024);
    place.permuted_heads = part == "attn_q" ? heads : file.integer(prefix + ".attention.head_count_kv", 1, 1024, heads);
  }
  return place;
}

}  // namespace

std::optional<Place> place_of(const GgufFile& file, const std::string& tensor) {
  const Architecture& row = architecture_of(file);
  if (tensor == "rope_freqs.weight" && row.permuted) return std::nullopt;
  if ((tensor == "rope_factors_long.weight" || tensor == "rope_factors_short.weight") && row.fused) return std::nullopt;
  std::optional<Place> place;
  if (tensor == "token_embd.weight") place = {.name = "model.embed_tokens.weight"};
  if (tensor == "output_norm.weight") place = {.name = "model.norm.weight"};
  if (tensor == "output.weight") place = {.name = "lm_head.weight"};
  if (!place) place = layer_place(file, row, tensor);
  if (!place)
    refuse_model(file, "tensor " + in_quotes(tensor) + " is none that specdec reads in a model of architecture '" +
                           row.name +
                           "'; convert the model with llama.cpp's convert_hf_to_gguf.py without options "
                           "that join or split tensors");
  if (row.gemma && place->name.ends_with("norm.weight")) place->minus = 1;
  return place;
}

}  // namespace specdec::gguf
