#include "base/schema/result_head.h"

namespace specdec {

void visit_head(Fields& f, ResultHead& head, const char* schema, const std::vector<const char*>& verdicts) {
  f.schema(schema, 1);
  if (verdicts.empty())
    f("verdict", head.verdict);
  else
    f.one_of("verdict", head.verdict, verdicts);
  f("started", head.started);
  f("seconds", head.seconds);
  f("tool_version", head.tool_version);
}

}  // namespace specdec
