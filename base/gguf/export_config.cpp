#include "base/gguf/export_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace specdec::gguf {

namespace {

constexpr ErrorKind kExportError = ErrorKind::kModel;

bool is_set(const Json& object, const char* key) { return object.contains(key) && !object.at(key).is_null(); }

// Builds the metadata of one config.json.
class ConfigExport {
 public:
  ConfigExport(const Json& config, const ExportFamily& family, const std::string& where)
      : config_(config), family_(family), where_(where) {}

  ExportedConfig run() {
    refuse_foreign();
    read_shape();
    const ExportShape& s = out_.shape;
    add("context_length", narrow(s.max_position));
    add("embedding_length", narrow(s.hidden));
    add("block_count", narrow(s.layers));
    add("feed_forward_length", narrow(s.intermediate));
    add("attention.head_count", narrow(s.heads));
    add("attention.head_count_kv", narrow(s.kv_heads));
    add("attention.key_length", narrow(s.head_dim));
    add("attention.value_length", narrow(s.head_dim));
    add("attention.layer_norm_rms_epsilon", real(number("rms_norm_eps", 0, 1, family_.epsilon)));
    add("vocab_size", narrow(s.vocab));
    add_rope();
    add_windows();
    if (family_.gemma) add_gemma();
    if (family_.unrotated_layers) check_unrotated();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw Error(kExportError, where_ + ": " + what); }
  static uint32_t narrow(int64_t value) { return static_cast<uint32_t>(value); }
  static float real(double value) { return static_cast<float>(value); }
  void add(const std::string& key, StoredValue value) {
    out_.metadata.emplace_back(std::string(family_.architecture) + "." + key, std::move(value));
  }
  int64_t integer(const char* key, int64_t high, std::optional<int64_t> absent = {}) const {
    return json_int(config_, key, {.low = 1, .high = high, .fallback = absent}, where_, kExportError);
  }
  double number(const char* key, double low, double high, double absent) const {
    return json_double(config_, key, {.low = low, .high = high, .fallback = absent}, where_, kExportError);
  }

  void refuse_foreign() const {
    if (is_set(config_, "quantization_config"))
      refuse("quantization_config: the weights are quantised; export the checkpoint that they were made from");
    if (config_.contains("draft_vocab_size"))
      refuse("draft_vocab_size: an EAGLE-3 head; llama.cpp's convert_hf_to_gguf.py writes it with its target");
    const char* key = family_.gemma ? "hidden_activation" : "hidden_act";
    const std::string usual = family_.gemma ? "gelu_pytorch_tanh" : "silu",
                      found = json_string(config_, key, usual, where_, kExportError);
    if (found != usual) refuse(std::string(key) + ": '" + found.substr(0, 64) + "', llama.cpp computes " + usual);
    if (json_bool(config_, "use_bidirectional_attention", false, where_, kExportError))
      refuse("use_bidirectional_attention: only causal decoders can be written");
  }

  void read_shape() {
    ExportShape& s = out_.shape;
    s.vocab = integer("vocab_size", 1 << 24);
    s.hidden = integer("hidden_size", 1 << 16);
    s.intermediate = integer("intermediate_size", 1 << 20);
    s.layers = integer("num_hidden_layers", 1024);
    s.heads = integer("num_attention_heads", 1024);
    s.kv_heads = integer("num_key_value_heads", s.heads,
                         config_.contains("num_key_value_heads") || family_.kv_heads == 0 ? s.heads : family_.kv_heads);
    const int64_t usual = family_.head_dim != 0 ? family_.head_dim : s.hidden / s.heads;
    s.head_dim = integer("head_dim", 1024, std::max<int64_t>(usual, 1));
    s.max_position = integer("max_position_embeddings", 1 << 30, family_.max_position);
    s.tied = json_bool(config_, "tie_word_embeddings", family_.tied, where_, kExportError);
    if (s.head_dim % 2 != 0) refuse("head_dim: expected an even number, found " + std::to_string(s.head_dim));
    if (s.heads % s.kv_heads != 0) refuse("num_attention_heads must be a multiple of num_key_value_heads");
    if (family_.heads_fill_hidden && s.heads * s.head_dim != s.hidden)
      refuse("head_dim: " + std::to_string(s.heads) + " heads of " + std::to_string(s.head_dim) +
             " values; llama.cpp reads " + family_.architecture + " only if they are hidden_size together (" +
             std::to_string(s.hidden) + ")");
    if (!family_.may_have_head && !s.tied)
      refuse(std::string("tie_word_embeddings: false; llama.cpp reads ") + family_.architecture +
             " only with the embedding as its head");
  }

  // Returns the rope settings of transformers 5 (rope_parameters, for Gemma 3 those of one kind of layers) or of
  // transformers 4 (rope_scaling).
  Json rope_settings(const char* layers) const {
    Json settings = is_set(config_, "rope_parameters") ? config_["rope_parameters"]
                    : is_set(config_, "rope_scaling")  ? config_["rope_scaling"]
                                                       : Json::object();
    if (!settings.is_object()) refuse("rope_parameters: expected an object");
    if (family_.local_rope && settings.contains(layers)) return settings[layers];
    return settings;
  }

  void add_rope() {
    const Json rope = rope_settings("full_attention");
    if (!rope.is_object()) refuse("rope_parameters: expected an object");
    ExportShape& s = out_.shape;
    theta_ = json_double(rope, "rope_theta",
                         {.low = 1, .high = 1e12, .fallback = number("rope_theta", 1, 1e12, family_.theta)}, where_,
                         kExportError);
    const double part =
        json_double(rope, "partial_rotary_factor",
                    {.low = 0, .high = 1, .fallback = number("partial_rotary_factor", 0, 1, 1)}, where_, kExportError);
    s.rotary = static_cast<int64_t>(static_cast<double>(s.head_dim) * part);
    if (s.rotary < 2 || s.rotary % 2 != 0 || (!family_.partial_rotary && s.rotary != s.head_dim))
      refuse("partial_rotary_factor: turns " + std::to_string(s.rotary) + " of " + std::to_string(s.head_dim) +
             " values of a head, which llama.cpp does not for this family");
    add("rope.dimension_count", narrow(s.rotary));
    add("rope.freq_base", real(theta_));
    if (family_.local_rope) add_local_rope();
    if (family_.partial_rotary) add("rope.scaling.original_context_length", narrow(original_context(rope)));
    add_scaling(rope);
  }

  void add_local_rope() {
    const Json local = is_set(config_, "rope_parameters") ? rope_settings("sliding_attention") : Json::object();
    const bool nested = is_set(config_, "rope_parameters") && config_["rope_parameters"].contains("sliding_attention");
    if (nested && (!local.is_object() || local.value("rope_type", Json("default")) != "default"))
      refuse("rope_parameters: sliding_attention: llama.cpp rotates layers with a window without scaling");
    const double usual = number("rope_local_base_freq", 1, 1e12, 10000);
    add("rope.freq_base_swa",
        real(nested
                 ? json_double(local, "rope_theta", {.low = 1, .high = 1e12, .fallback = usual}, where_, kExportError)
                 : usual));
  }

  int64_t original_context(const Json& rope) const {
    constexpr const char* kKey = "original_max_position_embeddings";
    const Json& place = is_set(config_, kKey) ? config_ : rope;
    const int64_t usual = family_.partial_rotary ? 4096 : out_.shape.max_position;
    return json_int(place, kKey, {.low = 1, .high = 1 << 30, .fallback = usual}, where_, kExportError);
  }

  void add_scaling(const Json& rope) {
    std::string type = json_string(rope, "rope_type", json_string(rope, "type", "default", where_, kExportError),
                                   where_, kExportError);
    // The first Phi-3 checkpoints call longrope "su" or "yarn".
    if (family_.fused && (type == "su" || type == "yarn")) type = "longrope";
    if (type == "default") return;
    if (type == "longrope" && family_.partial_rotary) return add_longrope(rope);
    if (type == "dynamic") {
      out_.warnings.push_back("llama.cpp has no dynamic rope scaling: beyond " +
                              std::to_string(out_.shape.max_position) + " tokens it runs another model");
      return;
    }
    const double factor = json_double(rope, "factor", {1, 1e6}, where_, kExportError);
    if (type == "llama3" && family_.reads_rope_factors) return add_llama3(rope, factor);
    if (type == "linear" || (type == "yarn" && !family_.gemma)) {
      add("rope.scaling.type", type);
      add("rope.scaling.factor", real(factor));
      if (type == "yarn") add_yarn(rope, factor);
      return;
    }
    refuse("rope_type: '" + type.substr(0, 64) + "', which llama.cpp does not have for " + family_.architecture);
  }

  void add_yarn(const Json& rope, double factor) {
    const double usual = factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
    const double found =
        json_double(rope, "attention_factor", {.low = 0, .high = 1e6, .fallback = usual}, where_, kExportError);
    const bool truncates = json_bool(rope, "truncate", true, where_, kExportError);
    if (std::fabs(found - usual) > 1e-6 || !truncates || is_set(rope, "mscale") || is_set(rope, "mscale_all_dim"))
      refuse("rope_parameters: attention_factor, truncate or mscale: llama.cpp's yarn has the usual ones only");
    add("rope.scaling.original_context_length", narrow(original_context(rope)));
    for (const auto& [key, name] :
         {std::pair("beta_fast", "rope.scaling.yarn_beta_fast"), std::pair("beta_slow", "rope.scaling.yarn_beta_slow")})
      if (is_set(rope, key)) add(name, real(json_double(rope, key, {1e-3, 1e3}, where_, kExportError)));
  }

  // llama.cpp takes the divisors of the frequencies from a tensor. The formula is that of transformers'
  // _compute_llama3_parameters: waves longer than the original context are stretched, short ones are kept, those
  // between are blended.
  void add_llama3(const Json& rope, double factor) {
    const double low = json_double(rope, "low_freq_factor", {1e-6, 1e6}, where_, kExportError),
                 high = json_double(rope, "high_freq_factor", {1e-6, 1e6}, where_, kExportError);
    if (high <= low) refuse("high_freq_factor must be larger than low_freq_factor");
    const auto context = static_cast<double>(original_context(rope));
    std::vector<float> divisors;
    for (int64_t pair = 0; pair < out_.shape.rotary / 2; ++pair) {
      const double exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(out_.shape.rotary);
      const double turns = context / (2 * std::numbers::pi * std::pow(theta_, exponent));  // within the context
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      divisors.push_back(real(1 / ((1 - kept) / factor + kept)));
    }
    out_.factors.emplace_back("rope_freqs.weight", std::move(divisors));
  }

  void add_longrope(const Json& rope) {
    const auto context = static_cast<double>(original_context(rope));
    const double factor = json_double(
        rope, "factor", {.low = 1e-6, .high = 1e6, .fallback = static_cast<double>(out_.shape.max_position) / context},
        where_, kExportError);
    const double usual = factor <= 1 || context <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(context));
    add("rope.scaling.attn_factor",
        real(json_double(rope, "attention_factor", {.low = 0, .high = 1e6, .fallback = usual}, where_, kExportError)));
    for (const char* kind : {"long", "short"}) {
      const std::string key = std::string(kind) + "_factor";
      const Json& list = json_array(rope, key.c_str(), 512, where_, kExportError);
      if (list.size() != static_cast<size_t>(out_.shape.rotary / 2))
        refuse(key + ": expected " + std::to_string(out_.shape.rotary / 2) + " numbers, found " +
               std::to_string(list.size()));
      std::vector<float> divisors;
      for (const Json& item : list)
        divisors.push_back(real(json_double(Json{{key, item}}, key.c_str(), {1e-6, 1e6}, where_, kExportError)));
      out_.factors.emplace_back("rope_factors_" + std::string(kind) + ".weight", std::move(divisors));
    }
    out_.warnings.push_back(
        "llama.cpp chooses longrope's factors by the size of its context (-c) and not by the text: " +
        std::to_string(static_cast<int64_t>(context)) + " tokens at most give the short ones");
  }

  // Returns for each layer whether it has a window.
  std::vector<bool> sliding_layers() const {
    const auto layers = static_cast<size_t>(out_.shape.layers);
    const int64_t upper =
        json_int(config_, "max_window_layers", {.low = 0, .high = 1 << 20, .fallback = 28}, where_, kExportError);
    const int64_t full_every = integer("sliding_window_pattern", 1 << 20, family_.full_every);
    std::vector<bool> sliding(layers, family_.windows == ExportWindows::kEvery);
    for (size_t l = 0; l < layers; ++l) {
      if (family_.windows == ExportWindows::kSwitched) sliding[l] = static_cast<int64_t>(l) >= upper;
      if (family_.windows == ExportWindows::kAlternating) sliding[l] = static_cast<int64_t>(l + 1) % full_every != 0;
    }
    if (!is_set(config_, "layer_types") || family_.windows == ExportWindows::kNone) return sliding;
    const Json& types = json_array(config_, "layer_types", 1024, where_, kExportError);
    if (types.size() != layers) refuse("layer_types: expected an entry for each layer");
    for (size_t l = 0; l < layers; ++l) sliding[l] = types[l] == "sliding_attention";
    return sliding;
  }

  void add_windows() {
    int64_t window =
        json_int(config_, "sliding_window",
                 {.low = 0, .high = 1 << 30, .fallback = config_.contains("sliding_window") ? 0 : family_.window},
                 where_, kExportError);
    if (family_.windows == ExportWindows::kNone ||
        (family_.windows == ExportWindows::kSwitched &&
         !json_bool(config_, "use_sliding_window", false, where_, kExportError)))
      window = 0;
    const std::vector<bool> sliding = sliding_layers();
    if (family_.windows != ExportWindows::kAlternating) {
      // llama.cpp distinguishes Phi-4 from Phi-3 by a window of 0.
      if (family_.fused) add("attention.sliding_window", narrow(window));
      if (window > 0 && window < out_.shape.max_position && std::ranges::find(sliding, true) != sliding.end())
        out_.warnings.push_back("llama.cpp ignores the window of " + std::to_string(window) +
                                " tokens of this family: on longer texts it runs another model");
      return;
    }
    if (window == 0) refuse("sliding_window: expected at least 1");
    add("attention.sliding_window", narrow(window));
    for (size_t l = 0; l < sliding.size(); ++l)
      if (sliding[l] != (static_cast<int64_t>(l + 1) % family_.full_every != 0)) {
        add("attention.sliding_window_pattern", sliding);
        return;
      }
  }

  // Gemma 2 and 3: soft caps, and the scale of attention scores, which llama.cpp knows by the number of layers.
  void add_gemma() {
    const ExportShape& s = out_.shape;
    const bool has_caps = !family_.local_rope;  // Gemma 2
    const auto cap = [&](const char* key, double usual) {
      return number(key, 1e-3, 1e6, config_.contains(key) ? 0.0 : usual);
    };
    const double scores = cap("attn_logit_softcapping", has_caps ? 50 : 0),
                 logits = cap("final_logit_softcapping", has_caps ? 30 : 0);
    if (has_caps != (scores > 0)) refuse("attn_logit_softcapping: llama.cpp has it for gemma2, and only there");
    if (has_caps && logits == 0) refuse("final_logit_softcapping: llama.cpp expects it for gemma2");
    if (has_caps) add("attn_logit_softcapping", real(scores));
    if (logits > 0) add("final_logit_softcapping", real(logits));
    const bool is_27b = s.layers == (has_caps ? 46 : 62);
    const auto expected = static_cast<double>(is_27b ? s.hidden / s.heads : s.head_dim);
    if (const double found = number("query_pre_attn_scalar", 1e-6, 1e6, 256); found != expected)
      refuse("query_pre_attn_scalar: llama.cpp assumes " + std::to_string(static_cast<int64_t>(expected)) + " for " +
             std::to_string(s.layers) + " layers");
  }

  void check_unrotated() const {
    const auto layers = static_cast<size_t>(out_.shape.layers);
    const int64_t interval = integer("no_rope_layer_interval", 1 << 20, 4);
    const bool listed = is_set(config_, "no_rope_layers");
    const Json list = listed ? json_array(config_, "no_rope_layers", 4096, where_, kExportError) : Json::array();
    if (listed && list.size() < layers) refuse("no_rope_layers: expected an entry for each layer");
    for (size_t l = 0; l < layers; ++l) {
      const bool turned = listed ? list[l] != 0 : static_cast<int64_t>(l + 1) % interval != 0;
      if (turned != ((l + 1) % 4 != 0)) refuse("no_rope_layers: llama.cpp leaves every fourth layer without rotation");
    }
  }

  const Json& config_;
  const ExportFamily& family_;
  const std::string& where_;
  ExportedConfig out_;
  double theta_ = 0;
};

}  // namespace

ExportedConfig export_config(const Json& config, const ExportFamily& family, const std::string& where) {
  return ConfigExport(config, family, where).run();
}

}  // namespace specdec::gguf
