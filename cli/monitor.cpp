// `specdec monitor check | watch | status | report`.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "cli/command.h"
#include "monitor/check.h"
#include "monitor/source.h"

namespace specdec::cli {

namespace {

void print_result(const Global& global, const monitor::CheckResult& result) {
  if (global.json) {
    std::printf("%s\n", result.json.dump().c_str());
  } else {
    std::printf("%s: %s\n", result.verdict.c_str(), result.reason.c_str());
    for (const Json& s : result.json["evidence"]["strata"])
      std::printf("  %-16s %6lld requests  acceptance %s  baseline %.3f  log10 e %.1f\n", s["name"].get<std::string>().c_str(),
                  static_cast<long long>(s["requests"].get<int64_t>()), s["acceptance"].is_number() ? Json(std::round(s["acceptance"].get<double>() * 1000) / 1000).dump().c_str() : "–",
                  s["baseline"].get<double>(), s["log10_e"].get<double>());
    if (result.json["evidence"].contains("first_broken_line"))
      std::fprintf(stderr, "specdec: warning: %s\n", result.json["evidence"]["first_broken_line"].get<std::string>().c_str());
  }
  std::fflush(stdout);
}

int run_check(const Global& global, const monitor::CheckOptions& options) {
  const monitor::CheckResult result = monitor::check(options, SystemClock());
  print_result(global, result);
  return result.exit_code;
}

// Looks again and again until a signal; a source that does not answer, or answers nonsense, is a log line, not the end.
int run_watch(const Global& global, monitor::CheckOptions options, double interval) {
  int code = 0, failed_polls = 0;
  std::string told;
  const auto failed = [&failed_polls](const Error& e) {
    log(LogLevel::kWarn, std::string(e.what()) + " (failed polls in a row: " + std::to_string(++failed_polls) + ")");
  };
  while (!stop_requested()) {
    install_hub(global);
    try {
      const monitor::CheckResult result = monitor::check(options, SystemClock());
      code = result.exit_code;
      failed_polls = 0;
      options.acknowledge = false;
      if (result.verdict != told || global.verbosity > 0) print_result(global, result);
      told = result.verdict;
    } catch (const monitor::PageError& e) {
      failed(e);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kNetwork) throw;
      failed(e);
    }
    const SystemClock clock;
    for (const double end = clock.seconds() + interval; clock.seconds() < end && !stop_requested();)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return code;
}

int print_history(const Global& global, const std::string& file, int64_t newest) {
  const monitor::State state(file, monitor::State::Open::kExisting);
  const auto history = state.history(newest);
  if (global.json) {
    Json entries = Json::array();
    for (const auto& e : history) entries.push_back({{"id", e.id}, {"time", format_utc(e.time)}, {"verdict", e.verdict}, {"package", e.package}, {"evidence", e.evidence}});
    std::printf("%s\n", Json({{"schema", "specdec.monitor_history/1"}, {"verdict", state.value("verdict")}, {"package", state.value("package")}, {"history", entries}}).dump().c_str());
    return 0;
  }
  std::printf("now: %s, package %.12s\n", state.value("verdict").empty() ? "no check yet" : state.value("verdict").c_str(), state.value("package").c_str());
  for (const auto& e : history)
    std::printf("%s  %-13s %.12s  %s\n", format_utc(e.time).c_str(), e.verdict.c_str(), e.package.c_str(), e.evidence.value("reason", std::string()).c_str());
  return 0;
}

void add_check_flags(CLI::App& sub, monitor::CheckOptions& o, std::string& state) {
  sub.add_option("--package", o.package, "Package directory or STORE:CHANNEL")->required();
  sub.add_option("--source", o.sources, "Acceptance records (*.jsonl file or directory) or the URL of a /metrics page; may be repeated");
  sub.add_option_function<std::string>("--api-key-file", [&o](const std::string& file) { o.api_key = read_api_key(file); },
                                       "File with the key of the servers whose /metrics pages are read");
  sub.add_option("--target", o.target, "MODEL: the target as it is served now; default: the package's own, or the one it refers to");
  sub.add_option("--state", state, "The monitor's memory (SQLite file, made if missing)")->required();
  sub.add_option("--requests-per-day", o.requests_per_day, "Volume; with --false-alarm-every it sets the alarm level")->check(CLI::NonNegativeNumber);
  sub.add_option_function<std::string>(
         "--false-alarm-every",
         [&o](const std::string& text) {
           const char unit = text.empty() ? ' ' : text.back();
           const double scale = unit == 'd' ? 1 : unit == 'w' ? 7 : unit == 'm' ? 30.4 : unit == 'y' ? 365 : 0;
           char* end = nullptr;
           const double n = std::strtod(text.c_str(), &end);
           if (scale == 0 || !(n > 0) || end + 1 != text.c_str() + text.size())
             throw Error(ErrorKind::kUsage, "--false-alarm-every: expected a time such as 30d, 6m or 1y, found '" + text + "'");
           o.false_alarm_every_days = n * scale;
         },
         "Wanted time between false alarms: 30d, 8w, 6m, 1y")
      ->default_str("1y");
  sub.add_option("--wander", o.wander_sd, "Standard deviation of the baseline's slow wander, where it is known")->check(CLI::Range(0.0, 0.5));
  sub.add_option("--on-drift", o.on_drift, "Command to run once an alarm (gets SPECDEC_ALARM_VERDICT, _REASON, _PACKAGE, _TARGET, _SEGMENT, _REPORT)");
  sub.add_option("--fail-on", o.fail_on, "Mildest verdict with a failing exit code: warn | drift | stale")->capture_default_str()->check(CLI::IsMember({"warn", "drift", "stale"}));
  sub.add_flag("--acknowledge", o.acknowledge, "Start the detectors anew after an alarm that was looked into");
  sub.add_flag("--exit-zero", o.exit_zero, "Exit 0 whatever the verdict");
}

}  // namespace

void add_monitor(Cli& cli) {
  CLI::App* sub = cli.app.add_subcommand("monitor", "Acceptance drift and target changes: verdict, exit code, trigger");
  sub->require_subcommand(1);
  sub->footer(
      "Examples:\n"
      "  specdec monitor check --package store:production --source recorded/acceptance --target models/target --state monitor.db\n"
      "  specdec monitor status --state monitor.db");
  auto options = std::make_shared<monitor::CheckOptions>();
  auto state = std::make_shared<std::string>();
  auto interval = std::make_shared<double>(60);

  CLI::App* check = sub->add_subcommand("check", "One look, for cron");
  add_check_flags(*check, *options, *state);
  check->footer(
      "Examples:\n  specdec monitor check --package store:production --source recorded/acceptance --state monitor.db\n"
      "  specdec monitor check --package store:production --source http://127.0.0.1:8000/metrics --target models/target --state monitor.db \\\n"
      "      --requests-per-day 50000 --false-alarm-every 1y --on-drift 'specdec loop run LOOP.toml'\n"
      "Exit codes: 0 healthy or warn, 3 drift, 4 too little data, 5 stale target, 6 not worth it, 7 package or source broken or missing\n"
      "(a /metrics page that is none, too), 75 URL does not answer or state in use.");
  check->callback([&cli, options, state] {
    options->state = *state;
    cli.selected = [&cli, options] { return run_check(cli.global, *options); };
  });

  CLI::App* watch = sub->add_subcommand("watch", "Looks every --interval seconds until a signal; a failed poll is a warning");
  add_check_flags(*watch, *options, *state);
  watch->add_option("--interval", *interval, "Seconds between looks")->capture_default_str()->check(CLI::Range(1.0, 86400.0));
  watch->footer("Example:\n  specdec monitor watch --package store:production --source http://127.0.0.1:8000/metrics --state monitor.db --interval 300");
  watch->callback([&cli, options, state, interval] {
    options->state = *state;
    cli.selected = [&cli, options, interval] { return run_watch(cli.global, *options, *interval); };
  });

  for (const char* name : {"status", "report"}) {
    const bool all = std::string(name) == "report";
    CLI::App* history = sub->add_subcommand(name, all ? "The whole history of verdicts and triggers" : "The verdict now and the newest changes");
    history->add_option("--state", *state, "The monitor's memory")->required();
    history->footer(std::string("Example:\n  specdec monitor ") + name + " --state monitor.db");
    history->callback([&cli, state, all] { cli.selected = [&cli, state, all] { return print_history(cli.global, *state, all ? INT64_MAX : 20); }; });
  }
}

}  // namespace specdec::cli
