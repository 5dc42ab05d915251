// Posts each transition to the webhooks, and posts the start and end of each state that needs attention to
// Alertmanager.
#include <algorithm>

#include "monitor/actions/actions.h"
#include "monitor/actions/notify.h"
#include "monitor/read/source.h"

namespace specdec::monitor {

namespace {

constexpr int64_t kAlertHolds = 4 * 3600;  // seconds after which Alertmanager resolves an alert that no check renewed

// Returns the URL to post to, or null if the options do not have it any more. The action names a webhook by its URL
// without secrets.
const SecretUrl* url_of(const ActionEntry& action, const Policy& policy, SecretUrl& alerts) {
  if (action.kind == "alert") {
    if (policy.alertmanager.empty()) return nullptr;
    alerts = alerts_url(policy.alertmanager);
    return &alerts;
  }
  const std::vector<std::string> names = names_of(policy.webhooks);
  const auto at = std::find(names.begin(), names.end(), action.payload.value("to", ""));
  return at == names.end() ? nullptr : &policy.webhooks[static_cast<size_t>(at - names.begin())];
}

}  // namespace

bool is_post(const std::string& kind) { return kind == "webhook" || kind == "alert"; }

void write_down_webhooks(const Json& event, ActionWriter& writer) {
  for (const std::string& to : names_of(writer.context().options.policy.webhooks))
    writer.add("webhook", "webhook " + std::to_string(writer.transition()) + " " + to, {{"to", to}, {"body", event}});
}

void write_down_all_clear(ActionWriter& writer) {
  const LoopContext& c = writer.context();
  if (c.options.policy.alertmanager.empty()) return;
  writer.add("alert", "alert " + std::to_string(writer.transition()),
             {{"body", alert_json(c.options.package, name(c.memory.stage), c.memory.reason, c.now, c.now)}});
}

ActionOutcome run_post(const ActionEntry& action, const ActionContext& context) {
  const Policy& p = context.loop.options.policy;
  SecretUrl alerts;
  const SecretUrl* url = url_of(action, p, alerts);
  if (!url) return not_given();
  const Posted posted = post_json(*url, action.payload.at("body").dump(), action.key,
                                  action.kind == "webhook" ? p.webhook_secret : Secret());
  ActionOutcome outcome{.ended = posted.ok, .code = posted.status, .text = posted.text};
  if (!posted.ok && action.attempts >= kMaxAttempts) {
    outcome.ended = true;
    outcome.text += ": given up after " + std::to_string(kMaxAttempts) + " checks";
  }
  return outcome;
}

Json renew_alert(const LoopContext& c) {
  const Json alert =
      alert_json(c.options.package, name(c.memory.stage), c.memory.reason, c.memory.since, c.now + kAlertHolds);
  const Posted posted = post_json(alerts_url(c.options.policy.alertmanager), alert.dump(), "", "");
  return {{"kind", "alert"}, {"ended", posted.ok}, {"code", posted.status}, {"outcome", posted.text}};
}

}  // namespace specdec::monitor
