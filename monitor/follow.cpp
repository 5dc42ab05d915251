#include "monitor/follow.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "monitor/admin.h"
#include "monitor/guards.h"
#include "monitor/job.h"
#include "monitor/notify.h"
#include "monitor/transaction.h"

namespace specdec::monitor {

namespace {

constexpr int kRounds = 32;                // more transitions than any check can have
constexpr int64_t kAlertHolds = 4 * 3600;  // an alert that no check renews is resolved after it

// "STORE:CHANNEL" in its parts. Throws Error(kUsage) for a package that is named otherwise: there is no channel to
// move.
struct Channel {
  std::string store, name;
};
Channel channel_of(const std::string& argument, const char* flag) {
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos || argument.compare(colon + 1, 7, "sha256-") == 0)
    throw Error(ErrorKind::kUsage, std::string(flag) + ": expected STORE:CHANNEL, found '" + argument + "'");
  require_channel_name(argument.substr(colon + 1));
  return {argument.substr(0, colon), argument.substr(colon + 1)};
}

std::string absolute_path(const fs::path& path) { return fs::absolute(path).lexically_normal().string(); }

}  // namespace

void start_anew(State& state, const std::string& package, const std::string& why, int64_t now) {
  state.append(
      HistoryEntry{0,
                   now,
                   why,
                   package,
                   {{"reason", state.value("package").empty() ? "first check" : "after " + state.value("verdict")},
                    {"before", state.value("package")}}});
  state.set_value("package", package);
  state.set_value("detector", "");
  state.set_value("verdict", "");
  const std::string epoch = state.value("epoch");
  state.set_value("epoch", std::to_string(epoch.empty() ? 1 : std::stoll(epoch) + 1));
}

void Facts::found(const std::string& id, Witness by) {
  target = local;
  unknown = !id.empty() && by == Witness::kEndpoint;
  if (id.empty() || same_target(id, local.id)) return;
  target = {};
  target.id = id;
}

std::string Facts::misfit(const Fingerprint& bound) const {
  if (unknown) return same_target(bound.id, package.manifest.target.id) ? "all" : "";
  if (target.id == local.id) return differing_tiers(bound, target);
  return same_target(bound.id, target.id) ? "" : "all";
}

Follow::Follow(const CheckOptions& options, const Clock& clock, State& state, int lock, const Facts& facts)
    : options_(options), clock_(clock), state_(state), lock_(lock), facts_(facts) {
  const std::string where = options.state.string() + ": machine";
  if (const std::string old = state.value("machine"); !old.empty())
    memory_ = memory_from_json(parse_json(old, where), where);
  disbelieve_future(memory_, now(), options.policy.bake_hours);
  if (!options.policy.candidate.empty()) {
    channel_of(options.policy.candidate, "--candidate");
    channel_of(options.package, "--package, beside --candidate");
  }
}

void Follow::wait(const std::string& reason) { waiting_.insert(reason); }
Json Follow::waiting() const { return waiting_; }

void Follow::in_transaction(const std::function<void()>& f) {
  const Memory before = memory_;
  const bool outer = !inside_;
  std::optional<Transaction> transaction;
  if (outer) transaction.emplace(state_);
  inside_ = true;
  try {
    f();
    state_.set_value("machine", to_json(memory_).dump());
    inside_ = !outer;
    if (transaction) transaction->commit();
  } catch (...) {
    inside_ = !outer;
    memory_ = before;
    throw;
  }
}

// ---- transitions
// --------------------------------------------------------------------------------------------------------

void Follow::put(const std::string& kind, const std::string& key, Json payload) {
  ActionEntry entry;
  entry.key = key.empty() ? "" : is_sha256_hex(key) ? key : sha256_hex(key);
  entry.kind = kind;
  entry.payload = std::move(payload);
  entry.created = now();
  state_.add_action(entry);
}

// What the event changes in the memory, before the acts are written down.
void Follow::remember(Event event) {
  switch (event) {
    case Event::kCandidate: {
      memory_.candidate = found_->digest;
      memory_.goal = facts_.target.id;
      const Json& report = found_->manifest.report;
      const double change = validation_report_from_json(report, found_->root.string()).rollout.alpha.value -
                            facts_.report.rollout.alpha.value;
      memory_.regained.push_back(change);
      if (memory_.regained.size() > 3) memory_.regained.erase(memory_.regained.begin());
      break;
    }
    case Event::kGo:
      memory_.goal = facts_.target.id;
      memory_.key =
          sha256_hex(facts_.target.id + " " + facts_.package.manifest.draft.id + " " + state_.value("epoch") + " " +
                     std::to_string(memory_.records) + " " + std::to_string(state_.actions_of("redistil", 0).size()));
      break;
    case Event::kOnTrial:
      asked_canary_ = true;  // its scores are the next check's business
      break;
    case Event::kRefuted:
      ++memory_.false_alarms;
      for (auto& [key, line] : memory_.alerts) line.clear();
      break;
    case Event::kBetter:
      memory_.promoted = memory_.expected = memory_.candidate;
      memory_.former = facts_.package.digest;
      memory_.bake_until = now() + static_cast<int64_t>(options_.policy.bake_hours * 3600);
      break;
    case Event::kRefused:
    case Event::kWorse:
    case Event::kExpired:
      memory_.rejected.insert(memory_.candidate);
      break;
    case Event::kRelapse:
      memory_.rejected.insert(memory_.promoted);
      memory_.expected = memory_.former;
      break;
    case Event::kNewPackage:
    case Event::kAcknowledged:
      for (auto& [key, line] : memory_.alerts) line.clear();
      memory_.bake_until = 0;
      break;
    default:
      break;
  }
}

void Follow::apply(Event event, const std::string& reason, const Json& evidence) {
  const std::optional<Move> move = move_on(memory_.stage, event);
  if (!move) return;
  in_transaction([&] {
    const Stage from = memory_.stage;
    int64_t id = 0;
    if (move->to != from || event == Event::kCandidate) {
      // What the former state was waiting for is not wanted any more.
      for (const ActionEntry& a : state_.pending_actions())
        if (a.kind == "probe" || a.kind == "redistil" || a.kind == "load") {
          state_.record_attempt(a.id, a.code.value_or(-1), "superseded: " + std::string(name(event)));
          state_.end_action(a.id, now());
        }
      Json row = {{"from", name(from)}, {"to", name(move->to)}, {"event", name(event)}, {"reason", reason}};
      id = state_.append(TransitionEntry{0, now(), name(from), name(move->to), name(event), reason, evidence});
      transitions_.push_back(row);
      memory_.stage = move->to;
      memory_.since = now();
      memory_.reason = reason;
      notify({{"schema", "specdec.monitor_event/1"},
              {"id", id},
              {"time", format_utc(now())},
              {"from", name(from)},
              {"to", name(move->to)},
              {"event", name(event)},
              {"reason", reason},
              {"package", options_.package},
              {"evidence", evidence}},
             id);
      if (is_calm(move->to) && !is_calm(from) && !options_.policy.alertmanager.empty())
        put("alert", "alert " + std::to_string(id),
            {{"body", alert_json(options_.package, name(move->to), reason, now(), now())}});
    }
    const std::string tried = memory_.candidate;
    if (event == Event::kCandidate && !tried.empty() && tried != found_->digest) add(Act::kDrop, Event::kWithdrawn, id);
    remember(event);
    if (speculates(memory_.stage)) add(Act::kEnable, event, id);  // first: a draft is tried where it may draft
    for (const Act act : move->acts)
      if (!(event == Event::kCandidate && act == Act::kDrop)) add(act, event, id);
    if (memory_.stage != Stage::kCandidate && memory_.stage != Stage::kCanary) memory_.candidate.clear();
    if (event == Event::kRelapse) memory_.promoted.clear(), memory_.bake_until = 0;
  });
}

void Follow::notify(const Json& event, int64_t transition) {
  for (const std::string& to : names_of(options_.policy.webhooks))
    put("webhook", "webhook " + std::to_string(transition) + " " + to, {{"to", to}, {"body", event}});
}

std::vector<std::string> Follow::probe_command(bool off) const {
  const Policy& p = options_.policy;
  if (!p.probe.empty()) return {"/bin/sh", "-c", p.probe};
  if (p.canary.empty()) return {};
  const std::string folder = absolute_path(options_.state.string() + ".actions");
  const ValidationReport& r = facts_.report;
  std::vector<std::string> argv = {options_.program,
                                   "--json",
                                   "-q",
                                   "validate",
                                   "--target",
                                   absolute_path(facts_.served.directory),
                                   "--draft",
                                   absolute_path(facts_.package.draft),
                                   "--data",
                                   p.canary,
                                   "--out",
                                   folder + "/probe",
                                   "--split",
                                   r.split,
                                   "--contexts",
                                   r.contexts,
                                   "--temperature",
                                   Json(r.temperature).dump(),
                                   "--max-requests",
                                   "0",
                                   "--seed",
                                   "0",
                                   "--exit-zero"};
  const std::vector<std::string> more =
      off ? std::vector<std::string>{"--parts", "rollout,speed"}
          : std::vector<std::string>{"--parts", "acceptance", "--baseline", folder + "/baseline.json"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

Json Follow::redistil_payload() const {
  const Policy& p = options_.policy;
  Json payload = {{"target", facts_.target.id}, {"records", memory_.records}};
  if (!p.job.empty()) {
    payload["job"] = absolute_path(p.job);
    payload["manifest"] = job_manifest(memory_.key, p.job_image, {"specdec", "loop", "run", p.loop});
  }
  return payload;
}

std::vector<std::string> Follow::redistil_command() const {
  const Policy& p = options_.policy;
  if (!p.redistil.empty()) return {"/bin/sh", "-c", p.redistil};
  // the cluster runs the loop; a command beside it applies the manifest
  if (!p.job.empty() || p.loop.empty()) return {};
  return {options_.program, "loop", "run", absolute_path(p.loop)};
}

// Writes an act down with all that is needed to do it, from the memory as it is.
void Follow::add(Act act, Event event, int64_t transition) {
  const Policy& p = options_.policy;
  const std::string key = std::string(name(act)) + " " + std::to_string(transition);
  const auto of_candidate = [&](Json payload) {
    const Channel store = channel_of(p.candidate, "--candidate");
    payload.update(Json{{"store", absolute_path(store.store)},
                        {"candidates", store.name},
                        {"channel", channel_of(options_.package, "--package").name},
                        {"digest", memory_.candidate}});
    if (const auto package = locate_package(store.store + ":sha256-" + memory_.candidate); package)
      payload.update(Json{{"draft", absolute_path(package->root)}, {"id", package->manifest.draft.id}});
    return payload;
  };
  switch (act) {
    case Act::kProbe:  // the same question once a day
      if (const bool off = memory_.stage == Stage::kDisabled; !probe_command(off).empty())
        put("probe", "probe " + state_.value("epoch") + " " + name(memory_.stage) + " " + std::to_string(now() / 86400),
            {{"off", off}});
      break;
    case Act::kRedistil:
      put("redistil", memory_.key, redistil_payload());
      break;
    case Act::kLoad:
      if (!p.admin.empty()) put("load", key, of_candidate({}));
      break;
    case Act::kDrop:
      if (!memory_.candidate.empty())
        put("drop", key,
            of_candidate(
                {{"why", name(event)},
                 {"roll_back", event == Event::kWorse || event == Event::kRefused || event == Event::kExpired}}));
      break;
    case Act::kPromote:
      put("promote", key, of_candidate({{"why", "canary: " + memory_.reason}}));
      break;
    case Act::kRollBack: {
      const Channel at = channel_of(options_.package, "--package");
      Json payload = {{"store", absolute_path(at.store)},
                      {"channel", at.name},
                      {"digest", facts_.package.digest},
                      {"why", memory_.reason}};
      if (const auto former = locate_package(at.store + ":sha256-" + memory_.former); former)
        payload.update(Json{{"draft", absolute_path(former->root)}, {"id", former->manifest.draft.id}});
      put("roll_back", key, payload);
      break;
    }
    case Act::kDisable:
      if (!memory_.off && !p.disable.empty()) {
        put("disable", "disable " + state_.value("epoch") + " " + std::to_string(now()), Json::object());
        memory_.off = true;
      }
      break;
    case Act::kEnable:
      if (memory_.off && !p.enable.empty()) put("enable", key, Json::object());
      memory_.off = false;
      break;
    case Act::kRestart:
      start_anew(state_, facts_.package.digest, name(event), now());
      break;
  }
}

// ---- what was seen
// ------------------------------------------------------------------------------------------------------

void Follow::package_seen(bool is_new) {
  inside_ = true;  // the look's transaction, until looked()
  if (options_.acknowledge) apply(Event::kAcknowledged, "acknowledged by the operator", Json::object());
  if (!is_new) return;
  if (memory_.expected != facts_.package.digest)
    apply(Event::kNewPackage, options_.package + " names " + facts_.package.digest.substr(0, 12),
          {{"package", facts_.package.digest}});
  memory_.expected.clear();
}

void Follow::nothing_seen() {
  state_.set_value("machine", to_json(memory_).dump());
  inside_ = false;
}

void Follow::looked(const std::string& verdict, const std::string& reason, const Json& evidence, int64_t records,
                    double speedup_now) {
  memory_.records += records;
  speedup_now_ = speedup_now;
  if (!options_.policy.alert.empty()) {
    const std::string& file = options_.policy.alert;
    std::string text(size_t{1} << 20, '\0');
    if (file == "-") text.resize(read_stream(0, std::span(text.data(), text.size()), "standard input"));
    take_alert(file == "-" ? text : read_file(file, 1u << 20), file == "-" ? "standard input" : file, memory_.alerts);
  }
  MachineInput input{verdict, facts_.package.digest, facts_.target.id, false};
  if (!memory_.former.empty() && !options_.policy.candidate.empty()) {
    const auto former = locate_package(channel_of(options_.package, "--package").store + ":sha256-" + memory_.former);
    input.former_fits = former && facts_.misfit(former->manifest.target).empty();
  }
  if (const std::optional<Event> event = event_of(memory_, input, now())) {
    const std::string* alert = firing(memory_.alerts);
    const bool from_outside = event == Event::kAlarm && verdict != "drift" && alert;
    apply(*event, from_outside ? "Alertmanager: " + *alert : reason, evidence);
  }
  nothing_seen();
}

std::optional<ResolvedPackage> Follow::untried() {
  const std::string& argument = options_.policy.candidate;
  const Channel at = channel_of(argument, "--candidate");
  std::optional<ResolvedPackage> found;
  if (fs::is_directory(at.store) && !read_channel(at.store, at.name).empty()) found = locate_package(argument);
  if (!found || found->digest == facts_.package.digest || found->digest == memory_.promoted ||
      memory_.rejected.contains(found->digest))
    return std::nullopt;
  const std::string who = argument + " (" + found->digest.substr(0, 12) + ")";
  if (const std::string tiers = facts_.misfit(found->manifest.target); !tiers.empty()) {
    wait(who + " is bound to another target than the one served (" + tiers + " differ)");
    return std::nullopt;
  }
  const std::string verdict = json_string(found->manifest.report, "verdict", who, ErrorKind::kData);
  if (verdict != "pass" && !options_.policy.allow_failed) {
    wait(who + " did not pass its gate (" + verdict + "): --allow-failed tries it nevertheless");
    return std::nullopt;
  }
  return found;
}

// True if a transition followed.
bool Follow::ask_candidate() {
  if (options_.policy.candidate.empty()) return false;
  const bool trying = memory_.stage == Stage::kCandidate || memory_.stage == Stage::kCanary;
  const size_t before = transitions_.size();
  found_ = untried();
  if (found_ && found_->digest != memory_.candidate)
    apply(Event::kCandidate, options_.policy.candidate + " names " + found_->digest.substr(0, 12),
          {{"candidate", found_->digest}, {"report", found_->manifest.report.value("verdict", "")}});
  else if (!found_ && trying)
    apply(Event::kWithdrawn, options_.policy.candidate + " no longer names " + memory_.candidate.substr(0, 12),
          {{"candidate", memory_.candidate}});
  return transitions_.size() > before;
}

bool Follow::ask_canary() {
  if (memory_.stage == Stage::kCandidate && options_.policy.admin.empty())
    wait("no canary: no --admin is given; put the candidate into the channel by hand (specdec package promote)");
  if (memory_.stage != Stage::kCanary || asked_canary_) return false;
  asked_canary_ = true;
  const size_t before = transitions_.size();
  try {
    Admin admin(options_.policy.admin, options_.policy.admin_key);
    const Admin::Reply reply = admin.drafts();
    if (reply.status != 200) throw Error(ErrorKind::kNetwork, reply.problem);
    const auto package =
        locate_package(channel_of(options_.policy.candidate, "--candidate").store + ":sha256-" + memory_.candidate);
    const std::string id = package ? package->manifest.draft.id : "";
    const auto named = [&](const char* which) {
      return reply.body.contains(which) && reply.body[which].is_object() && reply.body[which].value("id", "") == id;
    };
    const Json paired = reply.body.value("paired", Json());
    const Trial trial =
        judge_trial(paired, options_.policy.margin,
                    package ? validation_report_from_json(package->manifest.report, package->root.string()).floor : 0);
    if (named("candidate") && trial.decision == "better")
      apply(Event::kBetter, trial.text, {{"paired", paired}});
    else if (named("candidate") && trial.decision == "worse")
      apply(Event::kWorse, trial.text, {{"paired", paired}});
    else if (named("candidate") && static_cast<double>(now() - memory_.since) > options_.policy.canary_days * 86400)
      apply(Event::kExpired, "undecided for too long: " + trial.text, {{"paired", paired}});
    else if (named("candidate"))
      wait("canary: " + trial.text);
    else if (named("serving"))
      apply(Event::kBetter, "the server serves it already", {{"status", reply.body}});
    else
      apply(Event::kGone, "the server knows nothing of the trial any more", {{"status", reply.body}});
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kNetwork) throw;
    wait(std::string("canary: ") + e.what());
  }
  return transitions_.size() > before;
}

bool Follow::ask() {
  if (ask_candidate() || ask_canary()) return true;
  const size_t before = transitions_.size();
  const bool stale = memory_.stage == Stage::kStaleTarget;
  if (memory_.stage == Stage::kSuspect && options_.policy.alarm_confirms) {
    apply(Event::kConfirmed, "the alarm is taken for it (--confirm alarm)", Json::object());
  } else if (memory_.stage == Stage::kSuspect && probe_command(memory_.stage == Stage::kDisabled).empty()) {
    wait("the alarm is not confirmed: --canary, --probe or --confirm alarm says how");
  } else if (memory_.stage == Stage::kConfirmed || stale || memory_.stage == Stage::kDisabled) {
    const std::string refused =
        refusal(options_, state_, memory_, facts_.report, {facts_.target.id, stale, speedup_now_}, now());
    if (refused.empty())
      apply(Event::kGo, "nothing stands against redistilling",
            {{"target", facts_.target.id},
             {"draft", facts_.package.manifest.draft.id},
             {"epoch", state_.value("epoch")},
             {"records", memory_.records}});
    else
      wait("no redistillation: " + refused);
  } else if (memory_.stage == Stage::kRedistilling) {
    const std::optional<ActionEntry> action = state_.action(memory_.key);
    const double hours = static_cast<double>(now() - memory_.since) / 3600;
    if (action && action->ended && hours > std::max(24.0, options_.policy.cooldown_hours))
      apply(Event::kFailed, "no new package for " + std::to_string(static_cast<int>(hours)) + " h", Json::object());
    else if (action && action->ended)
      wait("the Job was written; its package is not there yet");
  }
  return transitions_.size() > before;
}

bool Follow::settle() {
  forget_recorded();
  for (int round = 0; round < kRounds && (run_pending() || ask_canary()); ++round) {
  }
  return moved_;
}

void Follow::work() {
  for (int round = 0; round < kRounds && (run_pending() || ask()); ++round) {
  }
}

void Follow::tell_alertmanager() {
  if (options_.policy.alertmanager.empty() || is_calm(memory_.stage)) return;
  const Posted posted = post_json(
      alerts_url(options_.policy.alertmanager),
      alert_json(options_.package, name(memory_.stage), memory_.reason, memory_.since, now() + kAlertHolds).dump(), "",
      "");
  actions_.push_back({{"kind", "alert"}, {"ended", posted.ok}, {"code", posted.status}, {"outcome", posted.text}});
}

}  // namespace specdec::monitor
