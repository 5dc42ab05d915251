#include "deploy/package/head_support.h"

#include <algorithm>
#include <array>

namespace specdec::deploy {

namespace {

constexpr std::array kEngines = {"vllm", "sglang", "tensorrt-llm", "llama.cpp"};

struct FamilyRow {
  const char* model_type;
  std::array<bool, kEngines.size()> taps;  // taps[i]: kEngines[i] exposes hidden states
};
// Whether an engine exposes the hidden states of a family, according to its source code:
// - vLLM: the model class has SupportsEagle3 (as has the Transformers backend, which serves OLMo 2 and SmolLM3);
// - SGLang: the model class has set_eagle3_layers_to_capture;
// - TensorRT-LLM: the model class is a SpecDecOneEngineForCausalLM;
// - llama.cpp: the graph keeps t_layer_inp (graph `llama` also serves Mistral and Mixtral).
constexpr FamilyRow kFamilies[] = {
    {"llama", {true, true, true, true}},          {"mistral", {true, true, false, true}},
    {"qwen2", {true, true, false, false}},        {"qwen3", {true, true, true, true}},
    {"qwen3_moe", {true, true, true, true}},      {"gemma2", {false, false, false, false}},
    {"gemma3_text", {false, true, false, false}}, {"phi3", {true, true, false, false}},
    {"smollm3", {true, false, false, false}},     {"olmo2", {true, false, false, false}},
    {"mixtral", {false, false, false, true}},
};

const char* title_of(const std::string& engine) {
  if (engine == "vllm") return "vLLM 0.33";
  if (engine == "sglang") return "SGLang 0.5.23";
  return engine == "tensorrt-llm" ? "TensorRT-LLM 1.3" : "llama.cpp";
}

// Returns the engine that a launch file starts; the files for KServe and Helm start vLLM.
std::string engine_of(const std::string& launcher) {
  return launcher == "kserve" || launcher == "helm" ? "vllm" : launcher;
}

bool is_true(const Json& config, const char* key) { return config.is_object() && config.value(key, Json()) == true; }

}  // namespace

HeadFacts head_facts(const Json& target, const Json& head) {
  HeadFacts facts;
  if (!target.is_object() || !head.is_object()) return facts;
  if (const Json type = target.value("model_type", Json()); type.is_string()) facts.target_type = type;
  facts.is_speculators_layout = head.contains("speculators_config") || head.contains("speculators_model_type");
  const Json layer = facts.is_speculators_layout ? head.value("transformer_layer_config", Json::object()) : head;
  const Json vocab = layer.is_object() ? layer.value("vocab_size", Json()) : Json(),
             draft_vocab = head.value("draft_vocab_size", Json());
  facts.reduced_vocabulary = draft_vocab.is_number_integer() && draft_vocab != vocab;
  facts.norm_before_residual = is_true(head, "norm_before_residual");
  facts.has_fc_norm = is_true(head, "fc_norm") || is_true(head, "use_aux_norm") || is_true(head, "norm_output");
  facts.hides_norm_before_fc =
      is_true(head.value("eagle_config", Json()), "norm_before_fc") && !is_true(head, "norm_before_fc");
  if (const Json taps = head.value("eagle_aux_hidden_state_layer_ids", Json()); taps.is_array())
    for (const Json& id : taps)
      if (id.is_number_integer()) facts.taps.push_back(id);
  return facts;
}

const std::vector<std::string>& head_engines() {
  static const std::vector<std::string> kNames(kEngines.begin(), kEngines.end());
  return kNames;
}

std::string tap_obstacle(const std::string& engine, const std::string& target_type) {
  const auto column =
      static_cast<size_t>(std::find(kEngines.begin(), kEngines.end(), engine_of(engine)) - kEngines.begin());
  const auto* row = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                 [&](const FamilyRow& family) { return target_type == family.model_type; });
  if (column == kEngines.size() || row == std::end(kFamilies) || row->taps[column]) return "";
  return std::string(title_of(engine_of(engine))) + " does not hand out the hidden states of a target of the family " +
         target_type + ", which an EAGLE-3 head reads";
}

std::string head_obstacle(const std::string& launcher, const HeadFacts& head) {
  const std::string engine = engine_of(launcher);
  if (std::string why = tap_obstacle(engine, head.target_type); !why.empty()) return why;
  const auto cannot = [&](const std::string& what) { return title_of(engine) + std::string(" ") + what; };
  if (engine == "sglang" && head.is_speculators_layout)
    return cannot("has no reader for heads in the layout of the speculators library");
  if (engine == "sglang" && head.norm_before_residual)
    return cannot("does not know norm_before_residual and would compute something else");
  if (engine == "tensorrt-llm" && !head.taps.empty() && head.taps.front() < 1)
    return cannot("does not read the embeddings, which this head takes as a hidden state");
  if (engine == "llama.cpp" && head.has_fc_norm)
    return cannot("does not convert heads with fc_norm or norm_output (EAGLE-3.1)");
  if (engine == "llama.cpp" && head.hides_norm_before_fc)
    return cannot("does not read norm_before_fc under eagle_config: write it at the top, too");
  return "";
}

}  // namespace specdec::deploy
