#include "engine/config/eagle_config.h"

#include <algorithm>

#include "base/error.h"
#include "engine/config/rope.h"

namespace specdec::model {

namespace {

constexpr ErrorKind kEagleError = ErrorKind::kModel;
constexpr int64_t kUsualTaps = 3, kMostTaps = 64;
constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";
constexpr const char* kArchitecture = "LlamaForCausalLMEagle3";
// If the target's rope scaling depends on the length of the text, the target's earlier hidden states change as the text
// grows, but an EAGLE-3 head has already read the old ones.
constexpr const char* kVaryingRope =
    "the target's rope scaling depends on the length of the text (dynamic or longrope): EAGLE-3 heads for such targets "
    "are not supported; use a draft model";
// The class names of EAGLE-3 heads with a plain Llama layer; engines run all of them with the same code. The original
// heads call themselves LlamaForCausalLM.
constexpr const char* kArchitectures[] = {kArchitecture, "Eagle3LlamaForCausalLM", "Eagle3Speculator",
                                          "Eagle3DraftModel", "LlamaForCausalLM"};

[[noreturn]] void fail_eagle(const std::string& where, const std::string& message) {
  throw Error(kEagleError, where + ": " + message);
}

std::vector<int64_t> usual_taps(int64_t layers) { return {2, layers / 2, layers - 3}; }
bool ascend(const std::vector<int64_t>& taps) {
  return std::adjacent_find(taps.begin(), taps.end(), std::greater_equal<>()) == taps.end();
}

bool has_value(const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); }

// Heads of other trainers can have settings of which this runtime supports only one value. Throws if such a setting has
// another value.
void refuse_other_heads(const Json& config, const Json& layer, const std::string& where) {
  const auto only = [&](const Json& object, const char* key, bool value, bool usual) {
    if (json_bool(object, key, usual, where, kEagleError) != value)
      fail_eagle(where, std::string(key) + " " + (value ? "false" : "true") + " is not supported for EAGLE-3 heads");
  };
  for (const char* key : {"attention_bias", "mlp_bias", "tie_word_embeddings"}) only(layer, key, false, false);
  only(config, "bias", false, false);
  const Json eagle = has_value(config, "eagle_config") ? config["eagle_config"] : Json::object();
  if (!eagle.is_object()) fail_eagle(where, "eagle_config: expected an object");
  only(eagle, "use_aux_hidden_state", true, true);
  only(eagle, "use_input_layernorm_in_first_layer", true, true);
  only(eagle, "use_last_layernorm", true, true);
  only(eagle, "use_mtp_layernorm", false, false);
  if (json_int(eagle, "parallel_draft_step", {.low = 0, .high = 1024, .fallback = 1}, where, kEagleError) > 1 ||
      json_bool(config, "parallel_drafting", false, where, kEagleError))
    fail_eagle(where, "a head that drafts several tokens in one pass (P-EAGLE) is not supported");
  if (const int64_t layers = json_int(layer, "num_hidden_layers", {1, 1024}, where, kEagleError); layers != 1)
    fail_eagle(where, "num_hidden_layers: expected 1, found " + std::to_string(layers) +
                          ": engines fuse the norms of further layers differently");
}

void check_architecture(const Json& config, const std::string& where) {
  if (!config.contains("architectures")) return;
  const Json& names = config["architectures"];
  const auto known = [](const Json& name) {
    return name.is_string() && std::find(std::begin(kArchitectures), std::end(kArchitectures),
                                         name.get<std::string>()) != std::end(kArchitectures);
  };
  if (!names.is_array() || std::none_of(names.begin(), names.end(), known))
    fail_eagle(where, "architectures: expected [\"" + std::string(kArchitecture) +
                          "\"], a head with a Llama layer, found " +
                          names.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 200));
}

// Returns the layer ids in the object, each increased by `shift`; empty if there are none.
std::vector<int64_t> parse_ids(const Json& object, int64_t shift, int64_t layers, const std::string& where) {
  std::vector<int64_t> out;
  if (!has_value(object, kLayerIds)) return out;
  for (const Json& id : json_array(object, kLayerIds, kMostTaps, where, kEagleError))
    out.push_back(json_int(Json{{kLayerIds, id}}, kLayerIds, {-shift, layers - shift}, where, kEagleError) + shift);
  if (!ascend(out)) fail_eagle(where, std::string(kLayerIds) + ": expected ascending layers");
  return out;
}

// Parses the layer ids of the taps. vLLM reads the ids at the top level as they are. SGLang reads the ids under
// eagle_config and adds 1 to them for Llama and Qwen targets.
void parse_taps(const Json& config, const DecoderConfig& target, const std::string& where, EagleConfig& out) {
  const Json eagle = has_value(config, "eagle_config") ? config["eagle_config"] : Json::object();
  const std::vector<int64_t> top = parse_ids(config, 0, target.num_layers, where),
                             nested = parse_ids(eagle, 1, target.num_layers, where + ": eagle_config");
  if (!top.empty() && !nested.empty() && top != nested)
    fail_eagle(where, std::string(kLayerIds) +
                          ": the ids under eagle_config must be those at the top less 1 (SGLang adds it), or vLLM and "
                          "SGLang read different layers");
  out.taps = top.empty() ? nested : top;
  out.default_taps = out.taps.empty();
  if (out.default_taps) {
    out.taps = usual_taps(target.num_layers);
    if (out.taps.front() < 0 || out.taps.back() > target.num_layers || !ascend(out.taps))
      fail_eagle(where, std::string(kLayerIds) + ": missing, and a target of " + std::to_string(target.num_layers) +
                            " layers has no default: [2, N / 2, N - 3] needs at least 7");
  }
  const int64_t count = json_int(config, "num_aux_hidden_states",
                                 {.low = 1, .high = kMostTaps, .fallback = out.num_taps()}, where, kEagleError);
  if (count != out.num_taps())
    fail_eagle(where, "num_aux_hidden_states: " + std::to_string(count) + ", but the head reads " +
                          std::to_string(out.num_taps()) + " layers of the target");
}

}  // namespace

EagleConfig eagle_config_for(const DecoderConfig& target) {
  const int64_t n = target.num_layers;
  if (rope_varies(target.rope)) throw Error(ErrorKind::kUsage, std::string("--draft eagle3: ") + kVaryingRope);
  if (n < 4)
    throw Error(ErrorKind::kUsage, "--draft eagle3: the target has " + std::to_string(n) +
                                       " layers; an EAGLE-3 head reads the hidden states between layers at three "
                                       "places, for which a target needs at least 4 layers");
  EagleConfig out;
  out.taps = usual_taps(n);
  out.default_taps = ascend(out.taps);
  if (!out.default_taps) out.taps = {1, n / 2, n - 1};
  DecoderConfig& layer = out.layer;
  layer.model_type = "llama";
  layer.vocab_size = out.draft_vocab_size = target.vocab_size;
  layer.hidden_size = out.target_hidden_size = target.hidden_size;
  layer.intermediate_size = target.intermediate_size;
  layer.num_layers = 1;
  layer.num_heads = target.num_heads;
  layer.num_kv_heads = target.num_kv_heads;
  layer.head_dim = target.head_dim;
  layer.max_position = target.max_position;
  layer.rms_norm_eps = target.rms_norm_eps;
  layer.rope = target.rope;
  layer.rope.rotary_fraction = 1;  // a Llama layer rotates whole heads
  layer.layers.resize(1);
  layer.dtype = target.dtype;
  layer.eos_ids = target.eos_ids;
  layer.bos_id = target.bos_id;
  layer.pad_id = target.pad_id;
  return out;
}

EagleConfig parse_eagle_config(const Json& config, const DecoderConfig& target, const std::string& where) {
  if (!config.is_object()) fail_eagle(where, "expected a JSON object");
  const bool speculators = config.contains("speculators_config") || config.contains("speculators_model_type");
  Json layer = speculators ? json_object(config, "transformer_layer_config", 256, where, kEagleError) : config;
  check_architecture(config, where);
  if (!speculators)
    for (const char* key : {"use_cache", "target_hidden_size", "draft_vocab_size"})
      if (config.contains(key) && config[key].is_null())
        fail_eagle(where, std::string(key) + ": null: SGLang and vLLM expect a value: leave the key out");
  refuse_other_heads(config, layer, where);
  if (const std::string type = json_string(layer, "model_type", "llama", where, kEagleError); type != "llama")
    fail_eagle(where, "model_type '" + type + "': only EAGLE-3 heads with a Llama layer are supported");
  if (rope_varies(target.rope)) fail_eagle(where, kVaryingRope);
  EagleConfig out;
  layer["architectures"] = {"LlamaForCausalLM"};
  layer["model_type"] = "llama";
  out.layer = parse_decoder_config(layer, where);
  if (out.layer.vocab_size != target.vocab_size)
    fail_eagle(where, "vocab_size: expected the target's " + std::to_string(target.vocab_size) + ", found " +
                          std::to_string(out.layer.vocab_size));
  out.draft_vocab_size =
      json_int(config, "draft_vocab_size", {.low = 1, .high = target.vocab_size, .fallback = target.vocab_size}, where,
               kEagleError);
  out.target_hidden_size = json_int(config, "target_hidden_size",
                                    {.low = 1, .high = 1 << 16, .fallback = out.layer.hidden_size}, where, kEagleError);
  if (out.target_hidden_size != target.hidden_size)
    fail_eagle(where, "the head reads hidden states of " + std::to_string(out.target_hidden_size) +
                          " values, the target's have " + std::to_string(target.hidden_size));
  if (speculators && !has_value(config, "norm_before_residual"))
    fail_eagle(where, "norm_before_residual: missing: trainers and vLLM differ in the default, write what was trained");
  const auto flag = [&](const char* key) { return json_bool(config, key, false, where, kEagleError); };
  out.norm_before_residual = flag("norm_before_residual");
  out.norm_before_fc = flag("norm_before_fc");
  if (has_value(config, "eagle_config"))
    out.norm_before_fc =
        json_bool(config["eagle_config"], "norm_before_fc", out.norm_before_fc, where + ": eagle_config", kEagleError);
  out.fc_norm = flag("fc_norm");
  out.norm_output = flag("norm_output");
  if (out.norm_before_fc && out.fc_norm) fail_eagle(where, "norm_before_fc and fc_norm exclude each other");
  parse_taps(config, target, where, out);
  return out;
}

EagleConfig load_eagle_config(const std::filesystem::path& directory, const DecoderConfig& target) {
  const auto file = directory / "config.json";
  return parse_eagle_config(read_json(file, kEagleError), target, file.string());
}

Json to_json(const EagleConfig& config) {
  DecoderConfig layer = config.layer;
  layer.draft_vocab.clear();
  Json out = to_json(layer);
  out["architectures"] = {kArchitecture};
  out["draft_vocab_size"] = config.draft_vocab_size;
  if (config.target_hidden_size != layer.hidden_size) out["target_hidden_size"] = config.target_hidden_size;
  out["norm_before_residual"] = config.norm_before_residual;
  out["norm_before_fc"] = config.norm_before_fc;
  out["fc_norm"] = config.fc_norm;
  out["norm_output"] = config.norm_output;
  out["eagle_config"] = {{"use_aux_hidden_state", true}};
  if (config.num_taps() != kUsualTaps) out["num_aux_hidden_states"] = config.num_taps();
  if (config.default_taps) return out;
  std::vector<int64_t> nested = config.taps;
  for (int64_t& id : nested) --id;
  out[kLayerIds] = config.taps;
  out["eagle_config"][kLayerIds] = nested;
  return out;
}

Json to_speculators_json(const EagleConfig& config, const Verifier& verifier) {
  DecoderConfig layer = config.layer;
  layer.draft_vocab.clear();
  Json inner = to_json(layer);
  inner.erase("architectures");
  Json out = {{"architectures", {"Eagle3Speculator"}},
              {"speculators_model_type", "eagle3"},
              {"speculators_version", "0.7.0"},
              {"draft_vocab_size", config.draft_vocab_size},
              {"norm_before_residual", config.norm_before_residual},
              {"norm_before_fc", config.norm_before_fc},
              {"fc_norm", config.fc_norm},
              {"norm_output", config.norm_output},
              {"torch_dtype", dtype_name(layer.dtype)},
              {"transformer_layer_config", inner},
              {"speculators_config",
               {{"algorithm", "eagle3"},
                {"default_proposal_method", "greedy"},
                {"proposal_methods", Json::array({{{"proposal_type", "greedy"},
                                                   {"speculative_tokens", verifier.k},
                                                   {"verifier_accept_k", 1},
                                                   {"accept_tolerance", 0.0}}})},
                {"verifier", {{"name_or_path", verifier.name}, {"architectures", {verifier.architecture}}}}}}};
  if (config.target_hidden_size != layer.hidden_size) out["target_hidden_size"] = config.target_hidden_size;
  if (!config.default_taps) out[kLayerIds] = config.taps;
  return out;
}

}  // namespace specdec::model
