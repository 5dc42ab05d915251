#include "monitor/loop_driver.h"

#include <span>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "monitor/actions/channel.h"
#include "monitor/actions/notify.h"

namespace specdec::monitor {

namespace {

constexpr int kRounds = 32;  // bound against an endless loop of actions and events; no check needs more

MachineContext machine_context(const LoopContext& context, const State& state) {
  const Policy& p = context.options.policy;
  return {.now = context.now,
          .package = context.facts.package.digest,
          .draft = context.facts.package.manifest.draft.id,
          .target = context.facts.target.id,
          .epoch = state.value("epoch"),
          .redistillations = static_cast<int64_t>(state.actions_of("redistil", 0).size()),
          .bake_hours = p.bake_hours,
          .can_disable = !p.disable.empty(),
          .can_enable = !p.enable.empty()};
}

// Ends the pending actions that only the previous state needed.
void supersede(State& state, Event by, int64_t now) {
  for (const ActionEntry& action : state.pending_actions())
    if (action.kind == "probe" || action.kind == "redistil" || action.kind == "load") {
      state.record_attempt(action.id, action.code.value_or(-1), "superseded: " + std::string(name(by)));
      state.end_action(action.id, now);
    }
}

bool is_former_fit(const LoopContext& context) {
  const std::string& former = context.memory.former;
  if (former.empty() || context.options.policy.candidate.empty()) return false;
  const auto package = package_in(channel_of(context.options.package, "--package").store, former);
  return package && context.facts.misfit(package->manifest.target).empty();
}

}  // namespace

LoopDriver::LoopDriver(const CheckOptions& options, const Clock& clock, State& state, int lock)
    : options_(options), clock_(clock), state_(state), children_(options, lock) {
  const std::string where = options.state.string() + ": machine";
  if (const std::string old = state.value("machine"); !old.empty())
    memory_ = memory_from_json(parse_json(old, where), where);
  disbelieve_future(memory_, now(), options.policy.bake_hours);
  if (!options.policy.candidate.empty()) {
    channel_of(options.policy.candidate, "--candidate");
    channel_of(options.package, "--package, beside --candidate");
  }
}

void LoopDriver::wait(const std::string& reason) {
  if (!reason.empty()) waiting_.insert(reason);
}

void LoopDriver::write_memory(Transaction& transaction) const {
  transaction.state().set_value("machine", to_json(memory_).dump());
}

// Applies the event in an answer, if there is one. Returns whether a transition was made.
bool LoopDriver::follow(const Facts& facts, const Answer& answer) {
  wait(answer.waiting);
  if (!answer.occurrence) return false;
  const size_t before = transitions_.size();
  Transaction transaction(state_);
  apply(transaction, facts, *answer.occurrence);
  transaction.commit();
  return transitions_.size() > before;
}

void LoopDriver::apply(Transaction& transaction, const Facts& facts, const Occurrence& occurrence) {
  const auto transition = advance(memory_, occurrence, machine_context(context(facts), state_));
  if (!transition) return;
  memory_ = transition->memory;
  const int64_t id = transition->is_new_stage ? record(transaction, facts, transition->from, occurrence) : 0;
  ActionWriter writer(transaction, context(facts), id);
  write_down_all(transition->actions, writer);
  if (occurrence.event == Event::kOnTrial) asked_canary_ = true;  // the next check is the first that asks for scores
  write_memory(transaction);
}

// Records a transition to a new stage and posts it to the webhooks. Returns its id.
int64_t LoopDriver::record(Transaction& transaction, const Facts& facts, Stage old_stage,
                           const Occurrence& occurrence) {
  const std::string from = name(old_stage), to = name(memory_.stage), event = name(occurrence.event);
  const std::string& reason = occurrence.reason;
  const int64_t time = now();
  supersede(transaction.state(), occurrence.event, time);
  const int64_t id = transaction.state().append(TransitionEntry{0, time, from, to, event, reason, occurrence.evidence});
  transitions_.push_back({from, to, event, reason});
  ActionWriter writer(transaction, context(facts), id);
  write_down_webhooks({{"schema", "specdec.monitor_event/1"},
                       {"id", id},
                       {"time", format_utc(time)},
                       {"from", from},
                       {"to", to},
                       {"event", event},
                       {"reason", reason},
                       {"package", options_.package},
                       {"evidence", occurrence.evidence}},
                      writer);
  if (is_calm(memory_.stage) && !is_calm(old_stage)) write_down_all_clear(writer);
  return id;
}

void LoopDriver::package_seen(Transaction& transaction, const Facts& facts, bool is_new) {
  const std::string& digest = facts.package.digest;
  if (options_.acknowledge) apply(transaction, facts, {Event::kAcknowledged, "acknowledged by the operator"});
  if (is_new && memory_.expected != digest)
    apply(transaction, facts,
          {Event::kNewPackage, options_.package + " names " + digest.substr(0, 12), {{"package", digest}}});
  if (is_new) memory_.expected.clear();
  write_memory(transaction);
}

void LoopDriver::take_alerts() {
  const std::string& file = options_.policy.alert;
  if (file.empty()) return;
  const bool is_stream = file == "-";
  std::string text = is_stream ? std::string(size_t{1} << 20, '\0') : read_file(file, 1u << 20);
  if (is_stream) text.resize(read_stream(0, std::span(text.data(), text.size()), "standard input"));
  take_alert(text, is_stream ? "standard input" : file, memory_.alerts);
}

void LoopDriver::observed(Transaction& transaction, const Facts& facts, const ObservedVerdict& observed) {
  memory_.records += observed.records;
  take_alerts();
  const MachineInput input{.verdict = observed.verdict,
                           .package = facts.package.digest,
                           .target = facts.target.id,
                           .former_fits = is_former_fit(context(facts))};
  if (const std::optional<Event> event = event_of(memory_, input, now())) {
    const std::string* alert = firing(memory_.alerts);
    const bool from_outside = event == Event::kAlarm && observed.verdict != Verdict::kDrift && alert;
    apply(transaction, facts, {*event, from_outside ? "Alertmanager: " + *alert : observed.reason, observed.evidence});
  }
  write_memory(transaction);
}

// Makes one attempt at each action that may run now, oldest first. An action that has not ended blocks all later
// actions except posts. Returns whether a transition was made, because the transition may have added pending actions.
bool LoopDriver::run_pending(const Facts& facts) {
  bool is_blocked = false;
  for (const ActionEntry& action : state_.pending_actions()) {
    if (action.kind == kOnDrift || (is_blocked && !is_post(action.kind))) continue;
    // Skips a redistillation for a target that is not served any more. The transition for this check's verdict will end
    // it.
    if (action.kind == "redistil" && !same_target(action.payload.value("target", ""), facts.target.id)) continue;
    const size_t before = transitions_.size();
    const bool has_ended = attempted_.insert(action.id).second && attempt(action, facts);
    if (transitions_.size() > before) return true;
    is_blocked |= !has_ended && !is_post(action.kind);
  }
  return false;
}

// Makes one attempt at an action. The attempt is counted when it begins. If the check is killed, the next check
// continues the attempt under the same number, because the child may have written its exit code to the file with that
// number. Returns whether the action has ended.
bool LoopDriver::attempt(ActionEntry action, const Facts& facts) {
  if (!action.started) {
    state_.start_action(action.id, now());
    ++action.attempts;
  }
  ActionOutcome outcome;
  try {
    outcome = run_action(action, {context(facts), children_});
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kNetwork) throw;
    outcome = {.ended = false, .code = 75, .text = e.what()};
  }
  moved_channel_ |= outcome.moved_channel;
  wait(outcome.waiting);
  Transaction transaction(state_);
  state_.record_attempt(action.id, outcome.code, outcome.text);
  if (outcome.ended) state_.end_action(action.id, now());
  if (outcome.is_impossible) give_up_move(memory_, outcome.rejected);
  if (outcome.occurrence) apply(transaction, facts, *outcome.occurrence);
  write_memory(transaction);
  transaction.commit();
  children_.forget(action);
  actions_.push_back({{"kind", action.kind},
                      {"key", action.key.substr(0, 16)},
                      {"attempts", action.attempts},
                      {"ended", outcome.ended},
                      {"code", outcome.code},
                      {"outcome", outcome.text}});
  if (!outcome.ended) wait(action.kind + ": " + outcome.text);
  return outcome.ended;
}

bool LoopDriver::ask_for_scores(const Facts& facts) {
  if (memory_.stage == Stage::kCanary && std::exchange(asked_canary_, true)) return false;
  return follow(facts, ask_canary(context(facts)));
}

bool LoopDriver::ask(const Facts& facts, double speedup_now) {
  return follow(facts, ask_candidate(context(facts))) || ask_for_scores(facts) ||
         follow(facts, ask_next_step(context(facts), state_, speedup_now));
}

bool LoopDriver::settle(const Facts& facts) {
  children_.forget_recorded(state_);
  for (int round = 0; round < kRounds && (run_pending(facts) || ask_for_scores(facts)); ++round) {
  }
  return moved_channel_;
}

void LoopDriver::work(const Facts& facts, double speedup_now) {
  for (int round = 0; round < kRounds && (run_pending(facts) || ask(facts, speedup_now)); ++round) {
  }
}

Json LoopDriver::on_drift(const Facts& facts, const std::string& alarm_key) {
  return run_on_drift(state_, alarm_key, {context(facts), children_}, clock_);
}

void LoopDriver::tell_alertmanager(const Facts& facts) {
  if (!options_.policy.alertmanager.empty() && !is_calm(memory_.stage)) actions_.push_back(renew_alert(context(facts)));
}

}  // namespace specdec::monitor
