// Telling others and being told: webhooks, Alertmanager in both directions, the textfile for Prometheus.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/json.h"
#include "base/secret.h"
#include "monitor/machine.h"

namespace specdec::monitor {

struct Posted {
  bool ok = false;
  int status = 0;    // 0: no reply
  std::string text;  // one line: status, attempts
};
// POST of JSON: no redirect, 10 s an attempt, three attempts with back-off. With a secret the header
// X-Specdec-Signature-256 is "sha256=" + HMAC-SHA-256 of the body, as GitHub's. X-Specdec-Delivery is the key: the same
// event may come twice. Throws Error(kUsage) for an URL that is none.
Posted post_json(const SecretUrl& url, const std::string& body, const std::string& key, const Secret& secret);

SecretUrl alerts_url(const SecretUrl& alertmanager);
// Body of POST /api/v2/alerts: one alert "SpecdecDraft" of this package, firing until `ends` or resolved at `ends`.
Json alert_json(const std::string& package, const std::string& state, const std::string& reason, int64_t starts,
                int64_t ends);

// An Alertmanager webhook (version 4, at most 1 MiB and 1,000 alerts) put into Memory::alerts: what fires by groupKey
// and first start, what is resolved no longer. An alert that was answered before ("" in the map) stays answered. Throws
// Error(kData).
void take_alert(const std::string& text, const std::string& where, std::map<std::string, std::string>& alerts);
// Whether one of them waits for an answer.
const std::string* firing(const std::map<std::string, std::string>& alerts);

// What node_exporter's textfile collector reads: state, e-values, acceptance, time of the last success. `result`:
// specdec.monitor/1.
std::string textfile(const Json& result, const Memory& memory, int64_t redistillations, int64_t now);

}  // namespace specdec::monitor
