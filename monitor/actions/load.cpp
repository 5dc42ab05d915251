// Orders the server to load a candidate draft and put it on trial.
#include <utility>

#include "monitor/actions/actions.h"
#include "monitor/actions/admin.h"
#include "monitor/actions/candidate_payload.h"

namespace specdec::monitor {

namespace {

ActionOutcome ended_with(int code, const std::string& text, Event event, Json evidence = Json::object()) {
  return {.code = code, .text = text, .occurrence = Occurrence{event, text, std::move(evidence)}};
}
ActionOutcome try_again(int code, const std::string& text) { return {.ended = false, .code = code, .text = text}; }

}  // namespace

void write_down(const LoadCandidate& load, ActionWriter& writer) {
  const CheckOptions& options = writer.context().options;
  if (options.policy.admin.empty()) return;  // without --admin, the operator puts the candidate into the channel
  writer.add("load", writer.key_of(load.kAct), candidate_payload(options, load.digest));
}

ActionOutcome run_load(const ActionEntry& action, const ActionContext& context) {
  const Policy& policy = context.loop.options.policy;
  const Json& p = action.payload;
  const std::string id = p.value("id", "");
  if (id.empty()) return ended_with(7, "the candidate's package no longer exists", Event::kRefused);
  Admin admin(policy.admin, policy.admin_key);
  const Admin::Reply present = admin.drafts();
  if (present.status != 200) return try_again(present.status, present.problem);
  if (draft_id_of(present.body, "candidate") == id) return ended_with(200, "on trial", Event::kOnTrial);
  if (draft_id_of(present.body, "serving") == id)
    return ended_with(200, "the server serves it already", Event::kBetter);
  if (!draft_id_of(present.body, "candidate").empty() || present.body.value("state", "") == "loading")
    return try_again(409, "another draft is on trial at the server: wait for it, or drop it");
  const Admin::Reply reply =
      admin.order({{"action", "load"}, {"draft", p.at("draft")}, {"score", policy.score}, {"serve", policy.serve}});
  if (reply.status == 200) return ended_with(200, "on trial", Event::kOnTrial, {{"candidate", p.at("digest")}});
  if (reply.status == 400 || reply.status == 409) return ended_with(reply.status, reply.problem, Event::kRefused);
  return try_again(reply.status, reply.problem);
}

}  // namespace specdec::monitor
