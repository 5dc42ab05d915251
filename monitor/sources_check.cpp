#include "monitor/sources_check.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/verdict.h"
#include "monitor/report/next_step.h"
#include "monitor/state/transaction.h"
#include "monitor/statistics/detector.h"

namespace specdec::monitor {

namespace {

// Returns whether another target was known to be served before the sources were read. If only the package's own copy of
// the target differs, returns false.
bool is_another_served(const ServedMemory& memory, const Sighting& sighting) {
  return !memory.stale.empty() || (!sighting.stale.empty() && sighting.by != Witness::kCopy);
}

class SourcesCheck {
 public:
  SourcesCheck(const CheckOptions& options, const Clock& clock, Facts& facts, State& state)
      : options_(options), clock_(clock), facts_(facts), state_(state) {}

  SourcesOutcome run(LoopDriver& driver) {
    Transaction transaction(state_);
    const bool is_new = take_package();
    driver.package_seen(transaction, facts_, is_new);
    const Reading reading = read();
    facts_.found(reading.served.target, reading.served.memory.by);
    state_.set_value(kServedTarget, to_json(reading.served.memory).dump());
    if (!reading.served.wait.empty()) {
      transaction.commit();
      throw Error(ErrorKind::kNetwork, reading.served.wait);
    }
    keep(reading.observation, state_);
    const SourcesOutcome outcome = judge_reading(reading);
    record(outcome, reading);
    driver.observed(transaction, facts_,
                    {.verdict = outcome.judged.verdict,
                     .reason = outcome.judged.reason,
                     .evidence = {{"inputs", outcome.report.inputs}, {"evidence", outcome.report.evidence}},
                     .records = reading.observation.read.records});
    if (!outcome.alarm_key.empty() && !options_.on_drift.empty())
      write_down_on_drift(transaction, outcome.alarm_key, alarm_environment(outcome, reading.detector), now());
    transaction.commit();
    return outcome;
  }

 private:
  struct Reading {
    Observation observation;
    Detector detector;
    ServedVerdict served;
  };

  int64_t now() const { return clock_.unix_seconds(); }
  const std::string& digest() const { return facts_.package.digest; }
  const Fingerprint& bound() const { return facts_.package.manifest.target; }

  // Returns whether the package differs from that of the last check; if so, or with --acknowledge, restarts the
  // detectors.
  bool take_package() {
    const bool is_new = state_.value("package") != digest();
    if (is_new || options_.acknowledge)
      restart_detectors(state_, digest(), is_new ? "new_package" : "acknowledged", now());
    return is_new;
  }

  // Reads the sources and decides which target is served. What was read is discarded in two cases: during a rolling
  // update, and if this check is the first to find another target, because it has then judged traffic that names no
  // target. The next check reads the same data again, without such traffic.
  Reading read() const {
    Detector detector = make_detector(options_, facts_.package, facts_.report);
    if (const std::string old = state_.value("detector"); !old.empty())
      detector.restore(parse_json(old, options_.state.string()), options_.state.string());
    const ServedMemory memory = served_memory_from_text(state_.value(kServedTarget), kServedTarget);
    const Sighting sighting = sighting_of(facts_);
    Detector fed = detector;
    Observation observation = read_sources(memory, sighting, fed);
    ServedVerdict served = judge_served(memory, {digest(), bound().id}, sighting, observation.claims, now());
    const bool is_first = !served.memory.stale.empty() && !is_another_served(memory, sighting);
    if (!is_first && served.wait.empty()) return {std::move(observation), std::move(fed), std::move(served)};
    served.memory.newest = memory.newest;
    Observation unread;
    unread.set_aside = observation.set_aside;
    unread.without_others = observation.without_others;
    return {std::move(unread), std::move(detector), std::move(served)};
  }

  // Reads the sources. If another target is known to be served, an error in reading is not thrown, so that the check
  // still reports the other target.
  Observation read_sources(const ServedMemory& memory, const Sighting& sighting, Detector& detector) const {
    try {
      Observation observation = observe({.options = options_,
                                         .package = facts_.package,
                                         .report = facts_.report,
                                         .state = state_,
                                         .newest = memory.newest,
                                         .now = now(),
                                         .another_is_served = is_another_served(memory, sighting)},
                                        detector);
      if (!facts_.target_check.named.empty())
        observation.claims.add_endpoint(options_.target, facts_.target_check.named);
      return observation;
    } catch (const Error& e) {
      if ((sighting.stale.empty() && memory.stale.empty()) || e.kind() == ErrorKind::kUsage) throw;
      Observation observation;
      observation.set_aside.add(e.what());
      for (const NamedRecord& r : memory.newest) observation.claims.records.add(r, now());
      return observation;
    }
  }

  SourcesOutcome judge_reading(const Reading& reading) const {
    const bool is_stale = !reading.served.stale.empty();
    SourcesOutcome outcome;
    Judged& judged = outcome.judged;
    if (is_stale)
      judged = {Verdict::kStaleTarget, reading.served.stale,
                MonitorFigure{"target", facts_.target.id.substr(0, 12), bound().id.substr(0, 12)}};
    else
      judged = judge(options_, reading.detector, facts_.report, reading.observation);
    judged.next = next_command(options_, judged.verdict);
    Json evidence = evidence_json(options_, reading.detector, reading.observation);
    evidence["served"] = reading.served.evidence;
    if (!facts_.target_check.evidence.is_null()) evidence["target"] = facts_.target_check.evidence;
    outcome.report = report_of(judged, evidence);
    outcome.speedup_now = is_stale ? 1 : speedup_now(facts_.report, reading.detector);
    const Verdict verdict = judged.verdict;
    if (verdict == Verdict::kDrift || verdict == Verdict::kStaleTarget || verdict == Verdict::kNotWorthIt)
      outcome.alarm_key = digest() + " " + state_.value("epoch") + " " + to_string(verdict) +
                          (is_stale ? " " + alarm_about(reading.served.memory) : "");
    return outcome;
  }

  // Returns the target that a stale_target alarm is about: the target that was served when the alarm began
  // (memory.alarm). The target that is served now would not do, because a page could name a new target at each check.
  // If only the package's own copy is damaged, nothing is remembered, and the result is facts_.target.
  std::string alarm_about(const ServedMemory& memory) const {
    return memory.stale.empty() ? facts_.target.id : memory.alarm;
  }

  SourcesReport report_of(const Judged& judged, const Json& evidence) const {
    SourcesReport report = {judged.verdict, judged.reason, judged.figure, judged.next, format_utc(now())};
    report.inputs = {{"package", digest()},
                     {"target", bound().id},
                     {"draft", facts_.package.manifest.draft.id},
                     {"served", facts_.target.id}};
    if (!facts_.served.hub_commit.empty()) report.inputs["target_commit"] = facts_.served.hub_commit;
    report.evidence = evidence;
    return report;
  }

  void record(const SourcesOutcome& outcome, const Reading& reading) {
    const Verdict verdict = outcome.judged.verdict;
    state_.set_value("detector", reading.detector.state().dump());
    Measurement measurement = measure(reading.detector, reading.observation.charts,
                                      alarm_level(options_.requests_per_day, options_.false_alarm_every_days));
    measurement.epoch = state_.epoch();
    measurement.time = now();
    state_.add(measurement);
    if (verdict_named(state_.value("verdict")) != verdict)
      state_.append(HistoryEntry{0, now(), to_string(verdict), digest(), json_of(outcome.report)});
    state_.set_value("verdict", to_string(verdict));
  }

  Json alarm_environment(const SourcesOutcome& outcome, const Detector& detector) const {
    const Verdict verdict = outcome.judged.verdict;
    return {{"SPECDEC_ALARM_VERDICT", verdict},
            {"SPECDEC_ALARM_REASON", outcome.judged.reason},
            {"SPECDEC_ALARM_PACKAGE", options_.package},
            {"SPECDEC_ALARM_TARGET", options_.target},
            {"SPECDEC_ALARM_SEGMENT", verdict == Verdict::kDrift ? detector.peak().stratum : ""},
            {"SPECDEC_ALARM_REPORT", fs::absolute(report_file(options_.state)).string()}};
  }

  const CheckOptions& options_;
  const Clock& clock_;
  Facts& facts_;
  State& state_;
};

}  // namespace

SourcesOutcome check_sources(const CheckOptions& options, const Clock& clock, Facts& facts, State& state,
                             LoopDriver& driver) {
  return SourcesCheck(options, clock, facts, state).run(driver);
}

fs::path report_file(const fs::path& state) { return state.string() + ".report.json"; }

}  // namespace specdec::monitor
