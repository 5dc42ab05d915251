// Implements `specdec monitor check | watch | status | report | baseline`.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/shell.h"
#include "base/verdict.h"
#include "cli/command.h"
#include "cli/log.h"
#include "cli/monitor_baseline.h"
#include "cli/monitor_past.h"
#include "cli/output.h"
#include "monitor/check.h"
#include "monitor/read/source.h"

namespace specdec::cli {

namespace {

// Returns text from records or metrics pages on one line and safe to print.
std::string shown(const Json& text) { return one_line(text.get<std::string>()); }

// Prints one row per judged segment: the measured acceptance, and the acceptance that the baseline predicts for the
// same positions.
void print_evidence(const Json& evidence) {
  bool header = false;
  for (const Json& s : evidence["strata"]) {
    if (!s["acceptance"].is_number()) continue;  // the segment had no requests
    if (!std::exchange(header, true))
      std::printf("  %-16s %9s %11s %9s %11s %10s %8s\n", "segment", "requests", "acceptance", "expected", "difference",
                  "tolerance", "log10 e");
    std::printf("  %-16s %9lld %11.3f %9.3f %+11.3f %10.3f %8.1f\n", shown(s["name"]).c_str(),
                static_cast<long long>(s["requests"].get<int64_t>()), s["acceptance"].get<double>(),
                s["expected"].get<double>(), s["difference"].get<double>(), s["tolerance"].get<double>(),
                s["log10_e"].get<double>());
  }
  for (const Json& scrapes : evidence["scrapes"])
    std::printf("  %s: %lld of %lld scrapes judged\n", shown(scrapes["sources"]).c_str(),
                static_cast<long long>(scrapes["value"].get<int64_t>()),
                static_cast<long long>(scrapes["limit"].get<int64_t>()));
  for (const Json& note : evidence["notes"]) std::printf("  note: %s\n", shown(note).c_str());
  for (const Json& source : evidence["sources"]["set_aside"]) std::printf("  set aside: %s\n", shown(source).c_str());
  if (evidence.contains("first_broken_line"))
    say("specdec: warning: " + shown(evidence["first_broken_line"]), LogLevel::kWarn);
}

void print_result(const Global& global, const monitor::CheckResult& result) {
  if (global.json) {
    std::printf("%s\n", result.json.dump().c_str());
  } else {
    std::printf("%s: %s\n", to_string(result.verdict), one_line(result.reason).c_str());
    for (const Json& t : result.json["transitions"])
      std::printf("  %s -> %s (%s): %s\n", t["from"].get<std::string>().c_str(), t["to"].get<std::string>().c_str(),
                  t["event"].get<std::string>().c_str(), shown(t["reason"]).c_str());
    for (const Json& w : result.json["waiting"])
      std::printf("  %s: %s\n", result.json["state"].get<std::string>().c_str(), w.get<std::string>().c_str());
    if (const Json trigger = result.json.value("trigger", Json());
        trigger.is_object() && trigger.value("ran", false) && trigger.value("exit_code", 0) != 0)
      std::printf("  on-drift: the command ended with exit code %d%s; the next check runs it again\n",
                  trigger["exit_code"].get<int>(),
                  trigger["exit_code"] == 127 ? " (the shell found no such program on PATH)" : "");
    print_evidence(result.json["evidence"]);
    std::printf("next: %s\n", result.json["next"].get<std::string>().c_str());
  }
  require_output_written();
}

int run_check(const Global& global, monitor::CheckOptions options) {
  options.program = global.program;
  const monitor::CheckResult result = monitor::check(options, SystemClock());
  print_result(global, result);
  return result.exit_code;
}

// Repeats the check until a signal arrives. If a source does not answer or sends malformed data, that is logged and the
// loop goes on.
int run_watch(const Global& global, monitor::CheckOptions options, double interval) {
  options.program = global.program;
  int code = 0, failed_polls = 0;
  std::optional<Verdict> told;
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

// A duration whose option stores it in another unit than seconds, such as hours (unit_s = 3600).
struct InUnit {
  double& value;
  double unit_s;
};
CLI::Option* add_time(CLI::App& sub, const char* flag, InUnit time, const char* help, const char* shown) {
  const auto set = [flag, time](const std::string& text) {
    time.value = parse_duration(text, flag, ErrorKind::kUsage, {.months = true}) / time.unit_s;
  };
  return sub.add_option_function<std::string>(flag, set, help)->type_name("DURATION")->default_str(shown);
}

// The list that a flag adds its URLs to, and which part of each URL may be shown.
struct UrlList {
  const Global& global;
  SecretUrl::Shows shows;
  std::vector<SecretUrl>& urls;
};
// Declares a flag that may be repeated; each occurrence adds one URL.
CLI::Option* add_urls(CLI::App& sub, const char* flag, UrlList list, const char* help) {
  const auto set = [list](const std::vector<std::string>& given) {
    list.urls.clear();
    for (const std::string& text : given) list.urls.push_back(secret_url(list.global, text, list.shows));
  };
  return sub.add_option_function<std::vector<std::string>>(flag, set, help)->type_name("URL|@FILE");
}

void add_redistil_flags(CLI::App& sub, monitor::Policy& p) {
  const char* const group = "Redistilling";
  sub.add_option("--loop", p.loop, "LOOP.toml: a confirmed drop or a changed target starts specdec loop run")
      ->type_name("FILE")
      ->group(group);
  sub.add_option("--redistil", p.redistil,
                 "Command to run instead of the loop; exit 0 = done, 75 = try again at the next check")
      ->type_name("COMMAND")
      ->group(group);
  sub.add_option(
         "--job", p.job,
         "Write a Kubernetes Job that runs the loop to this file; --redistil 'kubectl apply -f FILE' applies it")
      ->type_name("FILE")
      ->group(group);
  sub.add_option("--job-image", p.job_image, "Container image of the Job")->type_name("IMAGE")->group(group);
  add_time(sub, "--cooldown", {p.cooldown_hours, 3600}, "Between two redistillations for the same target", "24h")
      ->group(group);
  sub.add_option("--min-fresh", p.min_fresh, "New requests before a redistillation")
      ->capture_default_str()
      ->check(at_least(0))
      ->group(group);
  sub.add_option("--budget", p.budget, "Redistillations in 7 days")
      ->capture_default_str()
      ->check(within(1, 1000))
      ->group(group);
  sub.add_option("--redistil-gpu-hours", p.gpu_hours,
                 "GPU hours of one redistillation; the savings have to repay them within --horizon")
      ->check(at_least(0))
      ->group(group);
  add_time(sub, "--horizon", {p.horizon_days, 86400}, "Time in which it has to come back", "14d")->group(group);
  sub.add_option("--gpus", p.gpus, "Number of GPUs that serve --tokens-per-second")
      ->capture_default_str()
      ->check(within(1, 1000000))
      ->group(group);
  sub.add_option("--tokens-per-second", p.tokens_per_second, "Throughput of the deployment under load, today")
      ->check(more_than(0))
      ->group(group);
  sub.add_option("--tokens-per-request", p.tokens_per_request, "Mean length of an answer")
      ->check(more_than(0))
      ->group(group);
}

void add_policy_flags(CLI::App& sub, const Global& global, monitor::Policy& p) {
  sub.add_option(
         "--canary", p.canary,
         "Data directory of the canary set (its requests are in the package's report), on which an alarm is confirmed")
      ->type_name("DIR")
      ->group("Confirmation");
  sub.add_option("--probe", p.probe, "Command that confirms an alarm instead of --canary; prints validate's JSON")
      ->type_name("COMMAND")
      ->group("Confirmation");
  sub.add_option_function<std::string>(
         "--confirm", [&p](const std::string& by) { p.alarm_confirms = by == "alarm"; },
         "probe | alarm: the alarm confirms itself")
      ->check(CLI::IsMember({"probe", "alarm"}))
      ->default_str("probe")
      ->group("Confirmation");
  sub.add_option("--min-loss", p.min_loss, "Smallest drop of acceptance worth money")
      ->capture_default_str()
      ->check(within(0, 1))
      ->group("Confirmation");
  add_redistil_flags(sub, p);
  const char* const canary = "Canary";
  sub.add_option("--candidate", p.candidate, "STORE:CHANNEL in which new packages appear")
      ->type_name("STORE:CHANNEL")
      ->group(canary);
  sub.add_flag("--allow-failed", p.allow_failed, "Also try packages that did not pass their gate")->group(canary);
  sub.add_option("--admin", p.admin,
                 "The server's admin listener, unix:PATH or a URL: candidates are tried there, promoted or dropped")
      ->type_name("unix:PATH|URL")
      ->group(canary);
  sub.add_option_function<std::string>(
         "--admin-key-file", [&p](const std::string& file) { p.admin_key = read_api_key(file); }, "File with its key")
      ->type_name("FILE")
      ->group(canary);
  sub.add_option("--score", p.score, "Share of the conversations that the candidate scores")
      ->capture_default_str()
      ->check(within(0, 1))
      ->group(canary);
  sub.add_option("--serve", p.serve, "Share of the conversations that are served with the candidate")
      ->capture_default_str()
      ->check(within(0, 1))
      ->group(canary);
  sub.add_option("--margin", p.margin, "Largest loss of acceptance that still promotes")
      ->capture_default_str()
      ->check(within(0, 1))
      ->group(canary);
  add_time(sub, "--bake", {p.bake_hours, 3600}, "A drift alarm so long after a promotion rolls it back", "24h")
      ->group(canary);
  add_time(sub, "--canary-time", {p.canary_days, 86400}, "An undecided candidate is dropped after it", "7d")
      ->group(canary);
  const char* const telling = "Telling";
  sub.add_option("--disable", p.disable, "Command that turns speculation off when no K is faster than plain decoding")
      ->type_name("COMMAND")
      ->group(telling);
  sub.add_option("--enable", p.enable, "Command that turns it on again")->type_name("COMMAND")->group(telling);
  add_urls(sub, "--webhook", {global, SecretUrl::Shows::kHost, p.webhooks},
           "URL that gets every transition as JSON, or @FILE that holds it; may be repeated")
      ->group(telling);
  sub.add_option_function<std::string>(
         "--webhook-secret-file", [&p](const std::string& file) { p.webhook_secret = read_api_key(file); },
         "File with the key of X-Specdec-Signature-256")
      ->type_name("FILE")
      ->group(telling);
  sub.add_option_function<std::string>(
         "--alertmanager",
         [&p, &global](const std::string& url) { p.alertmanager = secret_url(global, url, SecretUrl::Shows::kPath); },
         "URL of an Alertmanager that gets the alert SpecdecDraft")
      ->type_name("URL|@FILE")
      ->group(telling);
  sub.add_option("--alert", p.alert,
                 "An Alertmanager notification (webhook version 4) as evidence: a file or - for standard input")
      ->type_name("FILE")
      ->group(telling);
  sub.add_option("--prom", p.prom, "Textfile for node_exporter")->type_name("FILE")->group(telling);
}

void add_check_flags(CLI::App& sub, const Global& global, monitor::CheckOptions& o, std::string& state) {
  sub.add_option("--package", o.package, "Package directory or STORE:CHANNEL")
      ->type_name("PACKAGE|STORE:CHANNEL")
      ->required();
  add_urls(sub, "--source", {global, SecretUrl::Shows::kPath, o.sources},
           "Records (*.jsonl file or directory), the URL of a /metrics page, prometheus+URL[?match={label=\"value\"}], "
           "or @FILE that holds one; may be repeated")
      ->type_name("FILE|DIR|URL");
  sub.add_option_function<std::string>(
         "--api-key-file", [&o](const std::string& file) { o.api_key = read_api_key(file); },
         "File with the key of the servers whose /metrics pages are read")
      ->type_name("FILE");
  sub.add_option("--target", o.target,
                 "MODEL, or the URL of an OpenAI-compatible endpoint: the target as it is served now; default: the "
                 "package's own, or the one it refers to")
      ->type_name("MODEL|URL");
  sub.add_flag("--full", o.full_target,
               "Compare every byte of a local target's weights, not only samples; the weights are read again only "
               "after a write");
  sub.add_option_function<std::string>(
         "--target-key-file", [&o](const std::string& file) { o.target_watch.api_key = read_api_key(file); },
         "With a URL: file with its key")
      ->type_name("FILE");
  sub.add_option("--target-model", o.target_watch.model,
                 "With a URL: name of the model there; default: the first of /v1/models")
      ->type_name("NAME");
  sub.add_option("--target-calls", o.target_watch.calls,
                 "With a URL: requests per check of the target, for each of 8 prompts")
      ->capture_default_str()
      ->check(within(8, 256));
  sub.add_option_function<double>(
         "--target-every", [&o](double hours) { o.target_watch.every_s = hours * 3600; },
         "With a URL: hours between these checks of the target")
      ->default_str("24")
      ->check(within(0.01, 8760));
  sub.add_option("--state", state, "The monitor's memory (SQLite file, created if it is missing)")
      ->type_name("FILE")
      ->required();
  sub.add_option("--requests-per-day", o.requests_per_day,
                 "Volume of the traffic; with --false-alarm-every it sets the alarm level")
      ->check(at_least(0));
  add_time(sub, "--false-alarm-every", {o.false_alarm_every_days, 86400},
           "Wanted time between false alarms: 30d, 8w, 6m, 1y", "1y");
  sub.add_option("--model", o.model, "model_name whose counters to read, if a page or a Prometheus server has several")
      ->type_name("NAME");
  sub.add_option("--baseline", o.baseline,
                 "File that monitor baseline wrote: the acceptance without drift; default: the roll-outs of the "
                 "package's report")
      ->type_name("FILE");
  sub.add_option("--wander", o.wander_sd, "Standard deviation of the baseline's slow wander, if it is known")
      ->check(within(0, 0.5));
  sub.add_option(
         "--on-drift", o.on_drift,
         "Command to run once an alarm (gets SPECDEC_ALARM_VERDICT, _REASON, _PACKAGE, _TARGET, _SEGMENT, _REPORT)")
      ->type_name("COMMAND");
  sub.add_option("--fail-on", o.fail_on, "Mildest verdict with a failing exit code: warn | drift | stale")
      ->capture_default_str()
      ->check(CLI::IsMember({"warn", "drift", "stale"}));
  sub.add_flag("--acknowledge", o.acknowledge, "Restart the detectors after an alarm that was investigated");
  sub.add_flag("--exit-zero", o.exit_zero, "Exit 0 whatever the verdict");
  add_policy_flags(sub, global, o.policy);
}

}  // namespace

void add_monitor(Cli& cli) {
  CLI::App* sub =
      cli.app.add_subcommand("monitor", "Watches for acceptance drift and target changes: verdict, exit code, trigger");
  sub->require_subcommand(1);
  sub->footer(
      "Examples:\n"
      "  specdec monitor check --package store:production --source recorded/acceptance --target models/target --state "
      "monitor.db\n"
      "  specdec monitor status --state monitor.db\n"
      "  specdec monitor report --state monitor.db --html life.html");
  auto options = std::make_shared<monitor::CheckOptions>();
  auto state = std::make_shared<std::string>();
  auto interval = std::make_shared<double>(60);

  add_monitor_baseline(*sub, cli);
  CLI::App* check = sub->add_subcommand("check", "Checks once, for cron");
  add_check_flags(*check, cli.global, *options, *state);
  check->footer(
      "Examples:\n  specdec monitor check --package store:production --source recorded/acceptance --state monitor.db\n"
      "  specdec monitor check --package store:production --source http://127.0.0.1:8000/metrics --target "
      "models/target --state monitor.db \\\n"
      "      --requests-per-day 50000 --false-alarm-every 1y --on-drift 'specdec loop run LOOP.toml'\n"
      "  specdec monitor check --package store:production --candidate store:candidate --source recorded/acceptance "
      "--target models/target \\\n"
      "      --state monitor.db --canary canary --loop LOOP.toml --admin unix:/run/specdec/admin.sock\n"
      "Exit codes: 0 healthy or warn, 3 drift, 4 too little data, 5 stale target, 6 not worth it, 7 package or source "
      "broken or missing\n"
      "(also an invalid /metrics page), 75 the URL does not answer, or another check or an action that it started is "
      "running.");
  check->callback([&cli, options, state] {
    options->state = *state;
    cli.selected = [&cli, options] { return run_check(cli.global, *options); };
  });

  CLI::App* watch =
      sub->add_subcommand("watch", "Checks every --interval seconds until a signal; a failed poll is a warning");
  add_check_flags(*watch, cli.global, *options, *state);
  watch->add_option("--interval", *interval, "Seconds between checks")->capture_default_str()->check(within(1, 86400));
  watch->footer(
      "Example:\n  specdec monitor watch --package store:production --source http://127.0.0.1:8000/metrics --state "
      "monitor.db --interval 300");
  watch->callback([&cli, options, state, interval] {
    options->state = *state;
    cli.selected = [&cli, options, interval] { return run_watch(cli.global, *options, *interval); };
  });

  add_monitor_past(*sub, cli);
}

}  // namespace specdec::cli
