#include "cli/demo/table.h"

#include "base/error.h"
#include "base/format.h"
#include "base/version.h"
#include "cli/results.h"

namespace specdec::cli {

namespace {

// Returns the first row of a mode. With the demo's options, bench writes one "normal" and one "speculative" row.
const Json& row_of(const Json& bench, const std::string& mode) {
  for (const Json& row : bench.at("rows"))
    if (row.value("mode", "") == mode) return row;
  throw Error(ErrorKind::kInternal, "demo: the bench result has no " + mode + " row");
}

DemoTableRow read_row(const std::string& name, const Json& row, double acceptance) {
  DemoTableRow result;
  result.name = name;
  result.acceptance = acceptance;
  result.tokens_per_second = row.at("tokens_per_second").get<double>();
  result.speedup = row.value("speedup", 1.0);
  result.memory_mib = row.value("memory_bytes", 0.0) / (1 << 20);
  return result;
}

}  // namespace

std::vector<DemoTableRow> demo_table(const DemoBench& distilled, const DemoBench& naive) {
  return {read_row("normal", row_of(distilled.result, "normal"), 0),
          read_row("naive random draft, K=10", row_of(naive.result, "speculative"), naive.acceptance),
          read_row("distilled draft, K=5 adaptive", row_of(distilled.result, "speculative"), distilled.acceptance)};
}

std::string table_to_text(const std::vector<DemoTableRow>& rows) {
  std::string text = format("%-30s %10s %10s %9s %12s\n", "", "acceptance", "tokens/s", "speed-up", "memory MiB");
  for (const DemoTableRow& r : rows) {
    const std::string acceptance = r.acceptance > 0 ? decimals(r.acceptance) : "–";
    text += format("%-30s %*s %10.0f %8.2fx %12.1f\n", r.name.c_str(), r.acceptance > 0 ? 10 : 12, acceptance.c_str(),
                   r.tokens_per_second, r.speedup, r.memory_mib);
  }
  return text;
}

std::string domains_to_text(const std::vector<DemoDomainRow>& rows) {
  std::string text = format("%-8s %-24s %-28s %14s %12s %9s\n", "", "acceptance", "by position", "tokens/s alone",
                            "with draft", "speed-up");
  for (const DemoDomainRow& r : rows) {
    std::string positions;
    for (const double p : r.by_position) positions += (positions.empty() ? "" : " ") + format("%.2f", p);
    text += format("%-8s %-24s %-28s %14.0f %12.0f %8.2fx\n", r.name.c_str(),
                   (decimals(r.acceptance) + " " + interval_text({r.low, r.high})).c_str(), positions.c_str(),
                   r.plain_tokens_per_second, r.tokens_per_second, r.speedup);
  }
  return text;
}

void visit_fields(Fields& f, DemoTableRow& row) {
  f.type("DemoRow", "A row of the demo's table.");
  f("name", row.name);
  f("acceptance", row.acceptance, {0, 1});
  f("tokens_per_second", row.tokens_per_second);
  f("speedup", row.speedup);
  f("memory_mib", row.memory_mib);
}

void visit_fields(Fields& f, DemoDomainRow& row) {
  f.type("DemoDomain", "A domain of the requests of `demo --model`.");
  f("name", row.name);
  f("acceptance", row.acceptance, {0, 1});
  f("low", row.low, {0, 1});
  f("high", row.high, {0, 1});
  f("by_position", row.by_position);
  f("plain_tokens_per_second", row.plain_tokens_per_second);
  f("tokens_per_second", row.tokens_per_second);
  f("speedup", row.speedup);
}

void visit_fields(Fields& f, StoryStep& step) {
  f.type("StoryStep", "A step of the demo.");
  f("step", step.step);
  f("seconds", step.seconds);
  f("text", step.text);
}

void visit_fields(Fields& f, DemoCheck& check) {
  f.type("DemoCheck", "A check of the demo.");
  f("check", check.check);
  f("holds", check.holds);
}

void visit_fields(Fields& f, DemoResult& r) {
  f.type("DemoResult", "The demo's story, checks and table.");
  f.schema("demo", 1);
  f.one_of("verdict", r.passed, {{true, "pass"}, {false, "fail"}});
  std::string version = kToolVersion;
  f("tool_version", version);
  f("story", r.story);
  f("checks", r.checks);
  f("table", r.table);
  f("domains", r.domains);
  f("updated_domains", r.updated_domains);
  f("report", r.report);
}

void describe_demo_result(Results& results) { results.add<DemoResult>({.commands = {"demo"}}); }

}  // namespace specdec::cli
