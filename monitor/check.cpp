#include "monitor/check.h"

#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "monitor/actions/notify.h"
#include "monitor/facts/facts.h"
#include "monitor/loop_driver.h"
#include "monitor/sources_check.h"
#include "monitor/state/state.h"
#include "net/http_client.h"

namespace specdec::monitor {

namespace {

void require_options(const CheckOptions& o) {
  const Policy& p = o.policy;
  const auto need = [](bool holds, const std::string& text) {
    if (!holds) throw Error(ErrorKind::kUsage, text);
  };
  need(o.fail_on == "warn" || o.fail_on == "drift" || o.fail_on == "stale",
       "--fail-on: expected warn, drift or stale, found '" + o.fail_on + "'");
  need(p.loop.empty() || p.redistil.empty() || !p.job.empty(),
       "--loop and --redistil: give one of them (both beside --job)");
  need(p.canary.empty() || p.probe.empty(), "--canary and --probe: give one of them");
  need(p.gpu_hours == 0 || (o.requests_per_day > 0 && p.tokens_per_second > 0 && p.tokens_per_request > 0),
       "--redistil-gpu-hours: needs --requests-per-day, --tokens-per-request and --tokens-per-second too");
  for (const SecretUrl& url : p.webhooks)
    need(is_url(url.reveal()) && !net::origin_of(url.reveal()).empty(),
         "--webhook: expected http(s)://host/…, found " + url.shown());
  if (!p.alertmanager.empty()) net::base_url(p.alertmanager.reveal(), "--alertmanager", "its configuration");
  need(p.admin.empty() || !p.candidate.empty(), "--admin: needs --candidate STORE:CHANNEL, where new packages appear");
  need(p.job.empty() == p.job_image.empty(), "--job and --job-image: give both or none");
  need(p.job.empty() || !p.loop.empty(), "--job: needs --loop, which the Job runs");
}

}  // namespace

int monitor_exit_code(Verdict verdict, const std::string& fail_on) {
  switch (verdict) {
    // --fail-on names the mildest verdict that gives a failure exit code. From mild to severe: warn; drift and
    // not_worth_it; stale.
    case Verdict::kDrift:
    case Verdict::kNotWorthIt:
      return fail_on == "stale" ? 0 : exit_code(verdict);
    case Verdict::kWarn:
      return fail_on == "warn" ? exit_code(Verdict::kDrift) : exit_code(verdict);
    // --fail-on does not change the exit codes of the other verdicts.
    default:
      return exit_code(verdict);
  }
}

CheckResult check(const CheckOptions& options, const Clock& clock) {
  require_options(options);
  const double started = clock.seconds();
  if (options.state.has_parent_path() && !fs::is_directory(options.state.parent_path()))
    throw Error(ErrorKind::kIo, options.state.string() + ": its directory does not exist");
  const FileLock lock(options.state.string() + ".lock");
  // The facts are gathered before the database is locked, because gathering them may query a hub or an endpoint, or
  // download a target.
  const bool remembers = !options.acknowledge && fs::exists(options.state);
  Facts facts =
      gather_facts(options, [&](const char* key) { return remembers ? State(options.state).value(key) : ""; }, clock);
  State state(options.state);
  keep_target_check(state, facts);
  recall_served(state, facts);
  LoopDriver driver(options, clock, state, lock.descriptor());
  if (driver.settle(facts)) {
    facts = gather_facts(options, [&](const char* key) { return state.value(key); }, clock);
    keep_target_check(state, facts);
    recall_served(state, facts);
  }
  const SourcesOutcome sources = check_sources(options, clock, facts, state, driver);

  CheckReport report;
  report.sources = sources.report;
  CheckResult result{nullptr, sources.judged.verdict, sources.judged.reason,
                     options.exit_zero ? 0 : monitor_exit_code(sources.judged.verdict, options.fail_on)};
  const auto publish = [&] {
    report.state = name(driver.memory().stage);
    report.transitions = driver.transitions();
    report.actions = driver.actions();
    report.waiting = driver.waiting().get<std::vector<std::string>>();
    report.seconds = clock.seconds() - started;
    result.json = json_of(report);
    write_file_atomic(report_file(options.state), result.json.dump() + "\n");
  };
  publish();
  report.trigger = driver.on_drift(facts, sources.alarm_key);
  driver.work(facts, sources.speedup_now);
  driver.tell_alertmanager(facts);
  publish();
  if (options.policy.prom.empty()) return result;
  const PublicFiles for_the_exporter;
  const auto redistillations = static_cast<int64_t>(state.actions_of("redistil", 0).size());
  write_file_atomic(options.policy.prom, textfile(result.json, driver.memory(), redistillations, clock.unix_seconds()));
  return result;
}

}  // namespace specdec::monitor
