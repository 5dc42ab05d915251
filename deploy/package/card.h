// The model card of a packaged draft: README.md with the front matter that the Hugging Face hub reads.
#pragma once

#include <filesystem>
#include <string>

#include "base/schema/binding.h"
#include "base/schema/package_manifest.h"
#include "deploy/package/launch.h"

namespace specdec::deploy {

// What the hub takes for a licence, of a card's front matter: the lines license, license_name, license_link. "" if it
// has none.
std::string card_licence(const std::string& readme);

// `target`: the target's directory, whose licence is carried over; a snapshot of the hub's cache, or a hub name in the
// plan, gives base_model. Nothing in it depends on the clock.
std::string model_card(const LaunchPlan& plan, const ValidationReport& report, const DraftBinding& binding,
                       const std::filesystem::path& target, const std::vector<DraftVariant>& variants);

}  // namespace specdec::deploy
