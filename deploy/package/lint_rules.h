// The rules that lint and packaging check by, and their findings as SARIF.
#pragma once

#include <vector>

#include "base/json.h"
#include "deploy/package/checks.h"

namespace specdec::deploy {

struct LintRule {
  const char* id;
  const char* text;  // what is checked
};
// All of them; Finding::rule is one of the ids.
const std::vector<LintRule>& lint_rules();

// SARIF 2.1.0, as code scanning takes it.
Json sarif(const std::vector<Finding>& findings);

}  // namespace specdec::deploy
