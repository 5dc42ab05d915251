#include "deploy/serve/schedule/live_gate.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

FinishedAnswer answer(const std::string& draft, const std::string& conversation, double overlap, int64_t reached = 20) {
  auto request = std::make_shared<GenerationRequest>();
  request->id = conversation + "/1";
  request->conversation = conversation;
  FinishedAnswer a;
  a.request = request;
  a.result.draft = draft;
  a.result.counts.reached_at = {reached / 2, reached - reached / 2};
  a.result.counts.overlap_sum_at = {overlap * static_cast<double>(reached), 0};
  return a;
}

const std::string kOld = std::string(64, 'a'), kNew = std::string(64, 'b');

TEST(LiveGate, FirstAnswersOfConversationsByDraft) {
  LiveGate gate;
  EXPECT_EQ(gate_json(gate.read(kOld, Json()), 0.6)["verdict"], "inconclusive");
  EXPECT_TRUE(gate_json(gate.read("", Json()), 0.6)["draft"].is_null());
  PhiloxStream random(3, 3);
  for (int i = 0; i < 300; ++i) {
    const std::string conversation = std::to_string(i);
    gate.observe(answer(kOld.substr(0, kDraftLabel), conversation, 0.7 + 0.2 * (random.uniform() - 0.5)));
    gate.observe(answer(kOld.substr(0, kDraftLabel), conversation, 0.1));  // a second answer is ignored
    // An answer that reached fewer than 8 draft positions is ignored, too.
    gate.observe(answer(kOld.substr(0, kDraftLabel), "short" + conversation, 0.1, 7));
    gate.observe(answer("", "plain" + conversation, 0.1));
    gate.observe(answer(kNew.substr(0, kDraftLabel), conversation, 0.4));
  }
  Json json = gate_json(gate.read(kOld, Json()), 0.6);
  EXPECT_EQ(json["schema"], "specdec.gate/1");
  EXPECT_EQ(json["verdict"], "pass");
  EXPECT_EQ(json["n"], 300);
  EXPECT_EQ(json["draft"], kOld);
  EXPECT_EQ(json["role"], "serving");
  EXPECT_NEAR(json["acceptance"].get<double>(), 0.7, 0.02);
  EXPECT_GT(json["ci"][0], 0.65);
  EXPECT_EQ(gate_json(gate.read(kOld, Json()), 0.7)["verdict"], "inconclusive");
  EXPECT_EQ(gate_json(gate.read(kOld, Json()), 0.8)["verdict"], "fail");
  EXPECT_EQ(gate_json(gate.read(kNew, Json()), 0.6)["verdict"], "fail");
  const std::string metrics = gate_metrics(gate.read(kOld, Json()));
  EXPECT_NE(metrics.find("specdec:gate_acceptance_low{role=\"serving\"} 0.6"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("specdec:gate_conversations{role=\"serving\"} 300\n"), std::string::npos) << metrics;
  EXPECT_EQ(gate_metrics(gate.read(std::string(64, 'c'), Json())), "");
  for (size_t i = 0; i < LiveGate::kDrafts; ++i) gate.observe(answer("d" + std::to_string(i), "x", 0.5));
  EXPECT_EQ(gate.read(kOld, Json()).acceptance.n, 0) << "forgotten";
}

TEST(LiveGate, OneTenantLeavesPlacesToTheOthers) {
  LiveGate gate(3);
  const auto observe = [&gate](const std::string& tenant, const std::string& conversation, double overlap) {
    FinishedAnswer a = answer("d", conversation, overlap);
    auto request = std::make_shared<GenerationRequest>(*a.request);
    request->tenant = tenant;
    request->conversation_key = tenant + "/" + conversation;
    a.request = request;
    gate.observe(a);
  };
  for (int i = 0; i < 10; ++i) observe("loud", "c" + std::to_string(i), 0);
  EXPECT_EQ(gate.read("d", Json()).acceptance.n, 3);
  observe("other", "c0", 1);
  EXPECT_EQ(gate.read("d", Json()).acceptance.n, 4) << "a conversation that another tenant calls the same";
  EXPECT_NEAR(gate.read("d", Json()).acceptance.value, 0.25, 1e-9);
}

TEST(LiveGate, ADraftOnTrialIsJudgedByItsPairedScores) {
  LiveGate gate;
  Json trial = {{"state", "canary"},
                {"candidate", {{"name", "new"}, {"id", kNew}}},
                {"paired", {{"conversations", 0}, {"positions", 0}}}};
  LiveGate::Reading reading = gate.read(kOld, trial);
  EXPECT_EQ(reading.role, "candidate");
  EXPECT_EQ(reading.draft, kNew);
  EXPECT_EQ(gate_json(reading, 0.6)["verdict"], "inconclusive");
  trial["paired"] = {{"conversations", 80}, {"positions", 900}, {"candidate", {{"value", 0.7}, {"ci", {0.65, 0.75}}}}};
  reading = gate.read(kOld, trial);
  EXPECT_EQ(reading.acceptance.n, 80);
  EXPECT_EQ(gate_json(reading, 0.6)["verdict"], "pass");
  EXPECT_EQ(gate_json(reading, 0.76)["verdict"], "fail");
  trial["candidate"] = nullptr;  // as after the candidate was promoted or dropped
  EXPECT_EQ(gate.read(kOld, trial).role, "serving");
}

TEST(LiveGate, FloorsOfTheQuery) {
  EXPECT_EQ(gate_floor("", 0.6), 0.6);
  EXPECT_EQ(gate_floor("limit=3"), 0.60);
  EXPECT_EQ(gate_floor("floor=0.65"), 0.65);
  EXPECT_EQ(gate_floor("a=b&floor=1&floor=2"), 1);
  for (const char* bad : {"floor=", "floor=1.01", "floor=-1", "floor=nan", "floor=0x1", "floor=0.5%20", "floor=1e-1",
                          "floor=.", "floor= 1"})
    EXPECT_FALSE(gate_floor(bad)) << bad;
}

TEST(LiveGate, TheRouteAsksForTheKeyAndRefusesABadFloor) {
  const Scratch dir;
  testing::put(dir / "keys", "key-of-anna-1 anna\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  Running s(setup);
  EXPECT_EQ(s.ask(get("/gate", "Authorization: Bearer key-of-anna-1\r\n")).status, 503);  // the model is still loading
  s.start();
  EXPECT_EQ(s.ask(get("/gate")).status, 401);
  const Response reply = s.ask(get("/gate?floor=0.7", "Authorization: Bearer key-of-anna-1\r\n"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["floor"], 0.7);
  EXPECT_EQ(Json::parse(reply.body)["verdict"], "inconclusive");
  const Response bad = s.ask(get("/gate?floor=7", "Authorization: Bearer key-of-anna-1\r\n"));
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(Json::parse(bad.body)["error"]["param"], "floor");
}

}  // namespace
}  // namespace specdec::deploy
