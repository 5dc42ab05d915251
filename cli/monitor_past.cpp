#include "cli/monitor_past.h"

#include <cstdio>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/format.h"
#include "base/shell.h"
#include "cli/results.h"
#include "monitor/machine/machine.h"
#include "monitor/report/life_page.h"
#include "monitor/sources_check.h"
#include "monitor/state/state.h"

namespace specdec::cli {

namespace {

constexpr int64_t kNewest = 20;  // the number of verdicts, and of transitions, that status shows

struct PastOptions {
  std::string state, html;
};

// The rows of the monitor's database, oldest first.
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

struct PastVerdict {
  int64_t id = 0;
  std::string time, verdict, package;
  Json evidence;
};
void visit_fields(Fields& f, PastVerdict& row) {
  f.type("HistoryVerdict", "A change of the verdict.");
  f("id", row.id);
  f("time", row.time);
  f("verdict", row.verdict);
  f("package", row.package);
  f.json("evidence", row.evidence);
}

struct PastTransition {
  int64_t id = 0;
  std::string time, from, to, event, reason;
  Json evidence;
};
void visit_fields(Fields& f, PastTransition& row) {
  f.type("HistoryTransition", "A change of the loop's state.");
  f("id", row.id);
  f("time", row.time);
  f("from", row.from);
  f("to", row.to);
  f("event", row.event);
  f("reason", row.reason);
  f.json("evidence", row.evidence, Json::object());
}

struct PendingAction {
  std::string kind, key, created;
  int64_t attempts = 0;
  std::string outcome;
};
void visit_fields(Fields& f, PendingAction& action) {
  f.type("PendingAction", "An action that is not done yet.");
  f("kind", action.kind);
  f("key", action.key);
  f("created", action.created);
  f("attempts", action.attempts);
  f("outcome", action.outcome);
}

struct PastResult {
  std::string verdict, package, state;
  Json machine, life;
  std::vector<PastVerdict> history;
  std::vector<PastTransition> transitions;
  std::vector<PendingAction> pending;
  std::vector<std::string> waiting;
};
void visit_fields(Fields& f, PastResult& r) {
  f.type("MonitorHistory", "Verdicts, transitions and pending actions, as the monitor remembers them.");
  f.schema("monitor_history", 1);
  f("verdict", r.verdict);
  f("package", r.package);
  f("state", r.state);
  f.json("machine", r.machine);
  f("history", r.history);
  f("transitions", r.transitions);
  f("pending", r.pending);
  f({"waiting", "What the loop waits for."}, r.waiting);
  f.json(if_any("life", "monitor report: the life since the first check, specdec.monitor_life/1."), r.life);
}

PastResult past_result(const monitor::State& state, const Past& past, const monitor::Life& life) {
  PastResult result = {state.value("verdict"),
                       state.value("package"),
                       monitor::name(life.memory.stage),
                       monitor::to_json(life.memory),
                       {},
                       {},
                       {},
                       {},
                       life.waiting};
  for (const auto& e : past.history)
    result.history.push_back({e.id, format_utc(e.time), e.verdict, e.package, e.evidence});
  for (const auto& t : past.transitions)
    result.transitions.push_back({t.id, format_utc(t.time), t.from, t.to, t.event, t.reason, t.evidence});
  for (const auto& a : state.pending_actions())
    result.pending.push_back({a.kind, a.key, format_utc(a.created), a.attempts, a.outcome});
  return result;
}

int run_status(const Global& global, const PastOptions& options) {
  const monitor::State state(options.state, monitor::State::Open::kExisting);
  const monitor::Life life = monitor::read_life(state, monitor::report_file(options.state));
  const Past past{state.history(kNewest), state.transitions(kNewest)};
  if (global.json) {
    std::printf("%s\n", json_of(past_result(state, past, life)).dump().c_str());
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
    PastResult result = past_result(state, past, life);
    result.life = monitor::to_json(life);
    std::printf("%s\n", json_of(result).dump().c_str());
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

void describe_past_results(Results& results) {
  results.add<PastResult>({.commands = {"monitor status", "monitor report"}});
}

}  // namespace specdec::cli
