// The result of a check, schema "specdec.monitor/1". SourcesReport holds the verdict on the sources and is stored with
// each new verdict in the state. CheckReport adds what the loop did.
#pragma once

#include <optional>
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

// The figure that a verdict was judged by.
struct MonitorFigure {
  std::string name;
  Json value, limit;  // two numbers, or two ids of targets
  // Acceptance and its expectation for the requests or tokens that were judged. A figure of counters, which has
  // tested_tokens, is written with null for those that are not known.
  std::optional<double> acceptance = {}, expected = {};
  std::optional<int64_t> requests = {};
  std::optional<double> tested_tokens = {};
  std::optional<double> validated = {};  // the speed-up that the gate measured
};
void visit_fields(Fields& f, MonitorFigure& figure);

struct SourcesReport {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  std::optional<MonitorFigure> figure;  // by which the verdict was judged
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
