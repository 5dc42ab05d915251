#include "base/model_directory.h"

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/schema/package_manifest.h"

namespace specdec {

namespace {

HubResolver& hub_resolver() {
  static HubResolver resolver;
  return resolver;
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
  // Of a URL only the scheme is shown: it may contain a password.
  if (const size_t scheme = argument.find("://"); scheme != std::string::npos && !argument.starts_with("hf://"))
    throw Error(ErrorKind::kUsage,
                "MODEL: expected a local directory, a package, org/name or hf://org/name, found a URL (" +
                    argument.substr(0, scheme) + "://…)");
  std::error_code ec;
  const fs::path local(argument);
  if (fs::exists(local, ec)) {
    if (!fs::is_directory(local, ec))
      throw Error(ErrorKind::kModel, argument + ": expected a model directory, found a file");
    if (!fs::exists(local / "config.json", ec))
      throw Error(ErrorKind::kModel, argument + ": no config.json: not a Hugging Face model directory, nor a package " +
                                         (fs::exists(local / "draft" / "config.json", ec)
                                              ? "(did you mean " + (local / "draft").string() + "?)"
                                              : "(no manifest.json)"));
    return {local, {}, "", "", ""};
  }
  if (const auto hub = parse_hub_name(argument)) {
    if (!argument.starts_with("hf://") && fs::is_directory(hub->organisation, ec) && !find_snapshot(*hub))
      throw Error(ErrorKind::kModel, argument + ": no such directory. " + hub->organisation +
                                         " is a directory here, so this is taken for a path: write hf://" + argument +
                                         " for a model of the hub");
    const HubSnapshot snapshot = hub_resolver() ? hub_resolver()(*hub) : cached_snapshot(*hub);
    return {snapshot.directory, {}, "", "", snapshot.commit};
  }
  throw Error(ErrorKind::kModel, argument + ": no such directory, package or org/name[@revision]");
}

}  // namespace specdec
