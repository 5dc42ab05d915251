// Who waits, who is sent away and what he is told.
#include "deploy/serve/api.h"

#include <gtest/gtest.h>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

TEST(Api, ATenantsOwnQueueIs429AndLeavesRoomForTheOthers) {
  const Scratch dir;
  testing::put(dir / "keys", "key-of-anna-1 anna\nkey-of-anna-2 anna\nkey-of-otto-1 otto\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  setup.options.max_batch = 1;
  setup.options.queue_limit = 4;  // two for each, since there are several
  Running s(setup);
  s.start();
  s.runner.close_gate();
  const auto request = [](const std::string& key) { return post("/v1/completions", R"({"prompt":"say:done"})", "Authorization: Bearer " + key + "\r\n"); };
  const auto metrics = [&] { return s.ask(get("/metrics", "Authorization: Bearer key-of-otto-1\r\n")).body; };
  std::vector<std::unique_ptr<Client>> accepted;
  const auto accept = [&](const std::string& key, int then_waiting) {
    accepted.push_back(std::make_unique<Client>(s.port));
    accepted.back()->send(request(key));
    wait_until([&] { return s.runner.at_gate() && metrics().find("specdec:num_requests_waiting " + std::to_string(then_waiting) + "\n") != std::string::npos; });
  };
  accept("key-of-anna-1", 0);  // at the gate
  accept("key-of-anna-1", 1);
  accept("key-of-anna-2", 2);
  const Response full = s.ask(request("key-of-anna-2"));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(Json::parse(full.body)["error"]["code"], "tenant_queue_full");
  EXPECT_EQ(full.headers.at("retry-after"), "1") << "nothing has been finished yet";
  accept("key-of-otto-1", 3);
  accept("key-of-otto-1", 4);
  EXPECT_EQ(Json::parse(s.ask(request("key-of-otto-1")).body)["error"]["code"], "queue_full");
  s.runner.open_gate();
  for (const auto& c : accepted) EXPECT_EQ(c->read().status, 200);
}

TEST(Api, WhatWaitsTooLongIsA408AndIsNeverRun) {
  Config setup;
  setup.options.max_batch = 1;
  setup.limits.total_seconds = 1;
  Running s(setup);
  s.start();
  s.runner.close_gate();
  Client first(s.port), second(s.port);
  first.send(post("/v1/completions", R"({"prompt":"say:first"})"));
  second.send(post("/v1/completions", R"({"prompt":"say:second"})"));
  EXPECT_EQ(first.read().status, 408);
  EXPECT_EQ(second.read().status, 408);
  s.runner.open_gate();
  EXPECT_EQ(s.complete("say:third")["choices"][0]["text"], "third");
  EXPECT_LE(s.runner.started(), 2u) << "the first was at the gate; the second is not run";
}

TEST(Api, WhatTheCachesDoNotHoldIsA503) {
  Running s;
  s.start();
  s.runner.limit_room(100);
  const Response r = s.ask(post("/v1/completions", R"({"prompt":"loop","max_tokens":500})"));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(Json::parse(r.body)["error"]["code"], "no_room");
  EXPECT_EQ(s.complete("say:fine")["choices"][0]["text"], "fine");
  EXPECT_EQ(s.ask(get("/health")).status, 200);
}

}  // namespace
}  // namespace specdec::deploy
