// The fields that most printed results begin with.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"
#include "base/version.h"

namespace specdec {

struct ResultHead {
  std::string verdict = "done", started;
  double seconds = 0;
  std::string tool_version = kToolVersion;
};
// `verdicts` are the verdicts that the command can end with. If the list is empty, every verdict is accepted, because
// the command passes on the verdict of another command.
void visit_head(Fields& f, ResultHead& head, const char* schema, const std::vector<const char*>& verdicts);

}  // namespace specdec
