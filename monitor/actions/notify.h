// Sends and receives notifications: webhooks, alerts to and from Alertmanager, and the textfile for Prometheus.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/json.h"
#include "base/secret.h"
#include "monitor/machine/machine.h"

namespace specdec::monitor {

struct Posted {
  bool ok = false;
  int status = 0;    // HTTP status; 0 = no reply
  std::string text;  // one line with the status and the number of attempts
};
// POSTs JSON without following redirects, in up to three attempts of 10 s with back-off. With a secret, the header
// X-Specdec-Signature-256 is "sha256=" + HMAC-SHA-256 of the body, as GitHub sends it. The header X-Specdec-Delivery is
// `key`, by which the receiver can recognise an event that arrives twice. Throws Error(kUsage) if a user name or
// password in `url` would be sent over plain http to another machine. Throws Error(kNetwork), which means "try again",
// for a reply over 1 MiB or a stop request.
Posted post_json(const SecretUrl& url, const std::string& body, const std::string& key, const Secret& secret);

SecretUrl alerts_url(const SecretUrl& alertmanager);
// Returns the body of POST /api/v2/alerts: one alert "SpecdecDraft" about this package. The alert fires until `ends`; a
// time `ends` in the past reports it as resolved.
Json alert_json(const std::string& package, const std::string& state, const std::string& reason, int64_t starts,
                int64_t ends);

// Updates `alerts` (Memory::alerts) from `text`, a webhook message of Alertmanager (version 4, at most 1 MiB and 1,000
// alerts). A group of alerts that fires is added under the key groupKey + first start time; a resolved group is
// removed. If the loop has reacted to a group, its text is "", and stays "" when the group arrives again. Throws
// Error(kData).
void take_alert(const std::string& text, const std::string& where, std::map<std::string, std::string>& alerts);
// Returns the text of an alert that is not answered yet, or null if there is none.
const std::string* firing(const std::map<std::string, std::string>& alerts);

// Returns the text for node_exporter's textfile collector: state, e-values, acceptance, time of the last success.
// `result` has the schema specdec.monitor/1.
std::string textfile(const Json& result, const Memory& memory, int64_t redistillations, int64_t now);

}  // namespace specdec::monitor
