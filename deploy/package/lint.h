// Checks drafts from any source: small models, EAGLE-3 heads (in the plain layout or that of the speculators library),
// and formats that current engines no longer load. Each check covers a fault that was found in serving. Config keys,
// tensor names and layer numbers are those of vLLM 0.33 and SGLang 0.5.23.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/validation_report.h"
#include "deploy/package/checks.h"

namespace specdec::deploy {

// Runs check_pair(), and checks for further faults of drafts that other tools made. `report` is the report of `specdec
// validate` on this pair, if there is one. Throws Error(kModel) for files that do not load.
std::vector<Finding> lint_draft(const std::filesystem::path& target, const std::filesystem::path& draft,
                                const std::optional<ValidationReport>& report);

}  // namespace specdec::deploy
