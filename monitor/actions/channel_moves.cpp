// Promotes or drops a candidate and rolls back a promotion. `specdec package` moves the channel, but only if the
// channel still has its old value, so that a finished move is not repeated. If --admin is given, the server is then
// ordered to serve the draft of the channel's package.
#include <utility>

#include "monitor/actions/actions.h"
#include "monitor/actions/admin.h"
#include "monitor/actions/candidate_payload.h"
#include "monitor/actions/channel.h"

namespace specdec::monitor {

namespace {

struct ChannelMove {
  std::string channel;
  std::vector<std::string> argv;
};

// Returns the channel move that an action needs, or nothing if the channel need not be moved or is already moved.
std::optional<ChannelMove> move_of(const ActionEntry& action, const std::string& program) {
  const Json& p = action.payload;
  const std::string store = p.at("store"), digest = p.at("digest"), why = p.at("why");
  const std::string channel = p.at(action.kind == "drop" ? "candidates" : "channel");
  const auto is_there = [&] { return read_channel(store, channel) == digest; };
  const auto move = [&](std::vector<std::string> argv) {
    argv.insert(argv.begin(), {program, "-q", "package"});
    argv.insert(argv.end(), {"--store", store, "--channel", channel, "--why", why});
    return ChannelMove{channel, std::move(argv)};
  };
  if (action.kind == "promote") {
    if (is_there()) return std::nullopt;
    return move({"promote", "sha256-" + digest});
  }
  const bool rolls_back = action.kind == "roll_back" || p.value("roll_back", false);
  if (!rolls_back || !is_there()) return std::nullopt;
  return move({"rollback"});
}

// Orders the server to serve (or drop) the draft of the channel's package. If the server is not ready, the next check
// sends the order again.
void order_server(const ActionEntry& action, const Policy& policy, ActionOutcome& outcome) {
  const Json& p = action.payload;
  const std::string id = p.value("id", "");
  if (policy.admin.empty() || id.empty()) return;
  Admin admin(policy.admin, policy.admin_key);
  const std::string problem = action.kind == "drop" ? admin.drop(id) : admin.serve(p.at("draft"), id);
  outcome.text += (outcome.text.empty() ? "server: " : ", server: ") + (problem.empty() ? "done" : problem);
  outcome.ended = problem.empty();
  if (!problem.empty()) outcome.code = 75;
}

}  // namespace

void write_down(const DropCandidate& drop, ActionWriter& writer) {
  Json payload = candidate_payload(writer.context().options, drop.digest);
  payload.update(Json{{"why", name(drop.why)}, {"roll_back", drop.has_lost}});
  writer.add("drop", writer.key_of(drop.kAct), std::move(payload));
}

void write_down(const Promote& promote, ActionWriter& writer) {
  Json payload = candidate_payload(writer.context().options, promote.digest);
  payload["why"] = promote.why;
  writer.add("promote", writer.key_of(promote.kAct), std::move(payload));
}

void write_down(const RollBack& roll_back, ActionWriter& writer) {
  const Channel at = channel_of(writer.context().options.package, "--package");
  Json payload = {
      {"store", absolute_path(at.store)}, {"channel", at.name}, {"digest", roll_back.digest}, {"why", roll_back.why}};
  if (const auto former = package_in(at.store, roll_back.former))
    payload.update(Json{{"draft", absolute_path(former->root)}, {"id", former->manifest.draft.id}});
  writer.add("roll_back", writer.key_of(roll_back.kAct), std::move(payload));
}

ActionOutcome run_channel_move(const ActionEntry& action, const ActionContext& context) {
  ActionOutcome outcome;
  if (const std::optional<ChannelMove> move = move_of(action, context.loop.options.program)) {
    outcome.code = run_for(action, context, move->argv).code;
    outcome.text = "channel " + move->channel + ": exit " + std::to_string(outcome.code);
    if (is_temporary(outcome.code, action)) {
      outcome.ended = false;
      return outcome;
    }
    if (outcome.code != 0 && action.kind != "drop") {
      outcome.is_impossible = true;
      if (action.kind == "promote") outcome.rejected = action.payload.at("digest").get<std::string>();
      return outcome;
    }
    outcome.moved_channel = move->channel == action.payload.at("channel").get<std::string>();
  }
  order_server(action, context.loop.options.policy, outcome);
  return outcome;
}

}  // namespace specdec::monitor
