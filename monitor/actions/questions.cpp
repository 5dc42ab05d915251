#include "monitor/actions/questions.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/verdict.h"
#include "monitor/actions/actions.h"
#include "monitor/actions/admin.h"
#include "monitor/actions/channel.h"
#include "monitor/machine/guards.h"

namespace specdec::monitor {

namespace {

std::string short_digest(const std::string& digest) { return digest.substr(0, 12); }

// Interprets the server's status while the candidate is on trial.
Answer answer_of(const LoopContext& context, const ResolvedPackage* package, const Json& status) {
  const Policy& p = context.options.policy;
  const std::string id = package ? package->manifest.draft.id : "";
  const auto named = [&](const char* which) { return !id.empty() && draft_id_of(status, which) == id; };
  const Json paired = status.value("paired", Json());
  const double floor =
      package ? validation_report_from_json(package->manifest.report, package->root.string()).floor : 0;
  const Trial trial = judge_trial(paired, p.margin, floor);
  if (!named("candidate")) {
    if (named("serving"))
      return {.occurrence = Occurrence{Event::kBetter, "the server serves it already", {{"status", status}}}};
    return {.occurrence = Occurrence{Event::kGone, "the server no longer has the trial", {{"status", status}}}};
  }
  const Json evidence = {{"paired", paired}};
  if (trial.decision == "better") return {.occurrence = Occurrence{Event::kBetter, trial.text, evidence}};
  if (trial.decision == "worse") return {.occurrence = Occurrence{Event::kWorse, trial.text, evidence}};
  if (static_cast<double>(context.now - context.memory.since) > p.canary_days * 86400)
    return {.occurrence = Occurrence{Event::kExpired, "undecided for too long: " + trial.text, evidence}};
  return {.waiting = "canary: " + trial.text};
}

Answer ask_for_redistillation(const LoopContext& context, const State& state, double speedup_now) {
  const Memory& memory = context.memory;
  const Facts& facts = context.facts;
  const std::string refused =
      refusal(context, state,
              {.target = facts.target.id, .stale = memory.stage == Stage::kStaleTarget, .speedup_now = speedup_now});
  if (!refused.empty()) return {.waiting = "no redistillation: " + refused};
  return {.occurrence = Occurrence{Event::kGo,
                                   "no guard forbids a redistillation",
                                   {{"target", facts.target.id},
                                    {"draft", facts.package.manifest.draft.id},
                                    {"epoch", state.value("epoch")},
                                    {"records", memory.records}}}};
}

// Looks for the package of a redistillation that has ended. The package may arrive later, because a Kubernetes Job
// makes it elsewhere.
Answer ask_for_its_package(const LoopContext& context, const State& state) {
  const std::optional<ActionEntry> action = state.action(context.memory.key);
  if (!action || !action->ended) return {};
  const double hours = static_cast<double>(context.now - context.memory.since) / 3600;
  if (hours <= std::max(24.0, context.options.policy.cooldown_hours))
    return {.waiting = "the Job was written; its package has not arrived yet"};
  return {.occurrence =
              Occurrence{Event::kFailed, "no new package for " + std::to_string(static_cast<int>(hours)) + " h"}};
}

}  // namespace

Untried untried_candidate(const LoopContext& context) {
  const std::string& argument = context.options.policy.candidate;
  const Channel at = channel_of(argument, "--candidate");
  std::optional<ResolvedPackage> found;
  if (fs::is_directory(at.store) && !read_channel(at.store, at.name).empty()) found = locate_package(argument);
  if (!found || found->digest == context.facts.package.digest || found->digest == context.memory.promoted ||
      context.memory.rejected.contains(found->digest))
    return {};
  const std::string who = argument + " (" + short_digest(found->digest) + ")";
  if (const std::string tiers = context.facts.misfit(found->manifest.target); !tiers.empty())
    return {.waiting = who + " is bound to another target than the one served (" + tiers + " differ)"};
  const std::string verdict = json_string(found->manifest.report, "verdict", who, ErrorKind::kData);
  if (verdict_named(verdict) != Verdict::kPass && !context.options.policy.allow_failed)
    return {.waiting = who + " did not pass its gate (" + verdict + "): --allow-failed tries it nevertheless"};
  return {.package = std::move(found)};
}

Occurrence candidate_occurrence(const LoopContext& context, const ResolvedPackage& package, Json evidence) {
  const double acceptance =
      validation_report_from_json(package.manifest.report, package.root.string()).rollout.alpha.value;
  return {.event = Event::kCandidate,
          .reason = context.options.policy.candidate + " names " + short_digest(package.digest),
          .evidence = std::move(evidence),
          .candidate = package.digest,
          .regained = acceptance - context.facts.report.rollout.alpha.value};
}

Answer ask_candidate(const LoopContext& context) {
  const Memory& memory = context.memory;
  const std::string& channel = context.options.policy.candidate;
  if (channel.empty()) return {};
  const Untried untried = untried_candidate(context);
  if (untried.package) {
    const ResolvedPackage& package = *untried.package;
    if (package.digest == memory.candidate) return {};
    return {.occurrence = candidate_occurrence(
                context, package,
                {{"candidate", package.digest}, {"report", package.manifest.report.value("verdict", "")}})};
  }
  if (memory.stage != Stage::kCandidate && memory.stage != Stage::kCanary) return {.waiting = untried.waiting};
  return {.occurrence = Occurrence{Event::kWithdrawn,
                                   channel + " no longer names " + short_digest(memory.candidate),
                                   {{"candidate", memory.candidate}}},
          .waiting = untried.waiting};
}

Answer ask_canary(const LoopContext& context) {
  const Policy& p = context.options.policy;
  if (context.memory.stage == Stage::kCandidate && p.admin.empty())
    return {.waiting =
                "no canary: no --admin is given; put the candidate into the channel by hand (specdec package promote)"};
  if (context.memory.stage != Stage::kCanary) return {};
  try {
    Admin admin(p.admin, p.admin_key);
    const Admin::Reply reply = admin.drafts();
    if (reply.status != 200) throw Error(ErrorKind::kNetwork, reply.problem);
    const auto package = package_in(channel_of(p.candidate, "--candidate").store, context.memory.candidate);
    return answer_of(context, package ? &*package : nullptr, reply.body);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kNetwork) throw;
    return {.waiting = std::string("canary: ") + e.what()};
  }
}

Answer ask_next_step(const LoopContext& context, const State& state, double speedup_now) {
  const Policy& p = context.options.policy;
  switch (context.memory.stage) {
    case Stage::kSuspect:
      if (p.alarm_confirms)
        return {.occurrence = Occurrence{Event::kConfirmed, "the alarm counts as the confirmation (--confirm alarm)"}};
      if (!has_probe(p)) return {.waiting = "the alarm is not confirmed: give --canary, --probe or --confirm alarm"};
      return {};
    case Stage::kConfirmed:
    case Stage::kStaleTarget:
    case Stage::kDisabled:
      return ask_for_redistillation(context, state, speedup_now);
    case Stage::kRedistilling:
      return ask_for_its_package(context, state);
    default:
      return {};
  }
}

}  // namespace specdec::monitor
