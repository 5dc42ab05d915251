#include "engine/model/config.h"

#include <algorithm>

namespace specdec::model {

namespace {

constexpr ErrorKind kKind = ErrorKind::kModel;

[[noreturn]] void fail(const std::string& where, const std::string& message) { throw Error(kKind, where + ": " + message); }

LayerConfig llama_layer(const Json& config, const std::string& where) {
  const bool attention = json_bool(config, "attention_bias", false, where, kKind);
  return {.qkv_bias = attention, .out_bias = attention, .mlp_bias = json_bool(config, "mlp_bias", false, where, kKind)};
}

// What differs between families: a row here, and the names in weights.cpp.
struct Family {
  const char* model_type;
  const char* architecture;
  LayerConfig (*layer)(const Json& config, const std::string& where);
};
constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", llama_layer}};

const Family& find_family(const std::string& model_type, const std::string& where) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  fail(where, "model_type: '" + model_type + "' is not supported; supported: " + known);
}

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"float32", at::ScalarType::Float}, {"bfloat16", at::ScalarType::BFloat16}, {"float16", at::ScalarType::Half}};

at::ScalarType parse_dtype(const Json& config, const std::string& where) {
  const std::string newer = json_string(config, "dtype", "", where, kKind), older = json_string(config, "torch_dtype", "", where, kKind);
  if (!newer.empty() && !older.empty() && newer != older) fail(where, "dtype '" + newer + "' and torch_dtype '" + older + "' disagree");
  const std::string name = newer.empty() ? older : newer;
  if (name.empty()) return at::ScalarType::Float;
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) return dtype;
  }
  fail(where, "dtype: '" + name + "' is not supported; expected float32, bfloat16 or float16");
}

// One rope object: `rope_scaling` of transformers 4 or `rope_parameters` of transformers 5.
RopeConfig parse_rope_object(const Json& rope, double default_theta, int64_t max_position, const std::string& where) {
  if (!rope.is_object()) fail(where, "expected an object");
  for (const auto& [key, value] : rope.items()) {
    if (value.is_object()) fail(where, "'" + key + "': rope settings per layer type are not supported");
  }
  RopeConfig out;
  out.theta = json_double(rope, "rope_theta", 1, 1e12, default_theta, where, kKind);
  const std::string type = json_string(rope, "rope_type", json_string(rope, "type", "default", where, kKind), where, kKind);
  if (json_double(rope, "partial_rotary_factor", 0, 1, 1.0, where, kKind) != 1.0) fail(where, "partial_rotary_factor other than 1 is not supported");
  if (type == "default") return out;
  if (type != "llama3") fail(where, "rope_type: '" + type + "' is not supported; supported: default, llama3");
  out.kind = RopeConfig::Kind::kLlama3;
  out.factor = json_double(rope, "factor", 1, 1e6, where, kKind);
  out.low_freq_factor = json_double(rope, "low_freq_factor", 1e-6, 1e6, where, kKind);
  out.high_freq_factor = json_double(rope, "high_freq_factor", 1e-6, 1e6, where, kKind);
  out.original_max_position = json_int(rope, "original_max_position_embeddings", 1, 1 << 30, max_position, where, kKind);
  if (out.high_freq_factor <= out.low_freq_factor) fail(where, "high_freq_factor must be larger than low_freq_factor");
  return out;
}

// Both forms may be present (engines read one or the other); if they disagree one engine would run another model.
RopeConfig parse_rope(const Json& config, int64_t max_position, const std::string& where) {
  const auto present = [&](const char* key) { return config.contains(key) && !config.at(key).is_null(); };
  const double theta = json_double(config, "rope_theta", 1, 1e12, 10000.0, where, kKind);
  if (json_double(config, "partial_rotary_factor", 0, 1, 1.0, where, kKind) != 1.0) fail(where, "partial_rotary_factor other than 1 is not supported");
  RopeConfig older{.theta = theta};
  if (present("rope_scaling")) older = parse_rope_object(config["rope_scaling"], theta, max_position, where + ": rope_scaling");
  if (!present("rope_parameters")) return older;
  const RopeConfig newer = parse_rope_object(config["rope_parameters"], theta, max_position, where + ": rope_parameters");
  const bool older_complete = present("rope_theta") && (present("rope_scaling") || newer.kind == RopeConfig::Kind::kDefault);
  if (older_complete && older != newer) fail(where, "rope_parameters and rope_theta / rope_scaling disagree");
  return newer;
}

void add_token_ids(const Json& config, const char* key, int64_t vocab_size, std::vector<int32_t>& ids, const std::string& where) {
  if (!config.contains(key) || config.at(key).is_null()) return;
  const Json& value = config.at(key);
  const Json list = value.is_array() ? value : Json::array({value});
  if (list.size() > 1024) fail(where, std::string(key) + ": more than 1024 ids");
  for (const Json& item : list) {
    const auto id = static_cast<int32_t>(json_int(Json{{key, item}}, key, 0, vocab_size - 1, where, kKind));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

void parse_shape(const Json& config, const std::string& where, DecoderConfig& out) {
  const auto integer = [&](const char* key, int64_t high) { return json_int(config, key, 1, high, where, kKind); };
  out.vocab_size = integer("vocab_size", 1 << 24);
  out.hidden_size = integer("hidden_size", 1 << 16);
  out.intermediate_size = integer("intermediate_size", 1 << 20);
  out.num_layers = integer("num_hidden_layers", 1024);
  out.num_heads = integer("num_attention_heads", 1024);
  out.num_kv_heads = json_int(config, "num_key_value_heads", 1, out.num_heads, out.num_heads, where, kKind);
  if (out.num_heads % out.num_kv_heads != 0) fail(where, "num_attention_heads must be a multiple of num_key_value_heads");
  const bool divides = out.hidden_size % out.num_heads == 0;
  out.head_dim = json_int(config, "head_dim", 2, 1024, divides ? out.hidden_size / out.num_heads : 0, where, kKind);
  if (out.head_dim == 0) fail(where, "hidden_size is no multiple of num_attention_heads, and head_dim is missing");
  if (out.head_dim % 2 != 0) fail(where, "head_dim: expected an even number, found " + std::to_string(out.head_dim));
  out.max_position = json_int(config, "max_position_embeddings", 1, 1 << 30, 2048, where, kKind);
  out.rms_norm_eps = json_double(config, "rms_norm_eps", 0, 1, 1e-6, where, kKind);
}

void refuse_unsupported(const Json& config, const Family& family, const std::string& where) {
  if (config.contains("quantization_config") && !config["quantization_config"].is_null())
    fail(where, "quantization_config: quantised checkpoints are not supported; use the fp32, bf16 or fp16 weights");
  const std::string activation = json_string(config, "hidden_act", "silu", where, kKind);
  if (activation != "silu") fail(where, "hidden_act: '" + activation + "' is not supported; supported: silu");
  if (!config.contains("architectures") || config["architectures"].is_null()) return;
  const Json& names = config["architectures"];
  if (!names.is_array() || std::find(names.begin(), names.end(), family.architecture) == names.end())
    fail(where, "architectures: expected [\"" + std::string(family.architecture) + "\"], found " + names.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

const char* dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (dtype == known) return name;
  }
  throw Error(ErrorKind::kInternal, "dtype " + std::to_string(static_cast<int>(dtype)) + " is no dtype of a decoder");
}

DecoderConfig parse_decoder_config(const Json& config, const std::string& where) {
  if (!config.is_object()) fail(where, "expected a JSON object");
  DecoderConfig out;
  out.model_type = json_string(config, "model_type", where, kKind);
  const Family& family = find_family(out.model_type, where);
  refuse_unsupported(config, family, where);
  parse_shape(config, where, out);
  out.rope = parse_rope(config, out.max_position, where);
  out.tie_embeddings = json_bool(config, "tie_word_embeddings", false, where, kKind);
  out.layers.assign(static_cast<size_t>(out.num_layers), family.layer(config, where));
  out.dtype = parse_dtype(config, where);
  add_token_ids(config, "eos_token_id", out.vocab_size, out.eos_ids, where);
  out.bos_id = static_cast<int32_t>(json_int(config, "bos_token_id", 0, out.vocab_size - 1, -1, where, kKind));
  return out;
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
  const LayerConfig layer = config.layers.empty() ? LayerConfig{} : config.layers.front();
  Json rope = {{"rope_type", "default"}};
  if (config.rope.kind == RopeConfig::Kind::kLlama3) {
    rope = {{"rope_type", "llama3"},
            {"factor", config.rope.factor},
            {"low_freq_factor", config.rope.low_freq_factor},
            {"high_freq_factor", config.rope.high_freq_factor},
            {"original_max_position_embeddings", config.rope.original_max_position}};
  }
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
              {"hidden_act", "silu"},
              {"attention_bias", layer.qkv_bias},
              {"attention_dropout", 0.0},
              {"mlp_bias", layer.mlp_bias},
              {"tie_word_embeddings", config.tie_embeddings},
              {"initializer_range", 0.02},
              {"use_cache", true},
              {"rope_theta", config.rope.theta},
              {"dtype", dtype_name(config.dtype)},
              {"torch_dtype", dtype_name(config.dtype)}};
  // transformers 5 reads rope_parameters, older readers rope_theta + rope_scaling (no rope_scaling: default).
  if (config.rope.kind != RopeConfig::Kind::kDefault) out["rope_scaling"] = rope;
  rope["rope_theta"] = config.rope.theta;
  out["rope_parameters"] = rope;
  if (config.bos_id >= 0) out["bos_token_id"] = config.bos_id;
  if (config.eos_ids.size() == 1) out["eos_token_id"] = config.eos_ids.front();
  if (config.eos_ids.size() > 1) out["eos_token_id"] = config.eos_ids;
  return out;
}

}  // namespace specdec::model
