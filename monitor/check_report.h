// The result of a check, schema "specdec.monitor/1". SourcesReport holds the verdict on the sources and is stored with
// each new verdict in the state. CheckReport adds what the loop did.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"
#include "base/verdict.h"
#include "base/version.h"

namespace specdec::monitor {

// A change of the loop's state.
struct MadeTransition {
  std::string from, to, event, reason;
};
void visit_fields(Fields& f, MadeTransition& transition);

struct SourcesReport {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  Json figure;  // {name, value, limit, …} or null
  std::string next, started, tool_version = kToolVersion;
  Json inputs = Json::object(), evidence = Json::object();
};
void visit_fields(Fields& f, SourcesReport& report);

struct CheckReport {
  SourcesReport sources;
  double seconds = 0;
  std::string state;
  std::vector<MadeTransition> transitions;
  Json actions = Json::array();
  std::vector<std::string> waiting;
  Json trigger = nullptr;  // result of --on-drift, null if it did not run
};
void visit_fields(Fields& f, CheckReport& report);

}  // namespace specdec::monitor
