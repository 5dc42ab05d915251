#include "cli/monitor_past.h"

#include <cstdio>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/format.h"
#include "base/shell.h"
#include "monitor/machine/machine.h"
#include "monitor/report/life_page.h"
#include "monitor/sources_check.h"
#include "monitor/state/state.h"

namespace specdec::cli {

namespace {

constexpr int64_t kNewest = 20;  // verdicts, and transitions, that status shows

struct PastOptions {
  std::string state, html;
};

// The rows of a state, oldest first.
struct Past {
  std::vector<monitor::HistoryEntry> history;
  std::vector<monitor::TransitionEntry> transitions;
};

// Prints verdicts and transitions in the order of their times.
void print_rows(const Past& past) {
  std::multimap<int64_t, std::string> lines;
  for (const auto& e : past.history) {
    const Json reason = e.evidence.is_object() ? e.evidence.value("reason", Json()) : Json();
    lines.emplace(e.time, specdec::format("%-13s %.12s  ", e.verdict.c_str(), e.package.c_str()) +
                              (reason.is_string() ? reason.get<std::string>() : ""));
  }
  for (const auto& t : past.transitions)
    lines.emplace(t.time, t.from + " -> " + t.to + " (" + t.event + ")  " + t.reason);
  for (const auto& [time, line] : lines) std::printf("%s  %s\n", format_utc(time).c_str(), one_line(line).c_str());
}

void print_now(const monitor::Life& life) {
  std::printf("now: %s, %s, package %.12s\n", life.verdict.empty() ? "no check yet" : life.verdict.c_str(),
              monitor::name(life.memory.stage), life.package.c_str());
  if (!life.reason.empty())
    std::printf("  %s%s\n", life.reason.c_str(),
                life.checked.empty() ? "" : (" (checked " + life.checked + ")").c_str());
}

void print_next(const monitor::Life& life) {
  for (const std::string& line : life.to_do) std::printf("to do: %s\n", line.c_str());
  for (const std::string& line : life.waiting) std::printf("waiting: %s\n", line.c_str());
  if (const std::string advice = monitor::advice_of(life); !advice.empty()) std::printf("next: %s\n", advice.c_str());
}

Json past_json(const monitor::State& state, const Past& past, const monitor::Life& life) {
  Json verdicts = Json::array(), moves = Json::array(), pending = Json::array();
  for (const auto& e : past.history)
    verdicts.push_back({{"id", e.id},
                        {"time", format_utc(e.time)},
                        {"verdict", e.verdict},
                        {"package", e.package},
                        {"evidence", e.evidence}});
  for (const auto& t : past.transitions)
    moves.push_back({{"id", t.id},
                     {"time", format_utc(t.time)},
                     {"from", t.from},
                     {"to", t.to},
                     {"event", t.event},
                     {"reason", t.reason},
                     {"evidence", t.evidence}});
  for (const auto& a : state.pending_actions())
    pending.push_back({{"kind", a.kind},
                       {"key", a.key},
                       {"created", format_utc(a.created)},
                       {"attempts", a.attempts},
                       {"outcome", a.outcome}});
  return {{"schema", "specdec.monitor_history/1"},
          {"verdict", state.value("verdict")},
          {"package", state.value("package")},
          {"state", monitor::name(life.memory.stage)},
          {"machine", monitor::to_json(life.memory)},
          {"history", verdicts},
          {"transitions", moves},
          {"pending", pending},
          {"waiting", life.waiting}};
}

int run_status(const Global& global, const PastOptions& options) {
  const monitor::State state(options.state, monitor::State::Open::kExisting);
  const monitor::Life life = monitor::read_life(state, monitor::report_file(options.state));
  const Past past{state.history(kNewest), state.transitions(kNewest)};
  if (global.json) {
    std::printf("%s\n", past_json(state, past, life).dump().c_str());
    return 0;
  }
  print_now(life);
  print_next(life);
  std::printf("newest changes:\n");
  print_rows(past);
  return 0;
}

int run_report(const Global& global, const PastOptions& options) {
  const monitor::State state(options.state, monitor::State::Open::kExisting);
  const monitor::Life life = monitor::read_life(state, monitor::report_file(options.state));
  if (!options.html.empty()) write_html(monitor::life_page(life, options.state), options.html);
  if (!options.html.empty() && !global.json) {
    std::printf("%s: %s\n", options.html.c_str(), monitor::life_summary(life).c_str());
    return 0;
  }
  const Past past{state.history(INT64_MAX), state.transitions(INT64_MAX)};
  if (global.json) {
    Json json = past_json(state, past, life);
    json["life"] = monitor::to_json(life);
    std::printf("%s\n", json.dump().c_str());
    return 0;
  }
  std::printf("%s\n", monitor::life_summary(life).c_str());
  print_rows(past);
  print_now(life);
  print_next(life);
  return 0;
}

}  // namespace

void add_monitor_past(CLI::App& monitor, Cli& cli) {
  auto options = std::make_shared<PastOptions>();
  CLI::App* status =
      monitor.add_subcommand("status", "Prints what is now: the verdict and state, what is waited for, newest changes");
  CLI::App* report = monitor.add_subcommand(
      "report", "Prints the draft's life since the first check: all verdicts and transitions, or a page with charts");
  for (CLI::App* sub : {status, report})
    sub->add_option("--state", options->state, "The monitor's memory")->type_name("FILE")->required();
  report
      ->add_option("--html", options->html,
                   "Write the life as a self-contained page: acceptance, evidence, alarms, redistillations, "
                   "canaries, promotions and roll-backs on one axis of time")
      ->type_name("FILE");
  status->footer("Example:\n  specdec monitor status --state monitor.db");
  report->footer(
      "Examples:\n  specdec monitor report --state monitor.db\n"
      "  specdec monitor report --state monitor.db --html life.html");
  status->callback([&cli, options] { cli.selected = [&cli, options] { return run_status(cli.global, *options); }; });
  report->callback([&cli, options] { cli.selected = [&cli, options] { return run_report(cli.global, *options); }; });
}

}  // namespace specdec::cli
