#include "deploy/package/lint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/safetensors.h"
#include "base/schema/binding.h"
#include "base/schema/gate_summary.h"
#include "deploy/package/launch.h"

namespace specdec::deploy {

namespace {

using Shape = std::vector<int64_t>;

std::string text_of(const Shape& shape) { return canonical_json(Json(shape)); }

// Checks one draft against its target. Every check adds to `findings_`.
class Linter {
 public:
  Linter(const fs::path& target, const fs::path& draft)
      : file_((draft / "config.json").string()),
        draft_(draft),
        target_dir_(target),
        config_(read_json(draft / "config.json", ErrorKind::kModel)),
        target_(read_json(target / "config.json", ErrorKind::kModel)),
        head_(is_eagle3(config_)),
        speculators_(config_.contains("speculators_config")) {}

  std::vector<Finding> run(const std::optional<ValidationReport>& report) {
    for (const auto& [config, directory] : {std::pair(&config_, &draft_), std::pair(&target_, &target_dir_)})
      if (!config->is_object())
        throw Error(ErrorKind::kModel, (*directory / "config.json").string() + ": expected an object");
    if (!known_format()) return findings_;
    findings_ = check_pair(target_dir_, draft_, head_);
    const SafetensorsDirectory tensors(draft_);
    tensors_ = &tensors;
    if (head_)
      eagle();
    else
      small_model();
    binding(report);
    return findings_;
  }

 private:
  void add(bool fatal, const char* rule, const std::string& text) { findings_.push_back({fatal, rule, file_, text}); }
  const Json& layers_config() const {
    return speculators_ && config_.contains("transformer_layer_config") ? config_["transformer_layer_config"] : config_;
  }
  int64_t number_in(const Json& config, const char* key, int64_t fallback) const {
    return json_int(config, key, {.low = 1, .high = int64_t{1} << 40, .fallback = fallback}, file_, ErrorKind::kModel);
  }
  int64_t number(const char* key, int64_t fallback) const { return number_in(layers_config(), key, fallback); }
  int64_t top_number(const char* key, int64_t fallback) const { return number_in(config_, key, fallback); }
  bool flag(const char* key, bool fallback) const {
    return json_bool(config_, key, fallback, file_, ErrorKind::kModel);
  }

  // Returns false and adds a finding if no engine serves this format or if this linter cannot check it.
  bool known_format() {
    const Json type = config_.value("model_type", Json());
    std::string architectures = config_.contains("architectures") ? canonical_json(config_["architectures"]) : "";
    if (config_.contains("medusa_num_heads") || architectures.find("Medusa") != std::string::npos)
      add(true, "format",
          "Medusa heads: vLLM 0.33 and SGLang 0.5.23 have no loader for them any more: distil a small model or an "
          "EAGLE-3 head");
    else if (type == "mlp_speculator")
      add(true, "format", "an MLP or LSTM speculator: of the engines only ArcticInference loads it");
    else if (!head_ &&
             (architectures.find("Eagle") != std::string::npos || architectures.find("EAGLE") != std::string::npos))
      add(true, "format", "an EAGLE-1 or -2 head: not checked here, and EAGLE-3 accepts more: " + architectures);
    else if (architectures.find("DFlash") != std::string::npos || (speculators_ && !head_))
      add(true, "format",
          "a block or parallel drafter (" +
              canonical_json(config_.value("speculators_model_type", Json(architectures))) +
              "): serve it with vLLM as its authors say");
    else
      return true;
    return false;
  }

  // ---- small models ----

  void small_model() {
    static const std::set<std::string> kListed = {"llama", "mistral", "qwen2", "qwen3"};
    const std::string type = json_string(config_, "model_type", "", file_, ErrorKind::kModel);
    if (kListed.count(type)) {
      std::map<std::string, Shape> required = decoder_tensors(type);
      std::map<std::string, Shape> optional = {{"lm_head.weight", required.at("model.embed_tokens.weight")}};
      if (!flag("tie_word_embeddings", false)) required.insert(optional.extract("lm_head.weight"));
      compare_tensors(required, optional);
    }
    padded_rows();
  }

  std::map<std::string, Shape> decoder_tensors(const std::string& type) const {
    const int64_t hidden = number("hidden_size", 1), mlp = number("intermediate_size", 4 * hidden),
                  layers = number("num_hidden_layers", 1);
    const int64_t heads = number("num_attention_heads", 1), groups = number("num_key_value_heads", heads),
                  size = number("head_dim", std::max<int64_t>(1, hidden / heads));
    std::map<std::string, Shape> names = {{"model.embed_tokens.weight", {number("vocab_size", 1), hidden}},
                                          {"model.norm.weight", {hidden}}};
    for (int64_t i = 0; i < std::min<int64_t>(layers, 4096); ++i) {
      const std::string at = "model.layers." + std::to_string(i) + ".";
      add_layer(names, at, {.hidden = hidden, .input = hidden, .mlp = mlp, .q = heads * size, .kv = groups * size});
      names[at + "input_layernorm.weight"] = {hidden};
      if (type == "qwen2")
        for (const auto& [part, rows] : {std::pair("q", heads), std::pair("k", groups), std::pair("v", groups)})
          names[at + "self_attn." + part + "_proj.bias"] = {rows * size};
      if (type == "qwen3")
        for (const char* part : {"q", "k"}) names[at + "self_attn." + part + "_norm.weight"] = {size};
    }
    return names;
  }

  // Holds the vector widths of a decoder layer. `q` and `kv` are the widths of all heads together.
  struct LayerSizes {
    int64_t hidden, input, mlp, q, kv;
  };
  static void add_layer(std::map<std::string, Shape>& names, const std::string& at, const LayerSizes& layer) {
    names[at + "self_attn.q_proj.weight"] = {layer.q, layer.input};
    names[at + "self_attn.k_proj.weight"] = names[at + "self_attn.v_proj.weight"] = {layer.kv, layer.input};
    names[at + "self_attn.o_proj.weight"] = {layer.hidden, layer.q};
    names[at + "mlp.gate_proj.weight"] = names[at + "mlp.up_proj.weight"] = {layer.mlp, layer.hidden};
    names[at + "mlp.down_proj.weight"] = {layer.hidden, layer.mlp};
    names[at + "post_attention_layernorm.weight"] = {layer.hidden};
  }

  bool quantised() const {
    return config_.contains("quantization_config") && !config_["quantization_config"].is_null();
  }

  // These two recognise tensors that quantisers store in place of a matrix or next to it. Engines check the shapes.
  bool is_quantised(const std::string& matrix) const {
    const std::string stem = matrix.substr(0, matrix.rfind('.') + 1);
    return quantised() && (tensors_->contains(stem + "qweight") || tensors_->contains(stem + "weight_packed"));
  }
  bool belongs_to_quantised(const std::string& name, const std::map<std::string, Shape>& required) const {
    static const std::set<std::string> kParts = {"qweight",
                                                 "qzeros",
                                                 "scales",
                                                 "g_idx",
                                                 "weight_packed",
                                                 "weight_shape",
                                                 "weight_zero_point",
                                                 "weight_g_idx",
                                                 "weight_scale",
                                                 "weight_scale_inv",
                                                 "weight_global_scale",
                                                 "input_scale",
                                                 "input_global_scale",
                                                 "k_scale",
                                                 "v_scale"};
    const size_t dot = name.rfind('.') + 1;
    return quantised() && kParts.count(name.substr(dot)) != 0 &&
           (required.count(name.substr(0, dot) + "weight") != 0 || name.ends_with("_scale"));
  }

  void compare_tensors(const std::map<std::string, Shape>& required, const std::map<std::string, Shape>& optional) {
    for (const auto& [name, shape] : required) {
      if (is_quantised(name)) continue;
      if (!tensors_->contains(name))
        add(true, "tensors", name + ": missing");
      else if (tensors_->entry(name).shape != shape)
        add(true, "tensors",
            name + ": shape " + text_of(tensors_->entry(name).shape) + ", config.json says " + text_of(shape));
    }
    for (const std::string& name : tensors_->names()) {
      if (required.count(name) || belongs_to_quantised(name, required)) continue;
      const auto known = optional.find(name);
      if (known == optional.end())
        add(head_, "tensors", name + ": unknown: SGLang ignores it silently, so it has no effect");
      else if (!known->second.empty() && tensors_->entry(name).shape != known->second)
        add(true, "tensors",
            name + ": shape " + text_of(tensors_->entry(name).shape) + ", expected " + text_of(known->second));
    }
  }

  // Warns about zero rows at the end of the output matrix, which pad the vocabulary. They give logit 0, which takes
  // probability from real tokens.
  void padded_rows() {
    const char* const head = tensors_->contains("lm_head.weight") ? "lm_head.weight" : "model.embed_tokens.weight";
    if (!tensors_->contains(head)) return;
    const TensorEntry& entry = tensors_->entry(head);
    if (entry.shape.size() != 2 || entry.shape[0] < 1) return;
    const size_t row_bytes = entry.bytes / static_cast<size_t>(entry.shape[0]);
    std::vector<std::byte> row(row_bytes);
    int64_t zeros = 0;
    for (int64_t i = entry.shape[0] - 1; i >= 0; --i) {
      tensors_->shard_of(head).file().read(entry.offset + static_cast<uint64_t>(i) * row_bytes, row);
      if (std::any_of(row.begin(), row.end(), [](std::byte b) { return b != std::byte{0}; })) break;
      ++zeros;
    }
    if (zeros > 0 && zeros < entry.shape[0])
      add(false, "vocab-size",
          std::string(head) + ": the last " + std::to_string(zeros) +
              " rows are zeros (padding): their logit 0 takes probability from real tokens");
  }

  // ---- EAGLE-3 heads ----

  void eagle() {
    if (layers_config().value("num_hidden_layers", Json(1)) != 1)
      add(true, "layers",
          "num_hidden_layers " + canonical_json(layers_config()["num_hidden_layers"]) +
              ", expected 1: beyond the first layer vLLM and SGLang fuse different norms");
    if (speculators_) {
      add(false, "format", "speculators format: vLLM alone reads it; for SGLang write the plain layout");
      speculators();
    } else if (config_.contains("norm_before_residual") ? flag("norm_before_residual", false) : false) {
      add(true, "norm-before-residual",
          "norm_before_residual true: implemented in vLLM only; in SGLang the head computes something else");
    } else if (!config_.contains("norm_before_residual")) {
      add(false, "norm-before-residual",
          "norm_before_residual: write false: trainers and engines differ in the default");
    }
    if (flag("tie_word_embeddings", false))
      add(true, "tensors", "tie_word_embeddings true: SGLang uses the embedding as the head");
    if (!speculators_ && !config_.contains("draft_vocab_size"))
      add(true, "vocab-map", "draft_vocab_size: missing: SGLang reads it always");
    eagle_tensors();
    vocabulary_map();
    embedding();
    initial_head();
    auxiliary_layers();
  }

  void speculators() {
    if (!config_.contains("norm_before_residual"))
      add(true, "norm-before-residual",
          "norm_before_residual: missing: vLLM takes true for an EAGLE-3 head of this format: write what was trained");
    if (!config_.contains("transformer_layer_config")) add(true, "format", "transformer_layer_config: missing");
    const Json& inner = json_object(config_, "speculators_config", 64, file_, ErrorKind::kModel);
    const Json methods = inner.value("proposal_methods", Json::array());
    if (!methods.is_array() || methods.empty() || !methods[0].is_object() || !methods[0].contains("speculative_tokens"))
      add(true, "format",
          "speculators_config.proposal_methods[0].speculative_tokens: missing: vLLM takes the K from it");
    const Json verifier = inner.value("verifier", Json::object());
    const Json name = verifier.is_object() ? verifier.value("name_or_path", Json()) : Json();
    if (!name.is_string() || name.get<std::string>().find('/') == std::string::npos ||
        name.get<std::string>()[0] == '/' || fs::exists(name.get<std::string>()))
      add(false, "format",
          "speculators_config.verifier.name_or_path " + canonical_json(name) +
              " is no repository of the hub: vLLM refuses to serve the directory by itself; give --model and "
              "--speculative-config");
  }

  int64_t taps() const {
    if (config_.contains("num_aux_hidden_states")) return top_number("num_aux_hidden_states", 3);
    const Json ids = nested_ids();
    return ids.is_array() && !ids.empty() ? static_cast<int64_t>(ids.size()) : 3;
  }
  Json nested_ids() const {
    const Json eagle = config_.value("eagle_config", Json::object());
    return eagle.is_object() ? eagle.value("eagle_aux_hidden_state_layer_ids", Json()) : Json();
  }
  int64_t draft_vocab() const { return top_number("draft_vocab_size", number("vocab_size", 1)); }
  // The prefix is "midlayer." or "layers.0."; both engines accept either.
  std::string layer_prefix() const {
    return tensors_->contains("layers.0.self_attn.q_proj.weight") ? "layers.0." : "midlayer.";
  }

  void eagle_tensors() {
    const int64_t hidden = number("hidden_size", 1), theirs = target_hidden(), heads = number("num_attention_heads", 1),
                  groups = number("num_key_value_heads", heads);
    const int64_t size = number("head_dim", std::max<int64_t>(1, hidden / heads)),
                  mlp = number("intermediate_size", 4 * hidden);
    const std::string at = layer_prefix();
    std::map<std::string, Shape> required = {{"norm.weight", {hidden}}, {"lm_head.weight", {draft_vocab(), hidden}}};
    add_layer(required, at,
              {.hidden = hidden, .input = 2 * hidden, .mlp = mlp, .q = heads * size, .kv = groups * size});
    required[at + "input_layernorm.weight"] = required[at + "hidden_norm.weight"] = {hidden};
    if (flag("norm_before_fc", false)) required["input_norm.weight"] = {taps() * theirs};
    if (flag("fc_norm", false))
      for (int64_t i = 0; i < taps(); ++i) required["fc_norm." + std::to_string(i) + ".weight"] = {theirs};
    if (draft_vocab() != number("vocab_size", 1)) required["d2t"] = {draft_vocab()};
    compare_tensors(required, {{"fc.weight", {}},
                               {"fc.bias", {hidden}},
                               {"d2t", {}},
                               {"t2d", {number("vocab_size", 1)}},
                               {"embed_tokens.weight", {number("vocab_size", 1), hidden}}});
    const Shape fc = tensors_->contains("fc.weight") ? tensors_->entry("fc.weight").shape : Shape{};
    if (fc != Shape{hidden, taps() * theirs})
      add(true, "fc-input",
          "fc.weight: " + (fc.empty() ? std::string("missing") : "shape " + text_of(fc)) + ", expected " +
              text_of({hidden, taps() * theirs}) + ": " + std::to_string(taps()) + " layers of the target, " +
              std::to_string(theirs) + " each");
    if (taps() == 1 && theirs == hidden)
      add(true, "fc-input", "one tapped layer of the target's width: SGLang leaves fc out");
  }

  int64_t target_hidden() const {
    return json_int(target_, "hidden_size", {1, int64_t{1} << 30}, (target_dir_ / "config.json").string(),
                    ErrorKind::kModel);
  }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    std::vector<T> values(tensors_->entry(name).bytes / sizeof(T));
    tensors_->read(name, std::as_writable_bytes(std::span(values)));
    return values;
  }

  void vocabulary_map() {
    if (!tensors_->contains("d2t")) return;
    if (tensors_->entry("d2t").dtype != "I64")
      return add(true, "vocab-map", "d2t: " + tensors_->entry("d2t").dtype + ", expected I64");
    const std::vector<int64_t> offsets = read<int64_t>("d2t");
    const int64_t vocab = number("vocab_size", 1);
    std::vector<int64_t> kept;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const int64_t id = static_cast<int64_t>(i) + offsets[i];
      if (offsets[i] < 0 || id >= vocab || (!kept.empty() && id <= kept.back()))
        return add(true, "vocab-map",
                   "d2t[" + std::to_string(i) + "] = " + std::to_string(offsets[i]) +
                       ": expected offsets that give ascending ids below " + std::to_string(vocab));
      kept.push_back(id);
    }
    if (tensors_->contains("t2d")) {
      if (tensors_->entry("t2d").dtype != "BOOL")
        return add(true, "vocab-map", "t2d: " + tensors_->entry("t2d").dtype + ", expected BOOL");
      const std::vector<uint8_t> marks = read<uint8_t>("t2d");
      std::vector<int64_t> marked;
      for (size_t i = 0; i < marks.size(); ++i)
        if (marks[i]) marked.push_back(static_cast<int64_t>(i));
      if (marked != kept) return add(true, "vocab-map", "t2d marks other ids than i + d2t[i] gives");
    }
    for (const int64_t id : special_tokens())
      if (!std::binary_search(kept.begin(), kept.end(), id))
        add(false, "vocab-map",
            "special token " + std::to_string(id) +
                " is not among the kept ids: the end of an answer is never drafted");
  }

  std::vector<int64_t> special_tokens() const {
    const Json ids = target_.value("eos_token_id", Json());
    std::vector<int64_t> out;
    for (const Json& id : ids.is_array() ? ids : Json::array({ids}))
      if (id.is_number_integer()) out.push_back(id.get<int64_t>());
    return out;
  }

  void embedding() {
    if (!tensors_->contains("embed_tokens.weight")) {
      if (number("hidden_size", 1) != target_hidden())
        add(true, "embedding",
            "embed_tokens.weight: missing, and the target's has " + std::to_string(target_hidden()) + " columns, not " +
                std::to_string(number("hidden_size", 1)));
      return;
    }
    const SafetensorsDirectory theirs(target_dir_);
    const std::string name = "model.embed_tokens.weight";
    const auto same = [&] {
      const TensorEntry &a = tensors_->entry("embed_tokens.weight"), &b = theirs.entry(name);
      if (a.dtype != b.dtype || a.shape != b.shape) return false;
      std::vector<std::byte> ours_part, theirs_part;
      for (uint64_t at = 0; at < a.bytes; at += 8u << 20) {
        const size_t n = std::min<uint64_t>(8u << 20, a.bytes - at);
        ours_part.resize(n), theirs_part.resize(n);
        tensors_->shard_of("embed_tokens.weight").file().read(a.offset + at, ours_part);
        theirs.shard_of(name).file().read(b.offset + at, theirs_part);
        if (ours_part != theirs_part) return false;
      }
      return true;
    };
    if (!theirs.contains(name) || !same())
      add(number("hidden_size", 1) == target_hidden(), "embedding",
          "embed_tokens.weight: not the target's: vLLM uses it, SGLang replaces it by the target's: leave it out");
  }

  // Warns about an lm_head that was never trained. The standard deviation of freshly initialised weights equals
  // initializer_range within a fraction of a per cent; that of trained weights does not.
  void initial_head() {
    if (!tensors_->contains("lm_head.weight")) return;
    const TensorEntry& entry = tensors_->entry("lm_head.weight");
    if (entry.dtype != "BF16" && entry.dtype != "F32") return;
    const size_t width = static_cast<size_t>(dtype_bytes(entry.dtype)),
                 count = std::min<uint64_t>(entry.bytes / width, 1u << 20);
    if (count < 10000) return;
    std::vector<std::byte> bytes(count * width);
    tensors_->shard_of("lm_head.weight").file().read(entry.offset, bytes);
    double sum = 0, squares = 0, fourth = 0;
    for (size_t i = 0; i < count; ++i) {
      uint32_t word = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&word) + (4 - width), bytes.data() + i * width, width);
      float value;
      std::memcpy(&value, &word, sizeof value);
      sum += value, squares += double{value} * value, fourth += std::pow(double{value}, 4);
    }
    const double n = static_cast<double>(count), mean = sum / n, variance = squares / n - mean * mean,
                 kurtosis = fourth / n / (variance * variance);
    const double wanted = layers_config().value("initializer_range", Json(0.02)).is_number()
                              ? layers_config().value("initializer_range", 0.02)
                              : 0.02;
    if (std::abs(std::sqrt(variance) / wanted - 1) < 0.005 && std::abs(mean) < 0.01 * wanted &&
        std::abs(kurtosis - 3) < 0.05)
      add(false, "tensors",
          "lm_head.weight: normal with deviation " + canonical_json(wanted) +
              ": looks as if it was never trained (acceptance length 1.00)");
  }

  // Checks the ids of the target's N layers from which the head takes hidden states. vLLM takes the top-level ids as
  // they are; SGLang adds 1 to the nested ones (eagle_config) for llama and qwen. Without ids both take [2, N / 2, N -
  // 3].
  void auxiliary_layers() {
    const Json top = config_.value("eagle_aux_hidden_state_layer_ids", Json()), nested = nested_ids();
    const int64_t layers =
        json_int(target_, "num_hidden_layers", {1, 1 << 20}, (target_dir_ / "config.json").string(), ErrorKind::kModel);
    const Json standard = {2, layers / 2, layers - 3};
    const auto valid = [&](const Json& ids, const char* name, int64_t shift) {
      if (ids.is_null() || ids == Json::array()) return;
      bool good = ids.is_array() && static_cast<int64_t>(ids.size()) == taps();
      for (size_t i = 0; good && i < ids.size(); ++i)
        good = ids[i].is_number_integer() && ids[i].get<int64_t>() + shift >= 0 &&
               ids[i].get<int64_t>() + shift <= layers && (i == 0 || ids[i - 1].get<int64_t>() < ids[i].get<int64_t>());
      if (!good)
        add(true, "aux-layers",
            std::string(name) + " " + canonical_json(ids) + ": expected " + std::to_string(taps()) +
                " ascending layers of the target's " + std::to_string(layers));
    };
    valid(top, "eagle_aux_hidden_state_layer_ids", 0);
    valid(nested, "eagle_config.eagle_aux_hidden_state_layer_ids", 1);
    const bool has_top = top.is_array() && !top.empty(), has_nested = nested.is_array() && !nested.empty();
    if (speculators_) return;
    if (has_top && !has_nested && top != standard)
      add(true, "aux-layers",
          "eagle_aux_hidden_state_layer_ids " + canonical_json(top) +
              " at the top only: SGLang does not read it and takes " + canonical_json(standard));
    if (has_nested && !has_top)
      add(true, "aux-layers",
          "eagle_config.eagle_aux_hidden_state_layer_ids alone: vLLM's new runner does not read it and takes " +
              canonical_json(standard) + ", the old one takes it without SGLang's shift of 1");
    if (!has_top || !has_nested || top.size() != nested.size()) return;
    for (size_t i = 0; i < top.size(); ++i)
      if (top[i].is_number_integer() && nested[i].is_number_integer() &&
          top[i].get<int64_t>() != nested[i].get<int64_t>() + 1)
        return add(true, "aux-layers",
                   "the nested ids must be the top ones less 1 (SGLang adds it): " + canonical_json(top) + " and " +
                       canonical_json(nested));
  }

  // ---- binding and measurement ----

  void binding(const std::optional<ValidationReport>& report) {
    const auto made = read_binding(draft_);
    if (!made) {
      add(false, "binding", "no specdec.json: nothing says which target it was made for");
    } else if (const Fingerprint target = fingerprint_model(target_dir_); made->target != target) {
      add(true, "binding",
          "was made for target " + made->target.id.substr(0, 12) + ", this is " + target.id.substr(0, 12) + " (" +
              differing_tiers(made->target, target) + " differ)");
    }
    if (!report)
      return add(
          false, "measured",
          "no report: nothing says that it was loaded again and measured: run specdec validate and give --report");
    if (report->draft != fingerprint_model(draft_))
      return add(true, "measured", "the report was made for another draft");
    gate(*report);
    if (!made || !made->training.is_object() || !made->training.contains("acceptance")) return;
    const Json after = made->training["acceptance"].value("after", Json::object());
    const Json value = after.value("value", after.value("alpha", Json())), interval = after.value("ci", Json());
    if (!value.is_number() || !interval.is_array() || interval.size() != 2 || !interval[0].is_number()) return;
    if (report->alpha.ci.high < interval[0].get<double>())
      add(true, "measured",
          "acceptance " + canonical_json(report->alpha.value) + " in the report, the trainer had " +
              canonical_json(value) +
              " on its held-out requests: the draft as written is not the draft as trained, or the data differ");
  }

  void gate(const ValidationReport& report) {
    if (report.verdict != Verdict::kPass) add(false, "gate", "the gate did not pass: " + gate_line(report));
    // Earlier versions of specdec scheduled a K by its predicted speed-up, even if no gain was measured.
    const bool drafts = !report.schedule.empty() && report.schedule.front().k > 0;
    if (drafts && report.has_speed && report.speedup.n > 0 && report.speedup.ci.low <= 1)
      add(false, "gate",
          "the schedule drafts although no gain was measured: " + schedule_line(report.schedule) +
              ": validate and package the pair again, its launch files may draft at a loss");
  }

  std::string file_;
  fs::path draft_, target_dir_;
  Json config_, target_;
  bool head_, speculators_;
  const SafetensorsDirectory* tensors_ = nullptr;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> lint_draft(const fs::path& target, const fs::path& draft,
                                const std::optional<ValidationReport>& report) {
  return Linter(target, draft).run(report);
}

}  // namespace specdec::deploy
