// The doing of what Follow has written down: one attempt an action and check, its end committed together with what
// follows from it.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "monitor/admin.h"
#include "monitor/child.h"
#include "monitor/follow.h"
#include "monitor/notify.h"

namespace specdec::monitor {

namespace {

constexpr int64_t kMaxAttempts = 20;   // of what does not come to its end, before it is given up
constexpr int64_t kEnoughPaired = 30;  // requests of a paired probe
constexpr const char* kNotGiven = "its command or URL is not given any more";

bool is_post(const std::string& kind) { return kind == "webhook" || kind == "alert"; }
// Stopped by a signal or by something that may pass, a failing or full disk among it: again at the next check, but not
// for ever. Such an end says nothing about the package, which would be rejected otherwise, nor about the draft.
bool is_temporary(int code, const ActionEntry& action) {
  return (code == 74 || code == 75 || code > 128) && action.attempts < kMaxAttempts;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "";
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

}  // namespace

fs::path Follow::outcome_of(const ActionEntry& action) const {
  return options_.state.string() + ".actions/" + sha256_hex(action.key).substr(0, 24) + "-" +
         std::to_string(action.attempts);
}

// Ends of children that are on record already: their check was killed before it could remove them.
void Follow::forget_recorded() const {
  std::set<std::string> wanted;
  for (const ActionEntry& a : state_.pending_actions())
    if (a.started) wanted.insert(outcome_of(a).filename().string());
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(options_.state.string() + ".actions", none))
    if (const fs::path& file = entry.path();
        (file.extension() == ".code" || file.extension() == ".out") && !wanted.contains(file.stem().string()))
      forget_outcome(file.parent_path() / file.stem());
}

// Commands are those of this check's options: they may hold secrets, which are not written down.
std::vector<std::string> Follow::argv_of(const ActionEntry& action) const {
  const Policy& p = options_.policy;
  const auto given = [](const std::string& command) {
    return command.empty() ? std::vector<std::string>() : shell(command);
  };
  if (action.kind == "command") return given(options_.on_drift);
  if (action.kind == "disable") return given(p.disable);
  if (action.kind == "enable") return given(p.enable);
  if (action.kind == "probe") return probe_command(action.payload.value("off", false));
  if (action.kind == "redistil") return redistil_command();
  return action.payload.at("argv").get<std::vector<std::string>>();
}

int Follow::child(const ActionEntry& action, std::string* output) {
  ChildOrder order;
  order.argv = argv_of(action);
  order.environment = {{"SPECDEC_ALARM_KEY", action.key}};
  if (!action.payload.contains("environment"))
    order.environment.emplace_back("SPECDEC_ALARM_REASON", memory_.reason);
  else
    for (const auto& [key, value] : action.payload["environment"].items())
      order.environment.emplace_back(key, value.get<std::string>());
  order.outcome = outcome_of(action);
  order.capture = output != nullptr;
  order.lock = lock_;
  const ChildEnd end = run_child(order);
  if (output) *output = end.output;
  return end.code;
}

// An attempt counts when it begins; a killed one is taken up under its own number, where its child may have left its
// end.
bool Follow::run_pending() {
  bool followed = false, blocked = false;
  for (const ActionEntry& row : state_.pending_actions()) {
    if (row.kind == "command" || (blocked && !is_post(row.kind))) continue;
    // for a target that is gone: the look says so
    if (row.kind == "redistil" && !same_target(row.payload.value("target", ""), facts_.target.id)) continue;
    if (tried_.contains(row.id)) {
      blocked |= !is_post(row.kind);
      continue;
    }
    tried_.insert(row.id);
    ActionEntry action = row;
    if (!action.started) {
      state_.start_action(action.id, now());
      ++action.attempts;
    }
    Done done;
    try {
      done = run(action);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kNetwork) throw;
      done = {.ended = false, .code = 75, .text = e.what(), .event = {}, .reason = "", .evidence = {}};
    }
    const size_t before = transitions_.size();
    in_transaction([&] {
      state_.record_attempt(action.id, done.code, done.text);
      if (done.ended) state_.end_action(action.id, now());
      if (done.event)
        apply(*done.event, done.reason.empty() ? done.text : done.reason,
              done.evidence.is_null() ? Json::object() : done.evidence);
    });
    forget_outcome(outcome_of(action));
    actions_.push_back({{"kind", action.kind},
                        {"key", action.key.substr(0, 16)},
                        {"attempts", action.attempts},
                        {"ended", done.ended},
                        {"code", done.code},
                        {"outcome", done.text}});
    if (!done.ended) wait(action.kind + ": " + done.text);
    blocked |= !done.ended && !is_post(action.kind);
    followed |= transitions_.size() > before;
    if (followed) break;  // what is pending may have changed
  }
  return followed;
}

Follow::Done Follow::run(const ActionEntry& action) {
  if (action.kind == "probe") return run_probe(action);
  if (action.kind == "redistil") return run_redistil(action);
  if (action.kind == "load") return run_load(action);
  if (action.kind == "promote" || action.kind == "drop" || action.kind == "roll_back") return run_moves(action);
  if (is_post(action.kind)) return run_post(action);
  if (argv_of(action).empty())
    return {.ended = true, .code = 0, .text = kNotGiven, .event = {}, .reason = "", .evidence = {}};
  const int code = child(action);  // disable, enable
  return {.ended = code == 0,
          .code = code,
          .text = "exit " + std::to_string(code),
          .event = {},
          .reason = "",
          .evidence = {}};
}

// A drop that is smaller than --min-loss for sure refutes the alarm; one that is surely a drop and may be larger
// confirms it.
Follow::Done Follow::run_probe(const ActionEntry& action) {
  if (argv_of(action).empty())
    return {.ended = true, .code = 0, .text = kNotGiven, .event = {}, .reason = "", .evidence = {}};
  make_private_directory(options_.state.string() + ".actions");
  write_file_atomic(options_.state.string() + ".actions/baseline.json", facts_.package.manifest.report.dump());
  std::string output;
  Done done;
  done.code = child(action, &output);
  done.text = "exit " + std::to_string(done.code);
  if (is_temporary(done.code, action)) {
    done.ended = false;
    return done;
  }
  const std::string where = "the probe's result";
  try {
    const Json result =
        parse_json(last_line(output), where, ErrorKind::kData, {.max_bytes = 16u << 20, .max_depth = 32});
    if (action.payload.value("off", false)) {
      const Json& measured = json_object(json_object(result, "speed", 64, where, ErrorKind::kData), "measured", 16,
                                         where, ErrorKind::kData);
      const double low = json_array(measured, "ci", 2, where, ErrorKind::kData).at(0).get<double>();
      done.text = "speed-up at least " + Json(low).dump();
      if (low > 1) done.event = Event::kWorth;
      done.evidence = {{"speed", measured}, {"seed", 0}};
      return done;
    }
    const Json& paired = json_object(result, "baseline", 16, where, ErrorKind::kData);
    const Json& ci = json_array(paired, "ci", 2, where, ErrorKind::kData);
    const double low = ci.at(0).get<double>(), high = ci.at(1).get<double>();
    const int64_t n = json_int(paired, "paired_requests", 0, kMaxCount, where, ErrorKind::kData);
    char text[200];
    std::snprintf(
        text, sizeof text, "acceptance on the canary set changed by %+.3f [%+.3f, %+.3f] over %lld paired requests",
        json_double(paired, "alpha_difference", -1, 1, where, ErrorKind::kData), low, high, static_cast<long long>(n));
    done.text = text;
    done.evidence = {{"baseline", paired}, {"seed", 0}};
    if (n >= kEnoughPaired && low > -options_.policy.min_loss)
      done.event = Event::kRefuted;
    else if (n >= kEnoughPaired && high < 0)
      done.event = Event::kConfirmed;
    else
      wait("the probe decides nothing: " + done.text);
  } catch (const std::exception& e) {  // also what nlohmann throws for other types
    done.text += std::string(", and its result cannot be used: ") + e.what();
    wait("probe: " + done.text);
  }
  return done;
}

Follow::Done Follow::run_redistil(const ActionEntry& action) {
  const Json& payload = action.payload;
  Done done;
  if (payload.contains("job")) {
    write_file_atomic(payload["job"].get<std::string>(), payload["manifest"].get<std::string>());
    done.text = "wrote " + payload["job"].get<std::string>();
  }
  if (argv_of(action).empty()) {
    if (!payload.contains("job")) done.event = Event::kFailed, done.text = kNotGiven;
    return done;
  }
  done.code = child(action);
  done.text += (done.text.empty() ? "exit " : ", exit ") + std::to_string(done.code);
  if (is_temporary(done.code, action)) {
    done.ended = false;
    return done;
  }
  if (done.code != 0) {
    done.event = Event::kFailed;
    done.reason = "the redistillation ended with exit code " + std::to_string(done.code);
    return done;
  }
  found_ = options_.policy.candidate.empty() ? std::nullopt : untried();
  const auto package = locate_package(options_.package);
  if (found_) {
    done.event = Event::kCandidate;
    done.reason = options_.policy.candidate + " names " + found_->digest.substr(0, 12);
    done.evidence = {{"candidate", found_->digest}};
  } else if (package && package->digest != facts_.package.digest) {
    done.event = Event::kNewPackage;
    done.reason = options_.package + " names " + package->digest.substr(0, 12);
  } else if (!payload.contains("job")) {
    done.event = Event::kFailed;
    done.reason = "the redistillation ended well, but no new package is in the channel";
  }
  return done;
}

Follow::Done Follow::run_load(const ActionEntry& action) {
  const Json& p = action.payload;
  const std::string id = p.value("id", "");
  if (id.empty())
    return {.ended = true,
            .code = 7,
            .text = "the candidate's package is gone",
            .event = Event::kRefused,
            .reason = "",
            .evidence = {}};
  Admin admin(options_.policy.admin, options_.policy.admin_key);
  const Admin::Reply now_there = admin.drafts();
  if (now_there.status != 200)
    return {
        .ended = false, .code = now_there.status, .text = now_there.problem, .event = {}, .reason = "", .evidence = {}};
  const auto id_of = [&](const char* which) {
    return now_there.body.contains(which) && now_there.body[which].is_object() ? now_there.body[which].value("id", "")
                                                                               : std::string();
  };
  if (id_of("candidate") == id)
    return {.ended = true, .code = 200, .text = "on trial", .event = Event::kOnTrial, .reason = "", .evidence = {}};
  if (id_of("serving") == id)
    return {.ended = true,
            .code = 200,
            .text = "the server serves it already",
            .event = Event::kBetter,
            .reason = "",
            .evidence = {}};
  if (!id_of("candidate").empty() || now_there.body.value("state", "") == "loading")
    return {.ended = false,
            .code = 409,
            .text = "another draft is on trial at the server: wait for it, or drop it",
            .event = {},
            .reason = "",
            .evidence = {}};
  const Admin::Reply reply = admin.order({{"action", "load"},
                                          {"draft", p.at("draft")},
                                          {"score", options_.policy.score},
                                          {"serve", options_.policy.serve}});
  if (reply.status == 200)
    return {.ended = true,
            .code = 200,
            .text = "on trial",
            .event = Event::kOnTrial,
            .reason = "",
            .evidence = {{"candidate", p.at("digest")}}};
  const bool refused = reply.status == 400 || reply.status == 409;
  return {.ended = refused,
          .code = reply.status,
          .text = reply.problem,
          .event = refused ? std::optional(Event::kRefused) : std::nullopt,
          .reason = "",
          .evidence = {}};
}

// Channels are moved by `specdec package`, and only from where they were: what is done already is not done again. Then
// the server, if there is one.
Follow::Done Follow::run_moves(const ActionEntry& action) {
  const Json& p = action.payload;
  const std::string store = p.at("store"), channel = p.at("channel"), digest = p.at("digest"), why = p.at("why");
  const std::string at = action.kind == "drop" ? p.at("candidates").get<std::string>() : channel;
  const bool moves = action.kind == "promote" ? read_channel(store, at) != digest
                                              : (action.kind == "roll_back" || p.value("roll_back", false)) &&
                                                    read_channel(store, at) == digest;
  Done done;
  if (moves) {
    ActionEntry move = action;
    move.payload["argv"] =
        action.kind == "promote"
            ? Json{options_.program, "-q", "package", "promote", "sha256-" + digest, "--store", store,
                   "--channel",      at,   "--why",   why}
            : Json{options_.program, "-q", "package", "rollback", "--store", store, "--channel", at, "--why", why};
    done.code = child(move);
    done.text = "channel " + at + ": exit " + std::to_string(done.code);
    if (is_temporary(done.code, action))
      return {.ended = false, .code = done.code, .text = done.text, .event = {}, .reason = "", .evidence = {}};
    if (done.code != 0 && action.kind != "drop") {  // not possible: a package is damaged or gone
      memory_.expected.clear();
      if (action.kind == "promote") memory_.rejected.insert(digest);
      return done;
    }
    moved_ |= at == channel;
  }
  const std::string id = p.value("id", "");
  if (options_.policy.admin.empty() || id.empty()) return done;
  Admin admin(options_.policy.admin, options_.policy.admin_key);
  const std::string problem = action.kind == "drop" ? admin.drop(id) : admin.serve(p.at("draft"), id);
  done.ended = problem.empty();
  done.text += (done.text.empty() ? "server: " : ", server: ") + (problem.empty() ? "done" : problem);
  if (!problem.empty()) done.code = 75;
  return done;
}

Follow::Done Follow::run_post(const ActionEntry& action) {
  const Policy& p = options_.policy;
  const std::vector<std::string> names = names_of(p.webhooks);
  const auto at =
      static_cast<size_t>(std::find(names.begin(), names.end(), action.payload.value("to", "")) - names.begin());
  const bool webhook = action.kind == "webhook";
  if (webhook ? at == names.size() : p.alertmanager.empty())
    return {.ended = true, .code = 0, .text = kNotGiven, .event = {}, .reason = "", .evidence = {}};
  const Posted posted = post_json(webhook ? p.webhooks[at] : alerts_url(p.alertmanager),
                                  action.payload.at("body").dump(), action.key, webhook ? p.webhook_secret : Secret());
  Done done{.ended = posted.ok, .code = posted.status, .text = posted.text, .event = {}, .reason = "", .evidence = {}};
  if (!posted.ok && action.attempts >= kMaxAttempts) {
    done.ended = true;
    done.text += ": given up after " + std::to_string(kMaxAttempts) + " checks";
  }
  return done;
}

void Follow::alarmed(const std::string& alarm_key, const Json& environment) {
  ActionEntry entry;
  entry.key = "trigger " + alarm_key;
  entry.kind = "command";
  entry.payload = {{"environment", environment}};
  entry.created = now();
  state_.add_action(entry);
}

Json Follow::on_drift(const std::string& alarm_key) {
  const std::string current = alarm_key.empty() ? "" : "trigger " + alarm_key;
  Json trigger;
  if (const auto known = state_.action(current); known && known->ended) trigger = {{"ran", false}, {"before", true}};
  for (ActionEntry& action : state_.pending_actions()) {
    if (action.kind != "command") continue;
    // it was told, and the alarm is over; or nobody is to be told
    if ((action.key != current && action.code) || options_.on_drift.empty()) {
      state_.end_action(action.id, now());
      continue;
    }
    if (!action.started) {
      state_.start_action(action.id, now());
      ++action.attempts;
    }
    const int code = child(action);
    const std::string text = "--on-drift: exit " + std::to_string(code);
    in_transaction([&] {
      state_.record_attempt(action.id, code, text);
      if (code == 0) state_.end_action(action.id, now());
      state_.append(HistoryEntry{0,
                                 now(),
                                 "trigger",
                                 facts_.package.digest,
                                 {{"exit_code", code}, {"verdict", state_.value("verdict")}, {"reason", text}}});
    });
    forget_outcome(outcome_of(action));
    if (action.key == current) trigger = {{"ran", true}, {"exit_code", code}};
  }
  return trigger;
}

}  // namespace specdec::monitor
