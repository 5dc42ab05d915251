// Lists the rules that `package lint` and packaging check, and writes findings as SARIF.
#pragma once

#include <vector>

#include "base/json.h"
#include "deploy/package/checks.h"

namespace specdec::deploy {

struct LintRule {
  const char* id;
  const char* text;  // describes the check
};
// Returns all rules; Finding::rule is one of their ids.
const std::vector<LintRule>& lint_rules();

// Returns SARIF 2.1.0, the format of code scanning services.
Json sarif(const std::vector<Finding>& findings);

}  // namespace specdec::deploy
