#include "engine/config/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/config/families.h"

namespace specdec::model {

namespace {

constexpr ErrorKind kKind = ErrorKind::kModel;

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw Error(kKind, where + ": " + message);
}

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"float32", at::ScalarType::Float}, {"bfloat16", at::ScalarType::BFloat16}, {"float16", at::ScalarType::Half}};

at::ScalarType parse_dtype(const Json& config, const std::string& where) {
  const std::string newer = json_string(config, "dtype", "", where, kKind),
                    older = json_string(config, "torch_dtype", "", where, kKind);
  if (!newer.empty() && !older.empty() && newer != older)
    fail(where, "dtype '" + newer + "' and torch_dtype '" + older + "' disagree");
  const std::string name = newer.empty() ? older : newer;
  if (name.empty()) return at::ScalarType::Float;
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) return dtype;
  }
  fail(where, "dtype: '" + name + "' is not supported; expected float32, bfloat16 or float16");
}

void add_token_ids(const Json& config, const char* key, int64_t vocab_size, std::vector<int32_t>& ids,
                   const std::string& where) {
  if (!config.contains(key) || config.at(key).is_null()) return;
  const Json& value = config.at(key);
  const Json list = value.is_array() ? value : Json::array({value});
  if (list.size() > 1024) fail(where, std::string(key) + ": more than 1024 ids");
  for (const Json& item : list) {
    const auto id = static_cast<int32_t>(json_int(Json{{key, item}}, key, {0, vocab_size - 1}, where, kKind));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"silu", Activation::kSilu}, {"gelu_pytorch_tanh", Activation::kGeluTanh}, {"gelu_new", Activation::kGeluTanh}};

void parse_shape(const Json& config, const Family& family, const std::string& where, DecoderConfig& out) {
  const auto integer = [&](const char* key, int64_t high) { return json_int(config, key, {1, high}, where, kKind); };
  out.vocab_size = integer("vocab_size", 1 << 24);
  out.hidden_size = integer("hidden_size", 1 << 16);
  out.intermediate_size = integer("intermediate_size", 1 << 20);
  out.num_layers = integer("num_hidden_layers", 1024);
  out.num_heads = integer("num_attention_heads", 1024);
  // As in transformers, null means one kv head per query head, and an absent key means the family's default.
  const int64_t usual_kv_heads =
      config.contains("num_key_value_heads") || family.num_kv_heads == 0 ? out.num_heads : family.num_kv_heads;
  out.num_kv_heads = json_int(config, "num_key_value_heads",
                              {.low = 1, .high = out.num_heads, .fallback = usual_kv_heads}, where, kKind);
  if (out.num_heads % out.num_kv_heads != 0)
    fail(where, "num_attention_heads must be a multiple of num_key_value_heads, found " +
                    std::to_string(out.num_heads) + " and " + std::to_string(out.num_kv_heads));
  const int64_t usual = family.head_dim != 0                   ? family.head_dim
                        : out.hidden_size % out.num_heads == 0 ? out.hidden_size / out.num_heads
                                                               : 0;
  out.head_dim = json_int(config, "head_dim", {.low = 2, .high = 1024, .fallback = usual}, where, kKind);
  if (out.head_dim == 0) fail(where, "hidden_size is no multiple of num_attention_heads, and head_dim is missing");
  if (out.head_dim % 2 != 0) fail(where, "head_dim: expected an even number, found " + std::to_string(out.head_dim));
  out.max_position = json_int(config, "max_position_embeddings",
                              {.low = 1, .high = 1 << 30, .fallback = family.max_position}, where, kKind);
  out.rms_norm_eps =
      json_double(config, "rms_norm_eps", {.low = 0, .high = 1, .fallback = family.rms_norm_eps}, where, kKind);
}

void parse_arithmetic(const Json& config, const Family& family, const std::string& where, DecoderConfig& out) {
  const std::string activation =
      json_string(config, family.activation_key, family.activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh",
                  where, kKind);
  const auto* known = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& entry) { return activation == entry.first; });
  if (known == std::end(kActivations))
    fail(where, std::string(family.activation_key) + ": '" + activation +
                    "' is not supported; supported: silu, gelu_pytorch_tanh");
  out.activation = known->second;
  out.norm_offset = family.norm_offset;
  out.norm_rounds_last = family.norm_rounds_last;
  if (!family.gemma) return;
  if (json_bool(config, "use_bidirectional_attention", false, where, kKind))
    fail(where, "use_bidirectional_attention: only causal decoders are supported");
  // A soft cap of null means no cap; an absent key means the family's default.
  const auto soft_cap = [&](const char* key, double usual) {
    return json_double(config, key, {.low = 1e-3, .high = 1e6, .fallback = config.contains(key) ? 0.0 : usual}, where,
                       kKind);
  };
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  out.attention_scalar =
      json_double(config, "query_pre_attn_scalar", {.low = 1e-6, .high = 1e6, .fallback = 256}, where, kKind);
  out.attention_soft_cap = soft_cap("attn_logit_softcapping", family.attention_soft_cap);
  out.final_soft_cap = soft_cap("final_logit_softcapping", family.final_soft_cap);
}

// Returns a list with true for each layer of layer_types that has sliding attention; empty if the key is absent.
std::vector<bool> parse_layer_types(const Json& config, int64_t num_layers, const std::string& where) {
  std::vector<bool> sliding;
  if (!config.contains("layer_types") || config["layer_types"].is_null()) return sliding;
  const Json& list = json_array(config, "layer_types", 1024, where, kKind);
  if (list.size() != static_cast<size_t>(num_layers))
    fail(where, "layer_types: expected " + std::to_string(num_layers) + " entries, one for each layer, found " +
                    std::to_string(list.size()));
  for (const Json& item : list) {
    if (item != "sliding_attention" && item != "full_attention")
      fail(where, "layer_types: " + item.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80) +
                      " is not supported; supported: full_attention, sliding_attention");
    sliding.push_back(item == "sliding_attention");
  }
  return sliding;
}

void parse_windows(const Json& config, const Family& family, const std::string& where, DecoderConfig& out) {
  const std::vector<bool> types = parse_layer_types(config, out.num_layers, where);
  const bool by_switch = family.windows == Windows::kSwitched || family.windows == Windows::kUpper ||
                         family.windows == Windows::kUnrotated;
  int64_t window =
      json_int(config, "sliding_window",
               {.low = 1, .high = 1 << 30, .fallback = config.contains("sliding_window") ? 0 : family.sliding_window},
               where, kKind);
  if (family.windows == Windows::kNone || (by_switch && !json_bool(config, "use_sliding_window", false, where, kKind)))
    window = 0;
  const int64_t upper =
      json_int(config, "max_window_layers", {.low = 0, .high = 1 << 20, .fallback = 28}, where, kKind);
  const int64_t full_every =
      json_int(config, "sliding_window_pattern",
               {.low = 1, .high = 1 << 20, .fallback = std::max<int64_t>(family.full_every, 1)}, where, kKind);
  const bool by_layer = family.windows == Windows::kUpper || family.windows == Windows::kUnrotated ||
                        family.windows == Windows::kAlternating;
  for (size_t l = 0; l < out.layers.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    bool sliding = family.windows != Windows::kNone;
    if (family.windows == Windows::kUpper) sliding = layer >= upper;
    if (family.windows == Windows::kUnrotated) sliding = out.layers[l].rope == LayerRope::kNone;
    if (family.windows == Windows::kAlternating) sliding = (layer + 1) % full_every != 0;
    if (by_layer && !types.empty()) sliding = types[l];
    if (by_layer && !types.empty() && sliding && window == 0)
      fail(where,
           "layer_types: layer " + std::to_string(l) + " has sliding_attention, and there is no window" +
               (by_switch ? ": expected use_sliding_window true and a sliding_window" : ": expected a sliding_window"));
    if (!by_layer && !types.empty() && window != 0 && types[l] != sliding)
      fail(where, "layer_types: " + std::string(family.model_type) + " has the same attention in every layer; layer " +
                      std::to_string(l) + " differs");
    out.layers[l].window = sliding ? window : 0;
    if (family.local_rope && sliding) out.layers[l].rope = LayerRope::kLocal;
  }
  if (family.local_rope && window == 0) fail(where, "sliding_window: " + std::string(family.model_type) + " needs one");
}

void parse_experts(const Json& config, const Family& family, const std::string& where, DecoderConfig& out) {
  if (!family.experts.router) return;
  const bool local = config.contains("num_local_experts");
  out.num_experts = json_int(config, local ? "num_local_experts" : "num_experts", {1, 4096}, where, kKind);
  if (out.num_experts * out.num_layers > 65536)
    fail(where, "num_experts: more than 65536 experts in all layers together");
  out.experts_per_token = json_int(config, "num_experts_per_tok", {1, out.num_experts}, where, kKind);
  const char* width = family.experts.width;
  out.expert_intermediate_size = width ? json_int(config, width, {1, 1 << 20}, where, kKind) : out.intermediate_size;
  out.normalise_experts = width ? json_bool(config, "norm_topk_prob", false, where, kKind) : true;
  const int64_t step =
      width ? json_int(config, "decoder_sparse_step", {.low = 1, .high = 1 << 20, .fallback = 1}, where, kKind) : 1;
  for (size_t l = 0; l < out.layers.size(); ++l) out.layers[l].experts = (static_cast<int64_t>(l) + 1) % step == 0;
  if (!width || !config.contains("mlp_only_layers") || config["mlp_only_layers"].is_null()) return;
  for (const Json& item : json_array(config, "mlp_only_layers", 1024, where, kKind)) {
    const int64_t layer =
        json_int(Json{{"mlp_only_layers", item}}, "mlp_only_layers", {0, out.num_layers - 1}, where, kKind);
    out.layers[static_cast<size_t>(layer)].experts = false;
  }
}

void parse_layers(const Json& config, const Family& family, const std::string& where, DecoderConfig& out) {
  const bool bias = family.biases == Biases::kFlag && json_bool(config, "attention_bias", false, where, kKind);
  LayerConfig layer{.qkv_bias = bias || family.biases == Biases::kQkv, .out_bias = bias, .qk_norm = family.qk_norm};
  layer.mlp_bias = family.mlp_bias && json_bool(config, "mlp_bias", false, where, kKind);
  layer.input_norm = layer.mlp_norm = family.norms != Norms::kAfter;
  layer.attention_out_norm = layer.mlp_out_norm = family.norms != Norms::kBefore;
  out.layers.assign(static_cast<size_t>(out.num_layers), layer);
  if (family.unrotated_layers) {
    const int64_t interval =
        json_int(config, "no_rope_layer_interval", {.low = 1, .high = 1 << 20, .fallback = 4}, where, kKind);
    const bool listed = config.contains("no_rope_layers") && !config["no_rope_layers"].is_null();
    if (listed && json_array(config, "no_rope_layers", 4096, where, kKind).size() < out.layers.size())
      fail(where, "no_rope_layers: expected an entry for each of the " + std::to_string(out.num_layers) + " layers");
    for (size_t l = 0; l < out.layers.size(); ++l) {
      const bool turned = listed ? json_int(Json{{"no_rope_layers", config["no_rope_layers"][l]}}, "no_rope_layers",
                                            {0, 1}, where, kKind) != 0
                                 : (static_cast<int64_t>(l) + 1) % interval != 0;
      if (!turned) out.layers[l].rope = LayerRope::kNone;
    }
  }
  parse_windows(config, family, where, out);
  parse_experts(config, family, where, out);
}

void refuse_unsupported(const Json& config, const Family& family, const std::string& where) {
  if (!config.contains("architectures") || config["architectures"].is_null()) return;
  const Json& names = config["architectures"];
  if (!names.is_array() || std::find(names.begin(), names.end(), family.architecture) == names.end())
    fail(where, "architectures: expected [\"" + std::string(family.architecture) + "\"], found " +
                    names.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Writes the settings that parse_layers() and parse_arithmetic() read. A setting is written per layer only if other
// engines can read the per-layer form for this model family.
void write_layers(const DecoderConfig& config, const Family& family, Json& out) {
  const LayerConfig first = config.layers.empty() ? LayerConfig{} : config.layers.front();
  if (family.biases == Biases::kFlag) out["attention_bias"] = first.qkv_bias;
  if (family.mlp_bias) out["mlp_bias"] = first.mlp_bias;
  int64_t window = 0;
  Json types = Json::array(), turned = Json::array(), dense = Json::array();
  size_t lowest = config.layers.size();  // first layer with a window
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerConfig& layer = config.layers[l];
    window = std::max(window, layer.window);
    if (layer.window != 0) lowest = std::min(lowest, l);
    types.push_back(layer.window != 0 ? "sliding_attention" : "full_attention");
    turned.push_back(layer.rope == LayerRope::kNone ? 0 : 1);
    if (!layer.experts) dense.push_back(l);
  }
  const bool by_switch = family.windows == Windows::kSwitched || family.windows == Windows::kUpper ||
                         family.windows == Windows::kUnrotated;
  if (by_switch) out["use_sliding_window"] = window != 0;
  if (window != 0) out["sliding_window"] = window;
  // Writes null, because the family's default would apply if the key were absent.
  if (window == 0 && (family.windows == Windows::kAll || by_switch)) out["sliding_window"] = nullptr;
  if (family.windows == Windows::kUpper) out["max_window_layers"] = lowest;
  if (family.windows == Windows::kUpper || family.windows == Windows::kUnrotated ||
      family.windows == Windows::kAlternating)
    out["layer_types"] = types;
  if (family.unrotated_layers) out["no_rope_layers"] = turned;
  if (family.gemma) {
    const auto whole = static_cast<int64_t>(config.attention_scalar);  // transformers expects an integer
    out["query_pre_attn_scalar"] =
        static_cast<double>(whole) == config.attention_scalar ? Json(whole) : Json(config.attention_scalar);
    out["attn_logit_softcapping"] = config.attention_soft_cap != 0 ? Json(config.attention_soft_cap) : Json();
    out["final_logit_softcapping"] = config.final_soft_cap != 0 ? Json(config.final_soft_cap) : Json();
  }
  if (!family.experts.router) return;
  out["num_experts_per_tok"] = config.experts_per_token;
  if (!family.experts.width) {
    out["num_local_experts"] = config.num_experts;
    return;
  }
  out.update(Json{{"num_experts", config.num_experts},
                  {family.experts.width, config.expert_intermediate_size},
                  {"norm_topk_prob", config.normalise_experts},
                  {"decoder_sparse_step", 1},
                  {"mlp_only_layers", dense}});
}

}  // namespace

const char* dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (dtype == known) return name;
  }
  throw Error(ErrorKind::kInternal, "dtype " + std::to_string(static_cast<int>(dtype)) + " is no dtype of a decoder");
}

double DecoderConfig::attention_scale() const {
  return 1.0 / std::sqrt(attention_scalar != 0 ? attention_scalar : static_cast<double>(head_dim));
}

DecoderConfig parse_decoder_config(const Json& config, const std::string& where) {
  if (!config.is_object()) fail(where, "expected a JSON object");
  DecoderConfig out;
  out.model_type = json_string(config, "model_type", where, kKind);
  const Family& family = find_family(out.model_type, where);
  refuse_unsupported(config, family, where);
  parse_shape(config, family, where, out);
  parse_arithmetic(config, family, where, out);
  parse_rope(config, family, where, out);
  out.tie_embeddings = json_bool(config, "tie_word_embeddings", family.tied, where, kKind);
  out.draft_vocab = parse_draft_vocab(config, out.vocab_size, where);
  parse_layers(config, family, where, out);
  out.dtype = parse_dtype(config, where);
  out.quantisation = parse_quantisation(config, where);
  add_token_ids(config, "eos_token_id", out.vocab_size, out.eos_ids, where);
  out.bos_id = static_cast<int32_t>(
      json_int(config, "bos_token_id", {.low = 0, .high = out.vocab_size - 1, .fallback = -1}, where, kKind));
  // pad_token_id is often −1 or outside the vocabulary. It is then ignored, because specdec does not need it.
  const int64_t pad = json_int(
      config, "pad_token_id",
      {.low = std::numeric_limits<int32_t>::min(), .high = std::numeric_limits<int32_t>::max(), .fallback = -1}, where,
      kKind);
  if (pad >= 0 && pad < out.vocab_size) out.pad_id = static_cast<int32_t>(pad);
  return out;
}

bool add_eos_id(DecoderConfig& config, int32_t id) {
  std::vector<int32_t>& ids = config.eos_ids;
  if (id < 0 || id >= config.vocab_size || std::find(ids.begin(), ids.end(), id) != ids.end()) return false;
  ids.push_back(id);
  return true;
}

DecoderConfig load_decoder_config(const std::filesystem::path& directory) {
  const auto file = directory / "config.json", generation = directory / "generation_config.json";
  DecoderConfig out = parse_decoder_config(read_json(file, kKind), file.string());
  if (std::filesystem::exists(generation)) {
    const Json object = read_json(generation, kKind);
    if (!object.is_object()) fail(generation.string(), "expected a JSON object");
    add_token_ids(object, "eos_token_id", out.vocab_size, out.eos_ids, generation.string());
  }
  return out;
}

Json to_json(const DecoderConfig& config) {
  const Family& family = find_family(config.model_type, "config");
  Json out = {{"architectures", Json::array({family.architecture})},
              {"model_type", config.model_type},
              {"vocab_size", config.vocab_size},
              {"hidden_size", config.hidden_size},
              {"intermediate_size", config.intermediate_size},
              {"num_hidden_layers", config.num_layers},
              {"num_attention_heads", config.num_heads},
              {"num_key_value_heads", config.num_kv_heads},
              {"head_dim", config.head_dim},
              {"max_position_embeddings", config.max_position},
              {"rms_norm_eps", config.rms_norm_eps},
              {"attention_dropout", 0.0},
              {"tie_word_embeddings", config.tie_embeddings},
              {"initializer_range", 0.02},
              {"use_cache", true},
              {"dtype", dtype_name(config.dtype)},
              {"torch_dtype", dtype_name(config.dtype)}};
  out[family.activation_key] = config.activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh";
  write_rope(config, family, out);
  write_layers(config, family, out);
  if (config.bos_id >= 0) out["bos_token_id"] = config.bos_id;
  if (config.pad_id >= 0) out["pad_token_id"] = config.pad_id;
  // Writes null, because an absent key would mean the family's default id, which can be outside a small vocabulary.
  if (config.pad_id < 0 && family.pads) out["pad_token_id"] = nullptr;
  if (config.eos_ids.size() == 1) out["eos_token_id"] = config.eos_ids.front();
  if (config.eos_ids.size() > 1) out["eos_token_id"] = config.eos_ids;
  write_draft_vocab(config.draft_vocab, out);
  return out;
}

}  // namespace specdec::model
