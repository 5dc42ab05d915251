// Formats a comparison of drafts (schema specdec.distill_comparison/1) as text for people.
#pragma once

#include <string>

#include "base/json.h"

namespace specdec::cli {

std::string comparison_text(const Json& comparison, const std::string& out);

}  // namespace specdec::cli
