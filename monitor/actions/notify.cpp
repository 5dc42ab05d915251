#include "monitor/actions/notify.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/sha256.h"
#include "net/http_client.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxAlerts = 1000;

// Escapes a label value for Prometheus' text format.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

class Page {
 public:
  void family(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
    name_ = name;
  }
  void value(const Json& number, const std::string& label = "", const std::string& of = "") {
    if (!number.is_number()) return;
    text_ += name_ + (label.empty() ? "" : "{" + label + "=\"" + escaped(of) + "\"}") + " " + number.dump() + "\n";
  }
  std::string text() const { return text_; }

 private:
  std::string text_, name_;
};

}  // namespace

Posted post_json(const SecretUrl& url, const std::string& body, const std::string& key, const Secret& secret) {
  net::HttpClient client;
  const net::HttpReply reply = client.send(
      [&] {
        net::HttpRequest request;
        request.url = url.reveal();
        request.post = &body;
        request.headers = {"X-Specdec-Delivery: " + key};
        if (!secret.empty())
          request.headers.push_back("X-Specdec-Signature-256: sha256=" + to_hex(hmac_sha256(secret.reveal(), body)));
        request.timeout_s = 10;
        request.connect_timeout_s = 5;
        request.max_body_bytes = 1u << 20;
        return request;
      },
      {.max_attempts = 3, .first_delay_s = 0.5, .max_delay_s = 5, .sleep = {}});
  const bool ok = reply.problem.empty() && reply.status >= 200 && reply.status < 300;
  const std::string answer = reply.problem.empty() ? "status " + std::to_string(reply.status) : reply.problem;
  return {ok, static_cast<int>(reply.status),
          answer + " after " + std::to_string(reply.attempts) + (reply.attempts == 1 ? " attempt" : " attempts")};
}

SecretUrl alerts_url(const SecretUrl& alertmanager) {
  std::string url = alertmanager.reveal();
  while (url.ends_with('/')) url.pop_back();
  return SecretUrl(url + "/api/v2/alerts");
}

Json alert_json(const std::string& package, const std::string& state, const std::string& reason, int64_t starts,
                int64_t ends) {
  return Json::array({{{"labels", {{"alertname", "SpecdecDraft"}, {"package", package}}},
                       {"annotations", {{"summary", "specdec: " + state}, {"description", reason}}},
                       {"startsAt", format_utc(starts)},
                       {"endsAt", format_utc(ends)}}});
}

void take_alert(const std::string& text, const std::string& where, std::map<std::string, std::string>& alerts) {
  const ErrorKind kind = ErrorKind::kData;
  const Json message = parse_json(text, where, kind, {.max_bytes = 1u << 20, .max_depth = 16});
  if (!message.is_object())
    throw Error(kind, where + ": expected an Alertmanager notification (a JSON object), found " + message.type_name());
  if (const std::string version = json_string(message, "version", where, kind); version != "4")
    throw Error(kind,
                where + ": version: expected \"4\" (Alertmanager's webhook), found '" + version.substr(0, 20) + "'");
  const std::string group = sha256_hex(json_string(message, "groupKey", where, kind)).substr(0, 16);
  std::string first, summary;
  for (const Json& alert : json_array(message, "alerts", kMaxAlerts, where, kind)) {
    if (!alert.is_object())
      throw Error(kind, where + ": alerts: expected objects, found " + std::string(alert.type_name()));
    if (json_string(alert, "status", where + ": alerts", kind) != "firing") continue;
    const std::string starts = json_string(alert, "startsAt", "", where + ": alerts", kind).substr(0, 40);
    if (!first.empty() && starts >= first) continue;
    first = starts.empty() ? "-" : starts;
    const std::string name = json_string(json_object(alert, "labels", 256, where + ": alerts", kind), "alertname",
                                         "alert", where + ": labels", kind);
    const Json annotations = alert.value("annotations", Json::object());
    summary = (name + ": " +
               (annotations.is_object() ? json_string(annotations, "summary", "firing", where + ": annotations", kind)
                                        : "firing"))
                  .substr(0, 200);
  }
  if (first.empty()) {  // the whole group is resolved
    std::erase_if(alerts, [&](const auto& alert) { return alert.first.starts_with(group); });
  } else if (alerts.size() < kMaxAlerts) {
    alerts.emplace(group + " " + first, summary);
  }
}

const std::string* firing(const std::map<std::string, std::string>& alerts) {
  const auto found =
      std::find_if(alerts.begin(), alerts.end(), [](const auto& alert) { return !alert.second.empty(); });
  return found == alerts.end() ? nullptr : &found->second;
}

std::string textfile(const Json& result, const Memory& memory, int64_t redistillations, int64_t now) {
  Page page;
  const Json& e = result["evidence"];
  page.family("specdec_state", "gauge", "1 for the state that the loop is in.");
  for (int i = 0; i < kStages; ++i)
    page.value(static_cast<Stage>(i) == memory.stage ? 1 : 0, "state", name(static_cast<Stage>(i)));
  page.family("specdec_drift_evalue_log10", "gauge", "Evidence of a drop in acceptance, as log10 of the e-value.");
  page.value(e["log10_e"]);
  page.family("specdec_drift_alarm_log10", "gauge", "log10 of the e-value at which the alarm is raised.");
  page.value(e["log10_alarm"]);
  page.family("specdec_acceptance_baseline", "gauge", "Rolled-out acceptance that the gate measured, by segment.");
  for (const Json& s : e["strata"]) page.value(s["baseline"], "segment", s["name"].get<std::string>());
  page.family("specdec_acceptance", "gauge", "Mean acceptance of the watched requests, by segment.");
  for (const Json& s : e["strata"]) page.value(s["acceptance"], "segment", s["name"].get<std::string>());
  page.family("specdec_counter_alarms", "gauge", "Alarms that counters of pages raised, kept until they are answered.");
  page.value(e.value("counter_alarms", Json::array()).size());
  page.family("specdec_counter_acceptance", "gauge", "Mean acceptance by the counters of these pages.");
  for (const Json& s : e["scrapes"]) page.value(s["acceptance"], "sources", s["sources"].get<std::string>());
  page.family("specdec_counter_acceptance_expected", "gauge", "Acceptance that the gate's figures expect there.");
  for (const Json& s : e["scrapes"]) page.value(s["expected"], "sources", s["sources"].get<std::string>());
  page.family("specdec_monitor_requests", "gauge", "Requests watched with this package.");
  page.value(e["requests"]);
  page.family("specdec_redistillations_total", "counter", "Redistillations that were started.");
  page.value(redistillations);
  page.family("specdec_false_alarms_total", "counter", "Alarms that a probe did not confirm.");
  page.value(memory.false_alarms);
  page.family("specdec_target_info", "gauge", "Fingerprint of the target that the package is bound to.");
  page.value(1, "fp", result["inputs"]["target"].get<std::string>().substr(0, 12));
  page.family("specdec_monitor_last_success_timestamp_seconds", "gauge",
              "Unix time of the last check that succeeded; alert on its age.");
  page.value(now);
  return page.text();
}

}  // namespace specdec::monitor
