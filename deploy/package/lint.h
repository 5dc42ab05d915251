// The checks of drafts made by anyone: small models, EAGLE-3 heads (plain or of the speculators library), and formats
// that no engine loads any more. Each stands for a fault that was met in serving (config keys, tensors and shifts as of
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

// check_pair(), and what only foreign drafts get wrong. `report`: of validate, for this pair. Throws Error(kModel)
// for files that do not load.
std::vector<Finding> lint_draft(const std::filesystem::path& target, const std::filesystem::path& draft,
                                const std::optional<ValidationReport>& report);

}  // namespace specdec::deploy
