// Formats a comparison of drafts as text for people.
#pragma once

#include <string>

#include "base/schema/distill_comparison.h"

namespace specdec::cli {

std::string comparison_text(const ComparisonReport& comparison, const std::string& out);

}  // namespace specdec::cli
