// Renders the story of `specdec demo --model` as a page.
#pragma once

#include <optional>
#include <string>

#include "base/page/page.h"
#include "base/schema/validation_report.h"
#include "cli/demo/table.h"

namespace specdec::cli {

struct StoryFigures {
  std::string model;                     // its name
  const ValidationReport &gate, &stale;  // of the first draft, and of the first draft after the update of the target
  const std::optional<ValidationReport>& redistilled;  // empty if the loop did not reach the gate
  const DemoResult& result;
};
Page story_page(const StoryFigures& figures);

}  // namespace specdec::cli
