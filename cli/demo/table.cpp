#include "cli/demo/table.h"

#include "base/error.h"
#include "base/format.h"

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

Json table_to_json(const std::vector<DemoTableRow>& rows) {
  Json table = Json::array();
  for (const DemoTableRow& r : rows)
    table.push_back({{"name", r.name},
                     {"acceptance", r.acceptance},
                     {"tokens_per_second", r.tokens_per_second},
                     {"speedup", r.speedup},
                     {"memory_mib", r.memory_mib}});
  return table;
}

}  // namespace specdec::cli
