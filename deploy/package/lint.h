// Checks drafts from any source: small models, EAGLE-3 heads (plain or of the speculators library), and formats that no
// engine loads any more. Each check covers a fault that was found in serving (config keys, tensors and shifts as of
// vLLM 0.33 and SGLang 0.5.23).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/validation_report.h"
#include "deploy/package/checks.h"

namespace specdec::deploy {

// Runs check_pair() and the checks for faults of foreign drafts. `report`: validate's report for this pair, if there is
// one. Throws Error(kModel) for files that do not load.
std::vector<Finding> lint_draft(const std::filesystem::path& target, const std::filesystem::path& draft,
                                const std::optional<ValidationReport>& report);

}  // namespace specdec::deploy
