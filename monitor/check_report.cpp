#include "monitor/check_report.h"

namespace specdec::monitor {

void visit_fields(Fields& f, MadeTransition& transition) {
  f.type("Transition", "A change of the loop's state.");
  f("from", transition.from);
  f("to", transition.to);
  f("event", transition.event);
  f("reason", transition.reason);
}

void visit_fields(Fields& f, MonitorFigure& figure) {
  f.type("MonitorFigure", "The figure that the verdict was judged by.");
  f("name", figure.name);
  f.json("value", figure.value, Json::object());
  f.json("limit", figure.limit, Json::object());
  const bool of_counters = figure.tested_tokens.has_value();
  f.number_if({"acceptance", "Of what was judged; null: not known."}, of_counters || figure.acceptance,
              figure.acceptance);
  f.number_if({"expected", "The acceptance that the gate's figures expect there; null: not known."},
              of_counters || figure.expected, figure.expected);
  f(if_any("requests"), figure.requests, kAnyCount);
  f(if_any("tested_tokens"), figure.tested_tokens, {0, 1e18});
  f(if_any("validated", "The speed-up that the gate measured."), figure.validated);
}

void visit_fields(Fields& f, SourcesReport& r) {
  f.schema("monitor", 1);
  using enum Verdict;
  visit_verdict(f, r.verdict, {kHealthy, kWarn, kDrift, kStaleTarget, kNotWorthIt, kInconclusive});
  f("started", r.started);
  f("tool_version", r.tool_version);
  f.json("inputs", r.inputs);
  f("reason", r.reason);
  f("figure", r.figure);
  f("next", r.next);
  f.json("evidence", r.evidence);
}

void visit_fields(Fields& f, CheckReport& r) {
  f.type("MonitorResult", "The verdict of a check.");
  visit_fields(f, r.sources);
  f("seconds", r.seconds);
  f("state", r.state);
  f("transitions", r.transitions);
  f.json("actions", r.actions, {{"type", "array"}, {"items", {{"type", "object"}}}});
  f("waiting", r.waiting);
  f.json(if_any("trigger"), r.trigger);
}

}  // namespace specdec::monitor
