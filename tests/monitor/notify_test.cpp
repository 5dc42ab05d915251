#include "monitor/actions/notify.h"

#include "base/sha256.h"
#include "tests/monitor/loopback.h"
#include "tests/monitor/looped.h"

namespace specdec::monitor {
namespace {

using specdec::testing::expect_error;
using specdec::testing::get;
using specdec::testing::put;

TEST_F(Looped, AFiringAlertIsEvidenceUntilItIsAnswered) {
  options.policy.probe = "cat " + (dir / "probe.json").string();
  options.policy.alert = dir / "alert.json";
  put(dir / "probe.json", probe(-0.02, -0.05, 0.01));
  const auto alert = [&](const std::string& status, const std::string& starts) {
    put(dir / "alert.json", Json({{"version", "4"},
                                  {"groupKey", "g"},
                                  {"status", status},
                                  {"alerts",
                                   {{{"status", status},
                                     {"labels", {{"alertname", "SlowTokens"}}},
                                     {"annotations", Json::object()},
                                     {"startsAt", starts}}}}})
                                .dump());
  };
  write_requests(200, 0.80, 0.60);
  alert("firing", "2026-11-22T01:00:00Z");
  CheckResult r = see();
  EXPECT_EQ(r.verdict, Verdict::kHealthy);
  EXPECT_EQ(r.json["state"], "SUSPECT");
  EXPECT_EQ(State(options.state).transitions(1)[0].reason, "Alertmanager: SlowTokens: firing");
  options.policy.alert.clear();
  EXPECT_EQ(see().json["state"], "SUSPECT") << "it still fires as far as is known";
  put(dir / "probe.json", probe(0.0, -0.01, 0.01));
  clock.now += 86400;
  EXPECT_EQ(see().json["state"], "HEALTHY");
  options.policy.alert = dir / "alert.json";
  EXPECT_EQ(see().json["state"], "HEALTHY") << "Alertmanager repeats itself: the same group and start were answered";
  put(dir / "probe.json", "x");
  alert("firing", "2026-11-22T09:00:00Z");
  EXPECT_EQ(see().json["state"], "SUSPECT");
  alert("resolved", "2026-11-22T09:00:00Z");
  EXPECT_EQ(see().json["state"], "HEALTHY");
  EXPECT_TRUE(memory().alerts.empty());
}

TEST_F(Looped, WebhooksAreSignedAndDeliveredUntilTheyArrive) {
  std::mutex mutex;
  std::vector<net::ToyRequest> got;
  bool works = false;
  net::ToyServer hook([&](const net::ToyRequest& request) {
    const std::lock_guard lock(mutex);
    got.push_back(request);
    net::ToyReply reply;
    reply.status = works ? 204 : 404;
    return reply;
  });
  options.policy.webhooks = {hook.url() + "/in?team=1"};
  options.policy.webhook_secret = "secret";
  drift();
  see();
  ASSERT_EQ(got.size(), 1u);
  works = true;
  see();
  see();
  ASSERT_EQ(got.size(), 2u) << "again until it is taken, and then not any more";
  EXPECT_EQ(got[1].path, "/in?team=1");
  EXPECT_EQ(got[0].body, got[1].body);
  EXPECT_EQ(Json::parse(got[1].body)["to"], "SUSPECT");
  EXPECT_NE(got[1].head.find("X-Specdec-Signature-256: sha256=" + to_hex(hmac_sha256("secret", got[1].body))),
            std::string::npos)
      << got[1].head;
  const auto delivery = [](const net::ToyRequest& r) { return r.head.substr(r.head.find("X-Specdec-Delivery: "), 84); };
  EXPECT_EQ(delivery(got[0]), delivery(got[1]));
  EXPECT_EQ(State(options.state).actions_of("webhook", 0)[0].attempts, 2);
}

TEST_F(Looped, AlertmanagerHearsOfItAndOfItsEnd) {
  std::mutex mutex;
  std::vector<Json> got;
  net::ToyServer manager([&](const net::ToyRequest& request) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(request.path, "/api/v2/alerts");
    got.push_back(Json::parse(request.body)[0]);
    return net::ToyReply{};
  });
  options.policy.alertmanager = manager.url();
  drift();
  see();
  ASSERT_EQ(got.size(), 1u) << "a calm check says nothing";
  EXPECT_EQ(got[0]["labels"], (Json{{"alertname", "SpecdecDraft"}, {"package", options.package}}));
  EXPECT_EQ(got[0]["startsAt"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(got[0]["endsAt"], "2023-11-15T02:13:20Z");
  clock.now += 60;
  options.acknowledge = true;
  see();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[1]["labels"], got[0]["labels"]);
  EXPECT_EQ(got[1]["endsAt"], "2023-11-14T22:14:20Z") << "resolved";
}

TEST_F(Looped, ATextfileForPrometheus) {
  options.policy.prom = dir / "specdec.prom";
  drift();
  see();
  const std::string page = get(dir / "specdec.prom");
  for (const char* line : {"specdec_state{state=\"HEALTHY\"} 0\n", "specdec_state{state=\"SUSPECT\"} 1\n",
                           "specdec_acceptance_baseline{segment=\"chat\"} 0.8\n",
                           "specdec_monitor_last_success_timestamp_seconds 1700000000\n",
                           "specdec_redistillations_total 0\n", "# TYPE specdec_drift_evalue_log10 gauge\n"})
    EXPECT_NE(page.find(line), std::string::npos) << line << page;
}

// A drop found by a page's counters is exported in the same metrics as a drop found by requests, because the alert
// rules that specdec ships use these metrics.
TEST_F(Looped, TheTextfileHasTheAlarmsOfCounters) {
  Loopback server;
  options.sources = {server.url()};
  options.policy.prom = dir / "specdec.prom";
  const auto page = [&](double drafts, double accepted) {
    server.page("vllm:spec_decode_num_drafts_total " + std::to_string(drafts) +
                "\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} " + std::to_string(accepted) +
                "\n");
    see();
    return get(dir / "specdec.prom");
  };
  page(1000, 700);
  EXPECT_NE(page(2000, 1400).find("\nspecdec_counter_alarms 0\n"), std::string::npos);
  const std::string text = page(3000, 1401);
  for (const std::string line : {"\nspecdec_counter_alarms 1\n", "\nspecdec_state{state=\"SUSPECT\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << text;
  EXPECT_NE(text.find("\nspecdec_counter_acceptance{sources=\"" + server.url() + "\"} 0."), std::string::npos) << text;
}

TEST(Alert, OnlyAlertmanagersOwnWordsWithinBounds) {
  std::map<std::string, std::string> alerts;
  const auto take = [&](const Json& message) {
    return [&alerts, message] { take_alert(message.dump(), "a.json", alerts); };
  };
  const Json one = {{"status", "firing"}, {"labels", {{"alertname", "X"}}}, {"startsAt", "2026"}};
  expect_error(ErrorKind::kData, {"a.json"}, [&] { take_alert("{", "a.json", alerts); });
  expect_error(ErrorKind::kData, {"a.json", "object"}, take(Json::array()));
  expect_error(ErrorKind::kData, {"version", "\"4\""},
               take({{"version", "3"}, {"groupKey", "g"}, {"alerts", Json::array()}}));
  expect_error(ErrorKind::kData, {"groupKey"}, take({{"version", "4"}, {"alerts", Json::array()}}));
  expect_error(ErrorKind::kData, {"alerts"}, take({{"version", "4"}, {"groupKey", "g"}, {"alerts", Json::array({1})}}));
  expect_error(ErrorKind::kData, {"alerts"},
               take({{"version", "4"}, {"groupKey", "g"}, {"alerts", std::vector<Json>(1001, one)}}));
  EXPECT_TRUE(alerts.empty());
  take({{"version", "4"}, {"groupKey", "g"}, {"alerts", Json::array({one, one})}})();
  take({{"version", "4"}, {"groupKey", "h"}, {"alerts", Json::array({one})}})();
  EXPECT_EQ(alerts.size(), 2u);
  ASSERT_NE(firing(alerts), nullptr);
  EXPECT_EQ(*firing(alerts), "X: firing");
}

}  // namespace
}  // namespace specdec::monitor
