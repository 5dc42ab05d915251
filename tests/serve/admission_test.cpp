// Tests of admission before the queue: limit of connections, fair use of worker threads, memory budget and host names.
// No sockets, threads or clocks are used.
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "deploy/serve/answer/generation.h"
#include "deploy/serve/http/allowed_hosts.h"
#include "deploy/serve/http/connection_table.h"
#include "deploy/serve/http/fair_workers.h"
#include "deploy/serve/request/byte_budget.h"

namespace specdec::deploy {
namespace {

using Phase = Seat::Phase;

TEST(GivesWay, TheLongestIdleOfThePeerThatHoldsMost) {
  const std::vector<Seat> one = {
      {"a", Phase::kIdle, 5}, {"a", Phase::kIdle, 3}, {"a", Phase::kAnswering, 1}, {"a", Phase::kIdle, 4}};
  EXPECT_EQ(gives_way(one, "a"), 1u) << "a peer's own idle ones, too: behind a proxy there is only one";
  std::vector<Seat> two = one;
  two.push_back({"b", Phase::kIdle, 0});
  EXPECT_EQ(gives_way(two, "c"), 1u) << "idle for less long than b's, but a holds four places";
}

TEST(GivesWay, WhatIsBeingAnsweredNeverAndWhatIsReadOnlyToThoseWithLess) {
  const std::vector<Seat> busy = {
      {"a", Phase::kAnswering, 1}, {"a", Phase::kReading, 7}, {"a", Phase::kReading, 6}, {"b", Phase::kReading, 2}};
  EXPECT_EQ(gives_way(busy, "c"), 2u);
  EXPECT_EQ(gives_way(busy, "b"), 2u) << "three against one";
  EXPECT_EQ(gives_way(busy, "a"), std::nullopt) << "nobody gains by half a request each";
  EXPECT_EQ(gives_way(std::vector<Seat>{{"a", Phase::kAnswering, 1}}, "b"), std::nullopt);
}

struct Sitting final : Seated {
  explicit Sitting(Seat s) : at(std::move(s)) {}
  Seat seat() const override { return at; }
  void give_way() override { ++asked; }
  Seat at;
  int asked = 0;
};

TEST(ConnectionTable, EveryNewcomerHasOneGiveWayAndNoneTwice) {
  ConnectionTable table(3);
  std::vector<std::shared_ptr<Sitting>> sitting;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(table.make_room("p"));
    table.add(sitting.emplace_back(std::make_shared<Sitting>(Seat{"p", Phase::kIdle, static_cast<double>(i)})));
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(table.make_room("p"));
    table.add(sitting.emplace_back(std::make_shared<Sitting>(Seat{"p", Phase::kAnswering, 9})));
  }
  std::vector<int> asked;
  for (const auto& s : sitting) asked.push_back(s->asked);
  EXPECT_EQ(asked, (std::vector<int>{1, 1, 0, 0, 0}));
  sitting[2]->at.phase = Phase::kAnswering;
  EXPECT_FALSE(table.make_room("p")) << "all are being answered";
  EXPECT_EQ(table.open(), 5u) << "two are on their way out";
  sitting.pop_back();
  EXPECT_TRUE(table.make_room("p"));
}

std::string order_of(WorkQueue& queue, const std::map<std::string, double>& seconds) {
  std::string order;
  for (auto item = queue.pop(); item; item = queue.pop()) {
    order += item->party + (item->large ? "*" : "");
    queue.done(item->party, item->large, seconds.at(item->party));
  }
  return order;
}

TEST(WorkQueue, PartiesTakeTurnsBySecondsUsed) {
  WorkQueue queue(1);
  for (int i = 0; i < 6; ++i) queue.push({"a", false, {}});
  for (int i = 0; i < 6; ++i) queue.push({"b", false, {}});
  EXPECT_EQ(order_of(queue, {{"a", 1}, {"b", 0.5}}), "abbabbabbaaa");
  EXPECT_TRUE(queue.empty());
}

TEST(WorkQueue, AThreadIsLeftToOthersAndOneToSmallWork) {
  WorkQueue queue(3);
  for (int i = 0; i < 4; ++i) queue.push({"a", true, {}});
  EXPECT_TRUE(queue.pop()->large);
  EXPECT_FALSE(queue.pop()) << "one of three threads is what large bodies have";
  queue.push({"a", false, {}});
  queue.push({"a", false, {}});
  EXPECT_FALSE(queue.pop()->large) << "small work passes it";
  EXPECT_FALSE(queue.pop()) << "two of three threads is what one party has";
  queue.push({"b", false, {}});
  EXPECT_EQ(queue.pop()->party, "b");
  queue.done("a", true, 5);
  queue.push({"b", true, {}});
  const auto next = queue.pop();
  EXPECT_TRUE(next->large && next->party == "b") << "both run one thing, and a has used more seconds";
  EXPECT_FALSE(queue.pop()->large);
  EXPECT_FALSE(queue.pop()) << "all that is left is large, and there is one place for that";
}

TEST(WorkQueue, ADebtIsKeptWhileOthersWait) {
  WorkQueue queue(1);
  queue.push({"a", false, {}});
  queue.pop();
  for (int i = 0; i < 3; ++i) queue.push({"b", false, {}});
  queue.done("a", false, 10);
  EXPECT_EQ(queue.pop()->party, "b");
  queue.push({"a", false, {}});
  queue.done("b", false, 1);
  EXPECT_EQ(queue.pop()->party, "b") << "a has had ten seconds";
}

TEST(FairWorkers, DoEverythingThatWasSubmittedBeforeTheyStop) {
  std::atomic<int> done{0};
  FairWorkers workers(3);
  for (int i = 0; i < 500; ++i) workers.submit({std::to_string(i % 3), i % 7 == 0, [&done] { done.fetch_add(1); }});
  workers.stop();
  EXPECT_EQ(done.load(), 500);
}

TEST(ByteBudget, IsOfAllAndOfOneParty) {
  ByteBudget budget(100, 60);
  auto a = budget.hold("a"), more_of_a = budget.hold("a"), b = budget.hold("b");
  EXPECT_TRUE(a->resize(50));
  EXPECT_FALSE(more_of_a->resize(11)) << "60 are one party's";
  EXPECT_TRUE(more_of_a->resize(10));
  EXPECT_FALSE(b->resize(41)) << "100 are all there are";
  EXPECT_TRUE(b->resize(40));
  EXPECT_EQ(budget.held(), 100u);
  EXPECT_TRUE(a->resize(5)) << "less is always possible";
  EXPECT_TRUE(b->resize(60));
  a.reset();
  b.reset();
  EXPECT_EQ(budget.held(), 10u) << "what is gone is given back";
}

TEST(ByteBudget, AnAnsweredRequestHoldsNothingWhoeverKeepsIt) {
  ByteBudget budget(100, 100);
  const auto request = std::make_shared<GenerationRequest>();
  request->prompts = {{1, 2}};
  request->channel = std::make_shared<Channel>(100);
  request->held = budget.hold("a");
  ASSERT_TRUE(request->held->resize(80));
  auto exchange = make_generation({{}, true, request, nullptr, 1000, "max_tokens"});
  EXPECT_EQ(budget.held(), 80u);
  exchange.reset();  // the reply was sent, and the recorder still holds `request`
  EXPECT_EQ(budget.held(), 0u);
}

TEST(AllowedHosts, OwnNamesOfALoopbackServer) {
  const AllowedHosts hosts({"box.local", "My.Proxy:443"});
  for (const char* own : {"localhost", "LocalHost:8000", "localhost.", "127.0.0.1", "127.9.8.7:1", "[::1]",
                          "[::1]:8000", "box.local:8000", "my.proxy"})
    EXPECT_TRUE(hosts.takes_host(own)) << own;
  for (const char* foreign :
       {"", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "128.0.0.1",
        "0.0.0.0", "[::2]", "[::1", "::1", "localhost:80:80", "localhost:x", "localhost@evil.example", "box"})
    EXPECT_FALSE(hosts.takes_host(foreign)) << foreign;
  EXPECT_TRUE(hosts.takes_origin("http://localhost:8000"));
  for (const char* foreign : {"null", "localhost", "https://evil.example", "http://"})
    EXPECT_FALSE(hosts.takes_origin(foreign)) << foreign;
}

}  // namespace
}  // namespace specdec::deploy
