#include "base/schema/draft_kind.h"

#include <algorithm>

#include "base/file.h"
#include "base/safetensors.h"

namespace specdec {

namespace {

// Returns the names under "architectures" as one text.
std::string architectures_of(const Json& config) {
  std::string names;
  if (config.contains("architectures") && config["architectures"].is_array())
    for (const Json& name : config["architectures"])
      if (name.is_string()) names += name.get<std::string>() + " ";
  return names;
}

bool has_value(const Json& config, const char* key) { return config.contains(key) && !config[key].is_null(); }

// Returns the kind for a value of speculators_model_type, which the speculators library writes.
DraftKind by_speculators_type(const std::string& type) {
  if (type == "eagle3") return DraftKind::kEagle3;
  if (type == "peagle") return DraftKind::kParallelEagle;
  if (type == "eagle" || type == "hass") return DraftKind::kEagle1;
  return type == "mtp" ? DraftKind::kMtp : DraftKind::kBlock;
}

}  // namespace

DraftKind kind_of_draft(const Json& config, const std::set<std::string>& tensors) {
  if (!config.is_object()) return DraftKind::kModel;
  const std::string names = architectures_of(config);
  const auto named = [&](std::initializer_list<const char*> parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const char* part) { return names.find(part) != std::string::npos; });
  };
  const auto holds = [&](const char* part) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const std::string& name) { return name.find(part) != std::string::npos; });
  };
  if (config.contains("medusa_num_heads") || named({"Medusa"})) return DraftKind::kMedusa;
  if (config.value("model_type", Json()) == "mlp_speculator") return DraftKind::kMlp;
  if (const Json type = config.value("speculators_model_type", Json()); type.is_string())
    return by_speculators_type(type.get<std::string>());
  if (named({"DFlash", "DSpark", "Domino", "LiLiCorr", "XPress"}) || has_value(config, "dflash_config") ||
      holds("markov_head."))
    return DraftKind::kBlock;
  if (named({"PEagle", "Peagle"}) || tensors.count("mask_hidden") || config.value("parallel_drafting", Json()) == true)
    return DraftKind::kParallelEagle;
  const bool stands_alone = tensors.count("model.embed_tokens.weight") != 0;
  if (named({"MTP", "NextN"}) || has_value(config, "mtp_config") || (holds("mtp.") && !stands_alone))
    return DraftKind::kMtp;
  if (named({"Eagle3"})) return DraftKind::kEagle3;
  if (named({"Eagle", "EAGLE"})) return DraftKind::kEagle1;
  // config.json names no head, so the tensors decide: a model with a token embedding of its own can stand alone.
  if (stands_alone) return DraftKind::kModel;
  if (holds("midlayer.") || holds("hidden_norm.")) return DraftKind::kEagle3;
  return tensors.count("fc.weight") ? DraftKind::kEagle1 : DraftKind::kModel;
}

DraftKind kind_of_draft(const std::filesystem::path& directory) {
  const Json config = read_json(directory / "config.json", ErrorKind::kModel);
  std::set<std::string> tensors;
  std::error_code ec;
  const bool any = std::any_of(fs::directory_iterator(directory, ec), fs::directory_iterator(),
                               [](const auto& entry) { return entry.path().extension() == ".safetensors"; });
  if (any)
    for (const std::string& name : SafetensorsDirectory(directory).names()) tensors.insert(name);
  return kind_of_draft(config, tensors);
}

const char* name_of(DraftKind kind) {
  switch (kind) {
    case DraftKind::kModel:
      return "a small model";
    case DraftKind::kEagle3:
      return "an EAGLE-3 head";
    case DraftKind::kEagle1:
      return "an EAGLE-1 or -2 head";
    case DraftKind::kParallelEagle:
      return "a P-EAGLE head";
    case DraftKind::kMtp:
      return "a module for multi-token prediction";
    case DraftKind::kBlock:
      return "a block or parallel drafter";
    case DraftKind::kMedusa:
      return "a set of Medusa heads";
    case DraftKind::kMlp:
      return "an MLP or LSTM speculator";
  }
  return "";
}

const char* loaded_by(DraftKind kind) {
  switch (kind) {
    case DraftKind::kModel:
      return "vLLM (method draft_model) and SGLang (STANDALONE) load it";
    case DraftKind::kEagle3:
      return "vLLM (method eagle3) and SGLang (EAGLE3) load it";
    case DraftKind::kEagle1:
      return "vLLM (method eagle) and SGLang (EAGLE) load it";
    case DraftKind::kParallelEagle:
      return "vLLM alone loads it (method eagle3 with parallel_drafting)";
    case DraftKind::kMtp:
      return "vLLM (method mtp) and SGLang (NEXTN) load it for the families that they know";
    case DraftKind::kBlock:
      return "vLLM (methods dflash and dspark) and SGLang (DFLASH, DSPARK) load those that they know";
    case DraftKind::kMedusa:
      return "vLLM 0.33 and SGLang 0.5.23 have no loader for it any more";
    case DraftKind::kMlp:
      return "of the engines only ArcticInference loads it";
  }
  return "";
}

}  // namespace specdec
