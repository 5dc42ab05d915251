#include "deploy/package/lint.h"

#include <algorithm>
#include <set>

#include "base/schema/binding.h"
#include "base/schema/draft_kind.h"
#include "base/schema/gate_summary.h"
#include "deploy/package/lint_draft.h"

namespace specdec::deploy {

namespace {

// Tensors that a quantised checkpoint has in place of a layer's weight or beside it. The linter does not check their
// shapes; engines do.
const std::set<std::string> kQuantisedParts = {"qweight",
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

// Checks a draft in a format that engines still load: a small model or an EAGLE-3 head.
class Linter {
 public:
  Linter(const fs::path& target, const fs::path& draft) : lint_(target, draft) {}

  std::vector<Finding> run(const std::optional<ValidationReport>& report) {
    const DraftKind kind = kind_of_draft(lint_.draft);
    if (kind != DraftKind::kModel && kind != DraftKind::kEagle3) {
      lint_.add(true, "format",
                std::string(name_of(kind)) + ": not checked here, and specdec does not run it: " + loaded_by(kind));
      return std::move(lint_.findings);
    }
    const bool head = kind == DraftKind::kEagle3;
    lint_.findings = check_pair(lint_.target, lint_.draft, head);
    const SafetensorsDirectory tensors(lint_.draft);
    if (head)
      lint_head(lint_, tensors);
    else
      small_model(tensors);
    binding(report);
    return std::move(lint_.findings);
  }

 private:
  // ---- small models ----

  void small_model(const SafetensorsDirectory& tensors) {
    static const std::set<std::string> kListed = {"llama", "mistral", "qwen2", "qwen3"};
    const std::string type = json_string(lint_.config, "model_type", "", lint_.file, ErrorKind::kModel);
    if (kListed.count(type)) {
      TensorShapes required = decoder_tensors(type);
      TensorShapes optional = {{"lm_head.weight", required.at("model.embed_tokens.weight")}};
      if (!lint_.flag("tie_word_embeddings", false)) required.insert(optional.extract("lm_head.weight"));
      lint_.compare_tensors(tensors, required, optional, "SGLang ignores it silently, so it has no effect", false);
    }
    padded_rows(tensors);
  }

  TensorShapes decoder_tensors(const std::string& type) const {
    const auto number = [this](const char* key, int64_t fallback) { return lint_.number(key, fallback); };
    const int64_t hidden = number("hidden_size", 1), mlp = number("intermediate_size", 4 * hidden),
                  layers = number("num_hidden_layers", 1);
    const int64_t heads = number("num_attention_heads", 1), groups = number("num_key_value_heads", heads),
                  size = number("head_dim", std::max<int64_t>(1, hidden / heads));
    TensorShapes names = {{"model.embed_tokens.weight", {number("vocab_size", 1), hidden}},
                          {"model.norm.weight", {hidden}}};
    for (int64_t i = 0; i < std::min<int64_t>(layers, 4096); ++i) {
      const std::string at = "model.layers." + std::to_string(i) + ".";
      DraftLint::add_layer(names, at,
                           {.hidden = hidden, .input = hidden, .mlp = mlp, .q = heads * size, .kv = groups * size});
      names[at + "input_layernorm.weight"] = {hidden};
      if (type == "qwen2")
        for (const auto& [part, rows] : {std::pair("q", heads), std::pair("k", groups), std::pair("v", groups)})
          names[at + "self_attn." + part + "_proj.bias"] = {rows * size};
      if (type == "qwen3")
        for (const char* part : {"q", "k"}) names[at + "self_attn." + part + "_norm.weight"] = {size};
    }
    return names;
  }

  // Warns about zero rows at the end of the output matrix, which pad the vocabulary. Their logits are 0, so the padding
  // tokens take probability from real tokens.
  void padded_rows(const SafetensorsDirectory& tensors) {
    const char* const head = tensors.contains("lm_head.weight") ? "lm_head.weight" : "model.embed_tokens.weight";
    if (!tensors.contains(head)) return;
    const TensorEntry& entry = tensors.entry(head);
    if (entry.shape.size() != 2 || entry.shape[0] < 1) return;
    const size_t row_bytes = entry.bytes / static_cast<size_t>(entry.shape[0]);
    std::vector<std::byte> row(row_bytes);
    int64_t zeros = 0;
    for (int64_t i = entry.shape[0] - 1; i >= 0; --i) {
      tensors.file_of(head).read(entry.offset + static_cast<uint64_t>(i) * row_bytes, row);
      if (std::any_of(row.begin(), row.end(), [](std::byte b) { return b != std::byte{0}; })) break;
      ++zeros;
    }
    if (zeros > 0 && zeros < entry.shape[0])
      lint_.add(false, "vocab-size",
                std::string(head) + ": the last " + std::to_string(zeros) +
                    " rows are zeros (padding): their logit 0 takes probability from real tokens");
  }

  // ---- binding and measurement ----

  void binding(const std::optional<ValidationReport>& report) {
    const auto made = read_binding(lint_.draft);
    if (!made) {
      lint_.add(false, "binding", "no specdec.json: nothing says which target it was made for");
    } else if (const Fingerprint target = fingerprint_model(lint_.target); made->target != target) {
      lint_.add(true, "binding",
                "was made for target " + made->target.id.substr(0, 12) + ", this is " + target.id.substr(0, 12) + " (" +
                    differing_tiers(made->target, target) + " differ)");
    }
    if (!report)
      return lint_.add(
          false, "measured",
          "no report: nothing says that it was loaded again and measured: run specdec validate and give --report");
    if (report->draft != fingerprint_model(lint_.draft))
      return lint_.add(true, "measured", "the report was made for another draft");
    gate(*report);
    if (!made || !made->training.is_object() || !made->training.contains("acceptance")) return;
    const Json after = made->training["acceptance"].value("after", Json::object());
    const Json value = after.value("value", after.value("alpha", Json())), interval = after.value("ci", Json());
    if (!value.is_number() || !interval.is_array() || interval.size() != 2 || !interval[0].is_number()) return;
    if (report->alpha.ci.high < interval[0].get<double>())
      lint_.add(true, "measured",
                "acceptance " + canonical_json(report->alpha.value) + " in the report, the trainer had " +
                    canonical_json(value) +
                    " on its held-out requests: the draft as written is not the draft as trained, or the data differ");
  }

  void gate(const ValidationReport& report) {
    if (report.verdict != Verdict::kPass)
      lint_.add(false, "gate", "the gate did not pass: " + gate_brief(report, "the report"));
    // Earlier versions of specdec scheduled a K whenever a speed-up was predicted, even if none was measured.
    const bool drafts = !report.schedule.empty() && report.schedule.front().k > 0;
    if (drafts && report.has_speed && report.speedup.n > 0 && report.speedup.ci.low <= 1)
      lint_.add(false, "gate",
                "the schedule drafts although no gain was measured: " + schedule_line(report.schedule) +
                    ": validate and package the pair again, its launch files may draft at a loss");
  }

  DraftLint lint_;
};

}  // namespace

std::string text_of(const TensorShape& shape) { return canonical_json(Json(shape)); }

DraftLint::DraftLint(const fs::path& target_dir, const fs::path& draft_dir)
    : draft(draft_dir),
      target(target_dir),
      file((draft / "config.json").string()),
      config(read_json(draft / "config.json", ErrorKind::kModel)),
      target_config(read_json(target / "config.json", ErrorKind::kModel)),
      is_speculators_layout(config.is_object() && config.contains("speculators_config")) {
  for (const auto& [object, directory] : {std::pair(&config, &draft), std::pair(&target_config, &target)})
    if (!object->is_object())
      throw Error(ErrorKind::kModel, (*directory / "config.json").string() + ": expected an object");
}

const Json& DraftLint::layers_config() const {
  return is_speculators_layout && config.contains("transformer_layer_config") ? config["transformer_layer_config"]
                                                                              : config;
}

int64_t DraftLint::number_in(const Json& object, const char* key, int64_t fallback) const {
  if (object.is_object() && object.contains(key) && object[key].is_null()) return fallback;
  return json_int(object, key, {.low = 1, .high = int64_t{1} << 40, .fallback = fallback}, file, ErrorKind::kModel);
}

bool DraftLint::flag(const char* key, bool fallback) const {
  return json_bool(config, key, fallback, file, ErrorKind::kModel);
}

int64_t DraftLint::target_number(const char* key) const {
  return json_int(target_config, key, {1, int64_t{1} << 30}, (target / "config.json").string(), ErrorKind::kModel);
}

void DraftLint::add_layer(TensorShapes& names, const std::string& at, const LayerSizes& layer) {
  names[at + "self_attn.q_proj.weight"] = {layer.q, layer.input};
  names[at + "self_attn.k_proj.weight"] = names[at + "self_attn.v_proj.weight"] = {layer.kv, layer.input};
  names[at + "self_attn.o_proj.weight"] = {layer.hidden, layer.q};
  names[at + "mlp.gate_proj.weight"] = names[at + "mlp.up_proj.weight"] = {layer.mlp, layer.hidden};
  names[at + "mlp.down_proj.weight"] = {layer.hidden, layer.mlp};
  names[at + "post_attention_layernorm.weight"] = {layer.hidden};
}

bool DraftLint::is_quantised() const {
  return config.contains("quantization_config") && !config["quantization_config"].is_null();
}

void DraftLint::compare_tensors(const SafetensorsDirectory& tensors, const TensorShapes& required,
                                const TensorShapes& optional, const char* unknown, bool unknown_is_fatal) {
  const auto stem_of = [](const std::string& name) { return name.substr(0, name.rfind('.') + 1); };
  const auto is_packed = [&](const std::string& matrix) {
    const std::string stem = stem_of(matrix);
    return is_quantised() && (tensors.contains(stem + "qweight") || tensors.contains(stem + "weight_packed"));
  };
  const auto belongs_to_quantised = [&](const std::string& name) {
    const std::string stem = stem_of(name);
    return is_quantised() && kQuantisedParts.count(name.substr(stem.size())) != 0 &&
           (required.count(stem + "weight") != 0 || name.ends_with("_scale"));
  };
  for (const auto& [name, shape] : required) {
    if (is_packed(name)) continue;
    if (!tensors.contains(name))
      add(true, "tensors", name + ": missing");
    else if (tensors.entry(name).shape != shape)
      add(true, "tensors",
          name + ": shape " + text_of(tensors.entry(name).shape) + ", config.json says " + text_of(shape));
  }
  for (const std::string& name : tensors.names()) {
    if (required.count(name) || belongs_to_quantised(name)) continue;
    const auto known = optional.find(name);
    if (known == optional.end())
      add(unknown_is_fatal, "tensors", name + ": unknown: " + unknown);
    else if (!known->second.empty() && tensors.entry(name).shape != known->second)
      add(true, "tensors",
          name + ": shape " + text_of(tensors.entry(name).shape) + ", expected " + text_of(known->second));
  }
}

std::vector<Finding> lint_draft(const fs::path& target, const fs::path& draft,
                                const std::optional<ValidationReport>& report) {
  return Linter(target, draft).run(report);
}

}  // namespace specdec::deploy
