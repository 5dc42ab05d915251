#include "monitor/report/life.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/shell.h"
#include "base/verdict.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMostText = 400;  // longest shown text, in bytes

// Returns the text on one line, cut to kMostText bytes at the end of a character.
std::string shown(const std::string& text) {
  std::string line = one_line(text);
  if (line.size() <= kMostText) return line;
  size_t end = kMostText;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
  return line.substr(0, end) + "…";
}
std::string text_in(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? shown(found->get<std::string>()) : "";
}
std::string short_id(const std::string& digest) { return shown(digest.substr(0, 12)); }

bool is_alarm(Verdict verdict) {
  return verdict == Verdict::kDrift || verdict == Verdict::kStaleTarget || verdict == Verdict::kNotWorthIt;
}
Tone tone_of(Verdict verdict) {
  if (is_alarm(verdict)) return Tone::kBad;
  return verdict == Verdict::kHealthy ? Tone::kGood : Tone::kOpen;
}
Tone tone_of_stage(const std::string& stage) {
  if (stage == name(Stage::kHealthy)) return Tone::kGood;
  for (const Stage open : {Stage::kWarn, Stage::kSuspect})
    if (stage == name(open)) return Tone::kOpen;
  for (const Stage plain : {Stage::kRedistilling, Stage::kCandidate, Stage::kCanary})
    if (stage == name(plain)) return Tone::kPlain;
  return Tone::kBad;
}
bool is(const TransitionEntry& t, Event event) { return t.event == name(event); }

// Builds a Life from the state.
class Reader {
 public:
  Reader(const State& state, const fs::path& result) : state_(state) {
    history_ = state.history(INT64_MAX, State::Detail::kNoEvidence);
    transitions_ = state.transitions(INT64_MAX, State::Detail::kNoEvidence);
    for (const char* kind :
         {"redistil", "promote", "roll_back", "drop", "load", "probe", "disable", "enable", "command"})
      for (ActionEntry& action : state.actions_of(kind, 1))  // skips actions of state version 1, which have no time
        actions_.push_back(std::move(action));
    life_.verdict = shown(state.value("verdict"));
    life_.package = shown(state.value("package"));
    if (const std::string machine = state.value("machine"); !machine.empty())
      life_.memory = memory_from_json(parse_json(machine, "machine"), "machine");
    for (const ActionEntry& a : state.pending_actions())
      life_.to_do.push_back(
          shown(a.kind + ", attempts " + std::to_string(a.attempts) + (a.outcome.empty() ? "" : ": " + a.outcome)));
    read_result(result);
  }

  Life read() {
    read_measurements();
    find_ends();
    read_verdicts();
    read_transitions();
    read_actions();
    choose_events();
    return std::move(life_);
  }

 private:
  // Reads the file of the last result. A missing or malformed file is not an error, because anybody may have changed or
  // removed it.
  void read_result(const fs::path& file) {
    std::error_code ec;
    if (!fs::is_regular_file(file, ec)) return;
    try {
      const Json result = read_json(file);
      if (text_in(result, "verdict") != life_.verdict) return;
      life_.reason = text_in(result, "reason");
      life_.next = text_in(result, "next");
      life_.checked = text_in(result, "started");
      if (const auto waiting = result.find("waiting"); waiting != result.end() && waiting->is_array())
        for (const Json& line : *waiting)
          if (line.is_string() && life_.waiting.size() < 20) life_.waiting.push_back(shown(line.get<std::string>()));
    } catch (const Error&) {  // ignored: the database has everything that is needed
    }
  }

  // Reads the measurements. States of earlier versions have none; for the time before the first measurement, the
  // figures come from the verdicts in the history.
  void read_measurements() {
    std::vector<Measurement> measurements = state_.measurements();
    std::vector<Measurement> before;
    const int64_t first = measurements.empty() ? INT64_MAX : measurements.front().time;
    int64_t epoch = -static_cast<int64_t>(history_.size()) - 1;
    for (const size_t i : chosen_verdicts()) {
      const HistoryEntry& row = history_[i];
      evidence_[row.id] = state_.evidence_of(row.id);
      if (!verdict_named(row.verdict) && row.time <= first) ++epoch;
      if (!verdict_named(row.verdict) || row.time >= first) continue;
      before.push_back(measurement_in(evidence_[row.id]));
      before.back().epoch = epoch;
      before.back().time = row.time;
    }
    // The first measurement continues the sums of the verdicts before it, unless the detectors were restarted between
    // them.
    if (!measurements.empty())
      for (Measurement& m : before)
        if (m.epoch == epoch) m.epoch = measurements.front().epoch;
    measurements.insert(measurements.begin(), before.begin(), before.end());
    if (!measurements.empty()) life_.last = {measurements.back()};
    life_.periods = periods_of(measurements, Life::kMostPeriods);
  }

  // Returns the rows of the history whose evidence is read. One half of kMostEvents is for the newest alarms and
  // restarts of the detectors, the other half for the newest other rows.
  std::vector<size_t> chosen_verdicts() const {
    std::vector<size_t> chosen;
    size_t grave = Life::kMostEvents / 2, others = Life::kMostEvents / 2;
    for (size_t i = history_.size(); i-- > 0;) {
      const auto verdict = verdict_named(history_[i].verdict);
      size_t& places = !verdict || is_alarm(*verdict) ? grave : others;
      if (places > 0) --places, chosen.push_back(i);
    }
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }

  void find_ends() {
    const auto take = [&](int64_t time) {
      if (time <= 0) return;
      life_.begin = life_.begin == 0 ? time : std::min(life_.begin, time);
      life_.end = std::max(life_.end, time);
    };
    for (const HistoryEntry& row : history_) take(row.time);
    for (const TransitionEntry& row : transitions_) take(row.time);
    for (const ActionEntry& action : actions_) take(action.created), take(action.ended);
    for (const Measurement& m : life_.last) take(m.time);
  }

  // Begins a span of time, which ends where the next span begins. If the last span has the same text and tone (its
  // colour on the page), that span continues instead.
  void begin_span(std::vector<LifeSpan>& spans, int64_t time, const std::string& what, Tone tone) const {
    if (!spans.empty() && spans.back().what == what && spans.back().tone == tone) return;
    end_span(spans, time);
    spans.push_back({time, life_.end, what, tone});
  }
  void end_span(std::vector<LifeSpan>& spans, int64_t time) const {
    if (!spans.empty()) spans.back().to = std::min(spans.back().to, time);
  }

  void read_verdicts() {
    int64_t left_out = 0;
    for (const HistoryEntry& row : history_) {
      const auto verdict = verdict_named(row.verdict);
      const std::string package = short_id(row.package);
      if (life_.packages.empty() || life_.packages.back().what != package)
        begin_span(life_.packages, row.time, package, Tone::kPlain);
      if (verdict) {
        begin_span(life_.verdicts, row.time, readable(row.verdict), tone_of(*verdict));
        life_.counts.alarms += is_alarm(*verdict);
        life_.counts.target_changes += *verdict == Verdict::kStaleTarget;
      } else {
        end_span(life_.verdicts, row.time);
      }
      const auto evidence = evidence_.find(row.id);
      if (evidence == evidence_.end()) {
        ++left_out;
        continue;
      }
      const Json inputs = evidence->second.is_object() ? evidence->second.value("inputs", Json()) : Json();
      const bool is_stale = verdict == Verdict::kStaleTarget;
      if (const std::string target = text_in(inputs, is_stale ? "served" : "target"); !target.empty())
        begin_span(life_.targets, row.time, short_id(target), is_stale ? Tone::kBad : Tone::kGood);
      add_history_event(row, verdict, evidence->second);
    }
    life_.left_out += left_out;
  }

  void add_history_event(const HistoryEntry& row, std::optional<Verdict> verdict, const Json& evidence) {
    const std::string reason = text_in(evidence, "reason");
    if (verdict) {
      if (row.id == newest_verdict() && life_.checked.empty())
        life_.reason = reason, life_.next = text_in(evidence, "next"), life_.checked = format_utc(row.time);
      add({row.time, EventKind::kVerdict, readable(row.verdict), reason, tone_of(*verdict)});
    } else if (row.verdict == name(Event::kNewPackage)) {
      add({row.time, EventKind::kPackage, "package " + short_id(row.package), reason});
    } else {
      add({row.time, EventKind::kDetectors, "restarted: " + shown(row.verdict), reason});
    }
  }

  // Returns the id of the history row with the current verdict, 0 if there is none.
  int64_t newest_verdict() const {
    const bool is_current = !history_.empty() && history_.back().verdict == life_.verdict;
    return is_current ? history_.back().id : 0;
  }

  void read_transitions() {
    if (life_.is_empty()) return;
    begin_span(life_.states, life_.begin, name(Stage::kHealthy), Tone::kGood);
    for (const TransitionEntry& t : transitions_) {
      begin_span(life_.states, t.time, shown(t.to), tone_of_stage(t.to));
      const std::string canary = name(Stage::kCanary);
      const bool is_lost = is(t, Event::kWorse) || is(t, Event::kRefused) || is(t, Event::kExpired);
      const Tone tone = is(t, Event::kBetter) ? Tone::kGood : is_lost ? Tone::kBad : Tone::kOpen;
      if (t.from == canary && !life_.canaries.empty()) {
        life_.canaries.back().to = t.time;
        life_.canaries.back().tone = tone;
        life_.canaries.back().what = shown(t.event);
      }
      if (t.to == canary) life_.canaries.push_back({t.time, life_.end, "on trial", Tone::kPlain});
      life_.counts.canaries += t.to == canary;
      life_.counts.lost_canaries += is_lost;
      life_.counts.promotions += is(t, Event::kBetter);
      life_.counts.rollbacks += is(t, Event::kRelapse);
      // Transitions between HEALTHY and WARN are left out, because the verdict events show them already.
      const bool is_calm_move = is(t, Event::kQuiet) || is(t, Event::kAmber);
      if (is_calm_move && (t.from == name(Stage::kHealthy) || t.from == name(Stage::kWarn))) continue;
      const bool is_trial = t.from == canary || t.to == canary || is(t, Event::kRefused);
      add({t.time, is_trial ? EventKind::kCanary : EventKind::kState,
           shown(t.from + " → " + t.to + " (" + t.event + ")"), shown(t.reason),
           is_trial && t.from == canary ? tone : tone_of_stage(t.to)});
    }
    life_.counts.false_alarms = life_.memory.false_alarms;
  }

  void read_actions() {
    static const std::map<std::string, std::pair<EventKind, const char*>> kKinds = {
        {"redistil", {EventKind::kTraining, "redistillation"}},
        {"promote", {EventKind::kPromotion, "promotion"}},
        {"roll_back", {EventKind::kRollback, "roll-back"}},
        {"drop", {EventKind::kCanary, "candidate dropped"}},
        {"load", {EventKind::kCanary, "candidate loaded"}},
        {"probe", {EventKind::kAction, "probe"}},
        {"disable", {EventKind::kAction, "speculation turned off"}},
        {"enable", {EventKind::kAction, "speculation turned on"}},
        {"command", {EventKind::kAction, "--on-drift"}}};
    for (const ActionEntry& a : actions_) {
      const auto& [kind, what] = kKinds.at(a.kind);
      const bool has_ended = a.ended > 0;
      // A superseded action keeps the exit code of its last attempt, or −1.
      const bool is_superseded = a.outcome.starts_with("superseded");
      const int code = a.code.value_or(0);
      const bool is_good = code == 0 || (code >= 200 && code < 300);
      const Tone tone = !has_ended ? Tone::kPlain : is_superseded ? Tone::kOpen : is_good ? Tone::kGood : Tone::kBad;
      LifeEvent event{has_ended ? a.ended : a.created, kind, what, shown(a.outcome), tone, a.created};
      if (!has_ended) event.what += ", not ended";
      if (kind == EventKind::kTraining) add_training(a, event);
      add(std::move(event));
    }
  }

  // Returns the transition that ended REDISTILLING after this action was requested, null if it has not ended.
  const TransitionEntry* end_of_training(const ActionEntry& a) const {
    const auto found = std::find_if(transitions_.begin(), transitions_.end(), [&](const TransitionEntry& t) {
      return t.time >= a.created && t.from == name(Stage::kRedistilling);
    });
    return found == transitions_.end() ? nullptr : &*found;
  }

  // The exit code does not show how a training ended: a command that succeeded may have made no package, and the
  // package of a Kubernetes Job comes later. So the outcome is read from the transition that ended REDISTILLING.
  void add_training(const ActionEntry& a, LifeEvent& event) {
    const TransitionEntry* const end = end_of_training(a);
    const bool is_failed = end && is(*end, Event::kFailed);
    const bool is_done = end && (is(*end, Event::kCandidate) || is(*end, Event::kNewPackage));
    event.tone = is_failed ? Tone::kBad : is_done ? Tone::kGood : end ? Tone::kOpen : Tone::kPlain;
    life_.counts.trainings += 1;
    life_.counts.failed_trainings += is_failed;
    const char* const outcome = is_failed ? "failed" : is_done ? "done" : end ? "superseded" : "under way";
    life_.trainings.push_back({a.created, end ? end->time : life_.end, outcome, event.tone});
    event.what = std::string("redistillation ") + outcome;
    if (a.ended > 0)
      event.reason +=
          specdec::format("%safter %.1f h, attempts %lld", event.reason.empty() ? "" : ", ",
                          static_cast<double>(a.ended - a.created) / 3600, static_cast<long long>(a.attempts));
  }

  void add(LifeEvent event) { life_.events.push_back(std::move(event)); }

  // Sorts the events by time. If there are too many, drops the least serious events (by tone), and of equally serious
  // ones the oldest.
  void choose_events() {
    auto& events = life_.events;
    const auto by_time = [](const LifeEvent& a, const LifeEvent& b) { return a.time < b.time; };
    std::stable_sort(events.begin(), events.end(), by_time);
    if (events.size() <= Life::kMostEvents) return;
    const auto weight = [](const LifeEvent& e) {
      const bool is_mild = e.kind == EventKind::kVerdict || e.kind == EventKind::kAction;
      return e.tone == Tone::kBad ? 2 : is_mild ? 0 : 1;
    };
    // A quarter of the kept events are the newest of any kind; the other three quarters are the most serious of the
    // older events.
    const size_t newest = Life::kMostEvents / 4, rest = Life::kMostEvents - newest;
    const auto tail = events.end() - static_cast<std::ptrdiff_t>(newest);
    std::stable_sort(events.begin(), tail, [&](const LifeEvent& a, const LifeEvent& b) {
      return weight(a) != weight(b) ? weight(a) > weight(b) : a.time > b.time;
    });
    life_.left_out += static_cast<int64_t>(events.size() - Life::kMostEvents);
    events.erase(events.begin() + static_cast<std::ptrdiff_t>(rest), tail);
    std::stable_sort(events.begin(), events.end(), by_time);
  }

  const State& state_;
  std::vector<HistoryEntry> history_;
  std::vector<TransitionEntry> transitions_;
  std::vector<ActionEntry> actions_;
  std::map<int64_t, Json> evidence_;  // evidence by id of the history row
  Life life_;
};

const char* tone_name(Tone tone) {
  static constexpr std::array<const char*, 4> kNames = {"plain", "good", "open", "bad"};
  return kNames.at(static_cast<size_t>(tone));
}

Json mean_json(double sum, int64_t n) { return n > 0 ? Json(sum / static_cast<double>(n)) : Json(nullptr); }

}  // namespace

const char* name(EventKind kind) {
  static constexpr std::array<const char*, 9> kNames = {"verdict", "state",     "package",   "detectors", "training",
                                                        "canary",  "promotion", "roll-back", "action"};
  return kNames.at(static_cast<size_t>(kind));
}

Life read_life(const State& state, const fs::path& result) { return Reader(state, result).read(); }

Json to_json(const Life& life) {
  const LifeCounts& c = life.counts;
  Json events = Json::array(), periods = Json::array();
  for (const LifeEvent& e : life.events)
    events.push_back({{"time", format_utc(e.time)},
                      {"kind", name(e.kind)},
                      {"what", e.what},
                      {"reason", e.reason},
                      {"tone", tone_name(e.tone)}});
  for (const Period& p : life.periods)
    periods.push_back({{"from", format_utc(p.from)},
                       {"to", format_utc(p.to)},
                       {"requests", p.requests.n},
                       {"acceptance", mean_json(p.requests.acceptance, p.requests.n)},
                       {"expected", mean_json(p.requests.expected, p.requests.n)},
                       {"tolerance", mean_json(p.requests.tolerance, p.requests.n)},
                       {"log10_e", p.log10_e},
                       {"log10_alarm", p.log10_alarm}});
  return {{"schema", "specdec.monitor_life/1"},
          {"begin", life.is_empty() ? Json(nullptr) : Json(format_utc(life.begin))},
          {"end", life.is_empty() ? Json(nullptr) : Json(format_utc(life.end))},
          {"verdict", life.verdict},
          {"package", life.package},
          {"state", name(life.memory.stage)},
          {"counts",
           {{"alarms", c.alarms},
            {"false_alarms", c.false_alarms},
            {"target_changes", c.target_changes},
            {"trainings", c.trainings},
            {"failed_trainings", c.failed_trainings},
            {"canaries", c.canaries},
            {"lost_canaries", c.lost_canaries},
            {"promotions", c.promotions},
            {"rollbacks", c.rollbacks}}},
          {"periods", periods},
          {"events", events},
          {"events_left_out", life.left_out},
          {"waiting", life.waiting},
          {"to_do", life.to_do},
          {"next", life.next}};
}

}  // namespace specdec::monitor
