// Writes the model card of a packaged draft: README.md with the front matter that the Hugging Face hub reads.
#pragma once

#include <filesystem>
#include <string>

#include "base/schema/binding.h"
#include "base/schema/package_manifest.h"
#include "deploy/package/launch.h"

namespace specdec::deploy {

// Returns the lines of a model card's front matter that state the licence: license, license_name, license_link. Returns
// "" if there are none.
std::string card_licence(const std::string& readme);

// Returns the model card. `target` is the target's directory, whose licence lines are copied. The card has the field
// base_model if `target` is a snapshot in the hub's cache or if the plan names a hub repository. The card has no date.
std::string model_card(const LaunchPlan& plan, const ValidationReport& report, const DraftBinding& binding,
                       const std::filesystem::path& target, const std::vector<DraftVariant>& variants);

}  // namespace specdec::deploy
