#include "deploy/serve/queue/queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/philox.h"

namespace specdec::deploy {
namespace {

std::shared_ptr<GenerationRequest> waiting(const std::string& tenant, size_t prompt_tokens = 1) {
  auto r = std::make_shared<GenerationRequest>();
  r->tenant = tenant;
  r->prompts.emplace_back(prompt_tokens, 1);
  r->channel = std::make_shared<Channel>(1 << 20);
  return r;
}

// Takes the next answer from the queue. Like the scheduler, reports its prompt as prefilled, except the last token,
// which the first step processes.
std::shared_ptr<const GenerationRequest> take(RequestQueue& queue) {
  const RequestQueue::Next next = queue.try_pop();
  if (next.request)
    queue.read(
        next.request->tenant,
        static_cast<int64_t>(next.request->prompts[next.choice / static_cast<size_t>(next.request->n)].size()) - 1);
  return next.request;
}

std::string next(RequestQueue& queue) {
  const auto request = take(queue);
  return request ? request->tenant : "";
}

TEST(RequestQueue, RefusesWhenFullAndForgetsTheCancelled) {
  RequestQueue queue(2);
  const auto a = waiting("x"), b = waiting("x"), c = waiting("x");
  EXPECT_EQ(queue.push(a), RequestQueue::Push::kAccepted);
  EXPECT_EQ(queue.push(b), RequestQueue::Push::kAccepted);
  EXPECT_EQ(queue.would_push("x"), RequestQueue::Push::kFull);
  EXPECT_EQ(queue.push(c), RequestQueue::Push::kFull);
  a->channel->cancel();
  EXPECT_EQ(queue.would_push("x"), RequestQueue::Push::kAccepted);
  EXPECT_EQ(queue.push(c), RequestQueue::Push::kAccepted);
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(take(queue), b);
  EXPECT_EQ(take(queue), c);
  EXPECT_EQ(take(queue), nullptr);
  queue.close();
  EXPECT_EQ(queue.would_push("x"), RequestQueue::Push::kClosed);
  EXPECT_EQ(queue.push(a), RequestQueue::Push::kClosed);
}

TEST(RequestQueue, AnswersDrawAloneWithoutASeedAndAlikeForEqualPromptsWithOne) {
  GenerationRequest request;
  request.prompts.assign(64, {1, 2});
  request.n = 2;
  request.seed = 7;
  std::set<uint64_t> seeds;
  for (size_t choice = 0; choice < request.choices(); ++choice) seeds.insert(request.answer(choice).seed);
  EXPECT_EQ(seeds.size(), 128u);
  request.options.seeded = true;
  EXPECT_EQ(request.answer(0).seed, 7u) << "the request's own";
  for (size_t choice = 2; choice < request.choices(); ++choice)
    EXPECT_EQ(request.answer(choice).seed, request.answer(choice % 2).seed);
  EXPECT_NE(request.answer(0).seed, request.answer(1).seed);
}

TEST(RequestQueue, MasksAreChargedToTheirTenant) {
  RequestQueue queue(64);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(queue.push(waiting("alice")), RequestQueue::Push::kAccepted);
    EXPECT_EQ(queue.push(waiting("bob")), RequestQueue::Push::kAccepted);
  }
  EXPECT_EQ(next(queue), "alice");
  EXPECT_EQ(next(queue), "bob");
  queue.masked("alice", 0.0015);  // charged like 1.5 generated tokens, which count 2 each
  EXPECT_EQ(next(queue) + next(queue) + next(queue), "bobbobbob");
  EXPECT_EQ(next(queue), "alice");
}

TEST(RequestQueue, OneTenantLeavesRoomForTheOthers) {
  RequestQueue queue(6, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.push(waiting("greedy")), RequestQueue::Push::kAccepted);
  EXPECT_EQ(queue.would_push("greedy"), RequestQueue::Push::kTenantFull);
  EXPECT_EQ(queue.push(waiting("greedy")), RequestQueue::Push::kTenantFull);
  for (const char* other : {"a", "b", "c"}) EXPECT_EQ(queue.push(waiting(other)), RequestQueue::Push::kAccepted);
  EXPECT_EQ(queue.push(waiting("d")), RequestQueue::Push::kFull);
  EXPECT_EQ(queue.push(waiting("greedy")), RequestQueue::Push::kFull) << "what is full for all is said first";
}

TEST(RequestQueue, TheLeastServedIsNextAndFirstComeFirstServedWithin) {
  RequestQueue queue(64);
  std::vector<std::shared_ptr<GenerationRequest>> flood;
  for (int i = 0; i < 6; ++i) queue.push(flood.emplace_back(waiting("a", 10)));
  for (int i = 0; i < 3; ++i) queue.push(waiting("b", 10));
  EXPECT_EQ(take(queue), flood[0]);
  EXPECT_EQ(next(queue), "b") << "it came later and was served less";
  EXPECT_EQ(take(queue), flood[1]);
  queue.generated("a", 1);
  EXPECT_EQ(next(queue), "b") << "20 tokens and one generated against 10";
  queue.generated("b", 4);  // b is now charged 20 + 4 · 2 = 28, a 20 + 1 · 2 = 22
  EXPECT_EQ(take(queue), flood[2]);
  EXPECT_EQ(next(queue), "b") << "28 against 32";
  EXPECT_EQ(take(queue), flood[3]);
}

TEST(RequestQueue, NobodySavesUpTurns) {
  for (const bool others_wait : {true, false}) {
    RequestQueue queue(64);
    queue.push(waiting("a", 10));
    EXPECT_EQ(next(queue), "a");
    queue.generated("a", 500);
    if (others_wait) queue.push(waiting("a", 10));
    std::map<std::string, int> served;
    for (int i = 0; i < 10; ++i) queue.push(waiting("late", 10));
    for (int i = 0; i < 10; ++i) queue.push(waiting("a", 10));
    for (int i = 0; i < 8; ++i) ++served[next(queue)];
    EXPECT_EQ(served["late"], 4) << "it is owed nothing for the time in which it asked for nothing";
  }
}

TEST(RequestQueue, ARequestTakesATurnForEveryAnswer) {
  RequestQueue queue(64);
  const auto many = waiting("many", 10);
  many->prompts.emplace_back(10, 2);
  many->n = 3;
  queue.push(many);
  queue.push(waiting("many", 10));
  for (int i = 0; i < 3; ++i) queue.push(waiting("one", 10));
  std::string order;
  for (RequestQueue::Next taken = queue.try_pop(); taken.request; taken = queue.try_pop()) {
    EXPECT_EQ(queue.more_of(*many), taken.request == many ? taken.choice < 5 : queue.size() > 1) << order;
    order += taken.request == many ? std::to_string(taken.choice) : taken.request->tenant.substr(0, 1);
  }
  EXPECT_EQ(order, "0o1o2o345m") << "between two answers of one request the other tenant has its turn";
  EXPECT_EQ(queue.size(), 0u);
  queue.push(many);
  EXPECT_EQ(queue.try_pop().choice, 0u);
  EXPECT_EQ(queue.size(), 1u) << "what has answers left still waits";
  many->channel->cancel();
  EXPECT_EQ(queue.try_pop().request, nullptr);
  const auto after = waiting("many");
  queue.push(after);
  EXPECT_EQ(queue.try_pop().choice, 0u) << "the next request of the tenant begins with its first answer";
}

// An answer whose prompt is in the cache is charged no prefill, but must be charged for leaving the queue. Otherwise a
// tenant with many such answers could start all of them first.
TEST(RequestQueue, WhatCostsNothingStillTakesTurns) {
  RequestQueue queue(64);
  for (int i = 0; i < 4; ++i) queue.push(waiting("cached"));
  for (int i = 0; i < 4; ++i) queue.push(waiting("other"));
  std::map<std::string, int> served;
  for (int i = 0; i < 4; ++i) ++served[queue.try_pop().request->tenant];
  EXPECT_EQ(served["cached"], 2);
}

// Two tenants always have requests waiting. What the two are charged must never differ by more than the bound of Sheng
// et al. (see deploy/serve/queue/queue.h): 2 · max(charge per prompt token · longest prompt, charge per generated token
// · tokens that a full batch generates).
TEST(RequestQueue, ServiceStaysWithinTheBoundOfThePaper) {
  constexpr int64_t kBatch = 4, kLongestPrompt = 300, kLongestAnswer = 40;
  constexpr int64_t kBound =
      2 * std::max(RequestQueue::kPromptWeight * kLongestPrompt, RequestQueue::kAnswerWeight * kBatch * kLongestAnswer);
  struct Job {
    std::string tenant;
    int64_t left;
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PhiloxStream random(seed, 5);
    RequestQueue queue(64);
    std::map<std::string, int64_t> served, requests;
    std::vector<Job> running;
    const auto refill = [&] {
      for (const char* tenant : {"short", "long"})
        while (queue.size() < 40 && queue.would_push(tenant) == RequestQueue::Push::kAccepted &&
               requests[tenant] < 20) {
          queue.push(waiting(tenant, tenant[0] == 's' ? 1 + random.below(10) : 1 + random.below(kLongestPrompt)));
          ++requests[tenant];
        }
    };
    for (int step = 0; step < 4000; ++step) {
      refill();
      while (running.size() < kBatch) {
        const auto request = take(queue);
        ASSERT_TRUE(request);
        --requests[request->tenant];
        served[request->tenant] += RequestQueue::kPromptWeight * static_cast<int64_t>(request->prompts[0].size());
        running.push_back(
            {request->tenant, 1 + static_cast<int64_t>(random.below(request->tenant[0] == 's' ? 5 : kLongestAnswer))});
        refill();
      }
      for (Job& job : running) {
        queue.generated(job.tenant, 1);
        served[job.tenant] += RequestQueue::kAnswerWeight;
        --job.left;
      }
      std::erase_if(running, [](const Job& job) { return job.left == 0; });
      ASSERT_LE(std::abs(served["short"] - served["long"]), kBound) << "step " << step;
    }
    EXPECT_GT(served["short"], 5000);
  }
}

TEST(RequestQueue, RetryAfterIsWhatWaitsByTheRateOfThoseThatFinished) {
  RequestQueue queue(10, 4);
  EXPECT_EQ(queue.retry_after("a"), 1) << "nothing is known";
  for (int i = 0; i < 4; ++i) queue.push(waiting("a"));
  for (const double now : {100, 102, 104}) queue.finished(now);
  EXPECT_EQ(queue.retry_after("a"), 8) << "four, one every two seconds";
  for (int i = 0; i < 2; ++i) queue.push(waiting("b"));
  EXPECT_EQ(queue.retry_after("a"), 12) << "tenants take turns: no more than all that wait";
  EXPECT_EQ(queue.retry_after("b"), 8);
  for (const char* other : {"c", "d", "e", "f"}) queue.push(waiting(other));
  EXPECT_EQ(queue.retry_after("new"), 20) << "the queue of all is full";
  for (double now = 104; now < 400; now += 9) queue.finished(now);
  EXPECT_EQ(queue.retry_after("a"), RequestQueue::kMaxRetrySeconds);
  while (take(queue)) {
  }
  queue.finished(500);
  queue.push(waiting("a"));
  queue.finished(90000);
  EXPECT_EQ(queue.retry_after("a"), 9) << "a day without work says nothing";
  for (int i = 0; i < 60; ++i) queue.finished(90000 + 0.01 * i);
  EXPECT_EQ(queue.retry_after("a"), 1);
}

}  // namespace
}  // namespace specdec::deploy
