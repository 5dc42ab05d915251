#include "deploy/generate/model_argument.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/schema/package_manifest.h"

namespace specdec::deploy {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// huggingface_hub's rule: HF_HUB_CACHE (old name HUGGINGFACE_HUB_CACHE), else HF_HOME/hub, else the XDG cache.
fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string value = variable(name); !value.empty()) return value;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return fs::path(xdg) / "huggingface" / "hub";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

bool is_name(const std::string& text, bool slashes) {
  if (text.empty() || text.size() > 96 || text.front() == '.' || text.front() == '/' || text.find("..") != std::string::npos) return false;
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.' && !(slashes && c == '/')) return false;
  return true;
}

struct HubName {
  std::string organisation, name, revision = "main";
};
std::optional<HubName> parse_hub_name(std::string text) {
  if (text.rfind("hf://", 0) == 0) text = text.substr(5);
  HubName hub;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    hub.revision = text.substr(at + 1);
    text.resize(at);
  }
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  hub.organisation = text.substr(0, slash);
  hub.name = text.substr(slash + 1);
  if (!is_name(hub.organisation, false) || !is_name(hub.name, false) || !is_name(hub.revision, true)) return std::nullopt;
  return hub;
}

// refs/REVISION holds the commit; a commit may be named itself.
fs::path hub_directory(const HubName& hub, const std::string& argument) {
  const fs::path cache = hub_cache(), repository = cache / ("models--" + hub.organisation + "--" + hub.name);
  const std::string fetch = "download it first (hf download " + hub.organisation + "/" + hub.name +
                            (hub.revision == "main" ? "" : " --revision " + hub.revision) + ") or give a local directory";
  std::error_code ec;
  if (!fs::is_directory(repository, ec))
    throw Error(ErrorKind::kModel, argument + ": neither a local directory nor in the Hugging Face cache " + cache.string() + ": " + fetch);
  std::string commit = hub.revision;
  if (const fs::path ref = repository / "refs" / hub.revision; fs::is_regular_file(ref, ec)) {
    commit = read_file(ref, 4096, ErrorKind::kModel);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    if (!is_name(commit, false)) throw Error(ErrorKind::kModel, ref.string() + ": expected a commit, found '" + commit.substr(0, 64) + "'");
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  if (!fs::is_regular_file(snapshot / "config.json", ec))
    throw Error(ErrorKind::kModel, argument + ": revision " + hub.revision + " is not complete in " + repository.string() +
                                       " (no snapshots/" + commit + "/config.json): " + fetch);
  return snapshot;
}

// The draft directory and how it is bound. A package's manifest binds the draft inside it.
struct Draft {
  fs::path directory;
  std::optional<Fingerprint> made_for;
};
Draft find_draft(const PairOptions& options, const std::string& target_package) {
  if (options.draft.empty() && (target_package.empty() || !options.speculate)) return {};
  const std::string argument = options.draft.empty() ? options.target : options.draft;
  const ResolvedModel model = resolve_model(argument);
  if (model.draft.empty()) return {model.directory, std::nullopt};
  return {model.draft, resolve_package(argument, false)->manifest.target};
}

BindingCheck check(const fs::path& target, const Draft& draft) {
  if (!draft.made_for) return check_binding(target, draft.directory);
  const Fingerprint found = fingerprint_model(target);
  if (found == *draft.made_for) return {BindingState::kBound, ""};
  return {BindingState::kStale, draft.directory.string() + " was packaged for another target: " + differing_tiers(*draft.made_for, found) +
                                    " differ (made for " + draft.made_for->id.substr(0, 12) + ", " + target.string() + " is " +
                                    found.id.substr(0, 12) + ")"};
}

}  // namespace

ResolvedModel resolve_model(const std::string& argument) {
  if (argument.empty()) throw Error(ErrorKind::kUsage, "MODEL is empty: give a local directory, a package or org/name");
  if (const auto package = resolve_package(argument, true)) {
    fs::path target = package->target;
    std::error_code ec;
    if (!package->manifest.target_reference.empty() && !fs::is_directory(target, ec))
      target = with_context(argument + ": the package names its target", [&] { return resolve_model(package->manifest.target_reference).directory; });
    return {target, package->draft, package->digest};
  }
  std::error_code ec;
  const fs::path local(argument);
  if (fs::exists(local, ec)) {
    if (!fs::is_directory(local, ec)) throw Error(ErrorKind::kModel, argument + ": expected a model directory, found a file");
    if (!fs::exists(local / "config.json", ec))
      throw Error(ErrorKind::kModel, argument + ": no config.json: not a Hugging Face model directory, nor a package (no manifest.json)");
    return {local, {}, ""};
  }
  if (const auto hub = parse_hub_name(argument)) return {hub_directory(*hub, argument), {}, ""};
  throw Error(ErrorKind::kModel, argument + ": no such directory, package or org/name[@revision]");
}

LoadedPair load_pair(const PairOptions& options) {
  validate(options.device);
  LoadedPair pair;
  const ResolvedModel target = resolve_model(options.target);
  pair.target_dir = target.directory;
  pair.package_digest = target.package_digest;
  const Draft draft = find_draft(options, target.package_digest);
  pair.draft_dir = draft.directory;
  pair.binding = BindingState::kBound;
  if (!pair.draft_dir.empty()) {
    const BindingCheck binding = check(pair.target_dir, draft);
    pair.binding = binding.state;
    if (binding.state == BindingState::kStale) {
      pair.warning = binding.reason;
      if (!options.allow_stale) return pair;
    } else if (binding.state == BindingState::kUnbound) {
      pair.warning = pair.draft_dir.string() + " is not bound to a target (no specdec.json): run specdec validate to bind the pair";
    }
  }

  pair.device = model::resolve_device(options.device.device);
  const model::DecoderConfig config = model::load_decoder_config(pair.target_dir);
  pair.dtype = model::resolve_dtype(options.device.dtype, config);
  std::optional<model::DecoderConfig> draft_config;
  at::ScalarType draft_dtype = pair.dtype;
  if (!pair.draft_dir.empty()) {
    draft_config = model::load_decoder_config(pair.draft_dir);
    draft_dtype = model::resolve_dtype(options.device.dtype, *draft_config);
    if (draft_config->vocab_size != config.vocab_size)
      throw Error(ErrorKind::kModel, (pair.draft_dir / "config.json").string() + ": vocab_size: expected the target's " +
                                         std::to_string(config.vocab_size) + ", found " + std::to_string(draft_config->vocab_size));
  }
  const int64_t tokens = options.tokens_per_sequence > 0 ? std::min(options.tokens_per_sequence, config.max_position) : config.max_position;
  pair.plan = model::plan_memory(config, pair.dtype, draft_config ? &*draft_config : nullptr, draft_dtype, options.sequences, tokens, pair.device);
  if (options.on_plan) options.on_plan(pair.plan);
  model::check_memory(pair.plan);

  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  pair.tokenizer = std::make_unique<text::Tokenizer>(pair.target_dir);
  pair.chat_template = text::ChatTemplate::load(pair.target_dir);
  pair.target = std::make_shared<const model::Decoder>(model::load_decoder(pair.target_dir, pair.device, pair.dtype));
  if (draft_config) pair.draft = std::make_shared<const model::Decoder>(model::load_decoder(pair.draft_dir, pair.device, draft_dtype));
  return pair;
}

}  // namespace specdec::deploy
