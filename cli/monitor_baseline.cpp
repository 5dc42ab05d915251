// Implements `specdec monitor baseline`.
#include "cli/monitor_baseline.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/file.h"
#include "base/schema/package_manifest.h"
#include "base/verdict.h"
#include "cli/command.h"
#include "cli/results.h"
#include "monitor/observation.h"

namespace specdec::cli {

namespace {

struct BaselineOptions {
  std::string package, out;
  std::vector<std::string> sources;
};

struct BaselineResult {
  bool written = false;
  monitor::EstimatedBaseline estimated;
};
void visit_fields(Fields& f, BaselineResult& r) {
  f.type("MonitorBaselineResult", "Today's acceptance, as a baseline file.");
  f.schema("monitor_baseline", 1);
  f.one_of("verdict", r.written, {{true, "written"}, {false, "inconclusive"}});
  f("reason", r.estimated.problem);
  f("requests", r.estimated.requests);
  f("too_short", r.estimated.skipped);
  f("days", r.estimated.days);
  f("wander", r.estimated.wander);
  Json baseline = r.written ? to_json(r.estimated.baseline) : Json();
  f.json("baseline", baseline, {{"type", {"object", "null"}}});
}

int run_baseline(const Global& global, const BaselineOptions& options) {
  const std::optional<ResolvedPackage> package = resolve_package(options.package, false);
  if (!package)
    throw Error(ErrorKind::kData, options.package + ": no package, expected its directory or STORE:CHANNEL");
  const monitor::EstimatedBaseline result = monitor::measure_baseline({options.sources.begin(), options.sources.end()},
                                                                      *package, SystemClock().unix_seconds());
  const bool good = result.problem.empty();
  if (good) write_file_atomic(options.out, canonical_json(to_json(result.baseline)) + "\n");
  if (global.json) {
    std::printf("%s\n", json_of(BaselineResult{good, result}).dump().c_str());
  } else if (!good) {
    std::printf("no baseline: %s\n", result.problem.c_str());
  } else {
    std::printf("%s: %lld requests over %.1f days, wander %.3f\n", options.out.c_str(),
                static_cast<long long>(result.requests), result.days, result.wander);
    for (const auto& [name, b] : result.baseline.strata)
      std::printf("  %-24s %7lld requests  acceptance %.3f  tolerance %.3f\n", name.empty() ? "other" : name.c_str(),
                  static_cast<long long>(b.n), b.mean, monitor::tolerance(b, 0));
  }
  std::fflush(stdout);
  return good ? 0 : exit_code(Verdict::kInconclusive);
}

}  // namespace

void add_monitor_baseline(CLI::App& monitor, Cli& cli) {
  auto options = std::make_shared<BaselineOptions>();
  CLI::App* sub = monitor.add_subcommand(
      "baseline",
      "Measures today's acceptance from recorded traffic: by segment, temperature and grammar, with its own wander");
  sub->add_option("--package", options->package,
                  "Package directory or STORE:CHANNEL; records of other pairs are skipped")
      ->type_name("PACKAGE|STORE:CHANNEL")
      ->required();
  sub->add_option("--source", options->sources, "Acceptance records (*.jsonl file or directory); may be repeated")
      ->type_name("FILE|DIR|URL")
      ->required();
  sub->add_option("--out", options->out, "Baseline file to write, for monitor check --baseline")
      ->type_name("FILE")
      ->required();
  sub->footer(
      "Example:\n  specdec monitor baseline --package store:production --source recorded/acceptance --out "
      "baseline.json\n"
      "Exit codes: 0 written, 4 fewer than 1,000 requests or less than a day, 7 package or records broken or missing.");
  sub->callback([&cli, options] { cli.selected = [&cli, options] { return run_baseline(cli.global, *options); }; });
}

void describe_baseline_result(Results& results) { results.add<BaselineResult>({.commands = {"monitor baseline"}}); }

}  // namespace specdec::cli
