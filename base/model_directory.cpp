#include "base/model_directory.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/gguf/model_files.h"
#include "base/json.h"
#include "base/schema/package_manifest.h"
#include "base/shell.h"

namespace specdec {

namespace {

HubResolver& hub_resolver() {
  static HubResolver resolver;
  return resolver;
}

bool is_gguf(const fs::path& file) { return file.extension() == ".gguf"; }

// Returns the rest of an error message: why the existing path `local` is no model directory, and what to give instead.
std::string why_no_model(const fs::path& local) {
  std::error_code ec;
  if (!fs::is_directory(local, ec)) {
    const fs::path folder = local.has_parent_path() ? local.parent_path() : fs::path(".");
    return "expected a model directory, found a file" +
           (fs::exists(folder / "config.json", ec) ? " (did you mean its folder, " + folder.string() + "?)" : "");
  }
  const std::string start = "no config.json: not a Hugging Face model directory, nor a package ";
  if (fs::exists(local / "draft" / "config.json", ec))
    return start + "(did you mean " + (local / "draft").string() + "?)";
  if (fs::exists(local / "adapter_config.json", ec))
    return start + "but a LoRA adapter: merge it into its base model first (PEFT's merge_and_unload), and give that";
  for (const auto& entry : fs::directory_iterator(local, ec))
    if (is_gguf(entry.path())) return start + "but a GGUF file: give the file itself, " + entry.path().string();
  return start + "(no manifest.json)";
}

// Throws Error(kModel) if config.json is that of an encoder (such as BERT), which cannot generate text. A config.json
// that cannot be read is not reported here; loading the model reports it.
void require_decoder(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  Json config;
  try {
    config = read_json(file, ErrorKind::kModel);
  } catch (const Error&) {
    return;
  }
  static const std::set<std::string> kEncoders = {
      "albert",   "bert",     "camembert",  "clip",       "convbert",    "deberta", "deberta-v2",    "distilbert",
      "electra",  "ernie",    "esm",        "eurobert",   "flaubert",    "fnet",    "funnel",        "ibert",
      "layoutlm", "luke",     "mobilebert", "modernbert", "mpnet",       "mra",     "nomic_bert",    "rembert",
      "roberta",  "roformer", "siglip",     "vit",        "xlm-roberta", "xmod",    "xlm-roberta-xl"};
  static const std::vector<std::string> kTasks = {"ForMaskedLM",          "ForSequenceClassification",
                                                  "ForMultipleChoice",    "ForTokenClassification",
                                                  "ForQuestionAnswering", "ForNextSentencePrediction"};
  const auto text = [](const Json& value) { return value.is_string() ? one_line(value.get<std::string>()) : ""; };
  const std::string type = config.is_object() ? text(config.value("model_type", Json())) : "";
  std::string found = kEncoders.contains(type) ? "model_type '" + type + "'" : "";
  if (config.is_object() && config.contains("architectures") && config["architectures"].is_array())
    for (const Json& value : config["architectures"])
      for (const std::string& task : kTasks)
        if (found.empty() && text(value).ends_with(task)) found = "architectures '" + text(value) + "'";
  if (!found.empty())
    throw Error(ErrorKind::kModel, file.string() + ": " + found.substr(0, 120) +
                                       " is a model of embeddings or classes, which writes no text: expected a decoder "
                                       "(…ForCausalLM)");
}

// Returns whether an argument "`organisation`/…" is a path rather than a hub name, because it begins with a usual
// folder name: "models/target" is taken for a path even if it does not exist.
bool begins_like_a_path(const std::string& organisation) {
  static const std::set<std::string> kFolders = {"model", "models", "checkpoint", "checkpoints", "weights", "run",
                                                 "runs",  "out",    "output",     "drafts",      "store"};
  return kFolders.contains(organisation);
}

}  // namespace

ResolvedModel packaged_target(const ResolvedPackage& package, const std::string& argument) {
  std::error_code ec;
  if (package.manifest.target_reference.empty() || fs::is_directory(package.target, ec))
    return {package.target, {}, "", "", ""};
  return with_context(argument + ": the package names its target",
                      [&] { return resolve_model(package.manifest.target_reference); });
}

void set_hub_resolver(HubResolver resolver) { hub_resolver() = std::move(resolver); }

ResolvedModel resolve_model(const std::string& argument) {
  if (argument.empty()) throw Error(ErrorKind::kUsage, "MODEL is empty: give a local directory, a package or org/name");
  if (const auto package = locate_package(argument)) {
    require_trusted(*package);
    ResolvedModel model = packaged_target(*package, argument);
    model.draft = package->draft;
    model.package_digest = package->digest;
    model.hold = package->hold;
    const fs::path& target = model.directory;
    const Fingerprint found = fingerprint_model(target);
    const std::string tiers = differing_tiers(package->manifest.target, found);
    // The user may have allowed a different target, but no other file of the package may differ.
    model.verified = verify_files(package->root, package->manifest, true, tiers.empty());
    if (!tiers.empty())
      model.stale_reason =
          target.string() + " is another model than the one this package was validated with (or damaged): " + tiers +
          " differ (expected " + package->manifest.target.id.substr(0, 12) + ", found " + found.id.substr(0, 12) + ")";
    return model;
  }
  // The error shows only the scheme of a URL, because the rest may contain a password.
  if (const size_t scheme = argument.find("://"); scheme != std::string::npos && !argument.starts_with("hf://"))
    throw Error(ErrorKind::kUsage,
                "MODEL: expected a local directory, a package, org/name or hf://org/name, found a URL (" +
                    argument.substr(0, scheme) + "://…)");
  std::error_code ec;
  const fs::path local(argument);
  if (fs::exists(local, ec)) {
    if (is_gguf(local) && !fs::is_directory(local, ec)) return {gguf::model_directory_of(local), {}, "", "", ""};
    if (!fs::is_directory(local, ec) || !fs::exists(local / "config.json", ec))
      throw Error(ErrorKind::kModel, argument + ": " + why_no_model(local));
    require_decoder(local);
    return {local, {}, "", "", ""};
  }
  if (const auto hub = parse_hub_name(argument)) {
    const bool is_here = fs::is_directory(hub->organisation, ec);
    if (!argument.starts_with("hf://") && (is_here || begins_like_a_path(hub->organisation)) && !find_snapshot(*hub))
      throw Error(ErrorKind::kModel, argument + ": no such directory. " + hub->organisation +
                                         (is_here ? " is a directory here" : " is a usual name of a directory") +
                                         ", so this is taken for a path: write hf://" + argument +
                                         " for a model of the hub");
    const HubSnapshot snapshot = hub_resolver() ? hub_resolver()(*hub) : cached_snapshot(*hub);
    require_decoder(snapshot.directory);
    return {snapshot.directory, {}, "", "", snapshot.commit};
  }
  throw Error(ErrorKind::kModel, argument + ": no such directory, package or org/name[@revision]");
}

}  // namespace specdec
