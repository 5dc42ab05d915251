#include "cli/loop/checks.h"

#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/model_directory.h"
#include "base/output_directory.h"
#include "cli/program.h"
#include "deploy/package/store.h"
#include "distill/settings/options.h"

namespace specdec::cli {

namespace {

// Returns the number of layers in the target's config.json; 0 if it does not say.
int64_t layers_of(const fs::path& target) {
  const Json config = read_json(target / "config.json", ErrorKind::kModel);
  const Json& text = config.contains("text_config") ? config.at("text_config") : config;
  const auto layers = text.is_object() ? text.find("num_hidden_layers") : text.end();
  return layers != text.end() && layers->is_number_integer() ? layers->get<int64_t>() : 0;
}

void check_draft(const std::string& draft, const fs::path& target) {
  const distill::DraftSpec spec = distill::parse_draft_spec(draft);
  if (spec.kind == "model") resolve_model(spec.argument);
  if (spec.kind == "config") distill::read_config_file(spec);
  if (spec.kind != "prune") return;
  const int64_t layers = layers_of(target);
  if (layers > 0 && spec.layers > layers)
    throw Error(ErrorKind::kConfig, "found " + draft + ", and the target has " + std::to_string(layers) + " layers");
}

}  // namespace

void check_stage(const LoopSettings& settings, const std::string& stage, const std::vector<std::string>& arguments) {
  std::vector<std::string> line = arguments;
  // The stages run in the directory of LOOP.toml, so a relative SPECDEC_CONFIG is relative to that directory.
  if (const char* file = std::getenv("SPECDEC_CONFIG"); file && *file)
    line.insert(line.begin(), {"--config", (settings.file.parent_path() / file).string()});
  try {
    check_command_line(line);
  } catch (const Error& e) {
    throw Error(ErrorKind::kConfig, settings.file.string() + ": [" + stage + "]: " + e.what());
  }
}

void check_places(const LoopSettings& settings, const fs::path& target) {
  const auto as_setting = [&](const std::string& key, const std::function<void()>& check) {
    try {
      check();
    } catch (const Error& e) {
      throw Error(e.kind(), settings.file.string() + ": [loop] " + key + ": " + e.what());
    }
  };
  as_setting("work", [&] { check_shared_directory(settings.work, "the runs"); });
  as_setting("store", [&] { deploy::check_store_directory(settings.store); });
  as_setting("draft", [&] { check_draft(settings.draft, target); });
}

}  // namespace specdec::cli
