#include "deploy/serve/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/base/manual_clock.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {
namespace {
struct Collected {
  std::string text;
  std::vector<int32_t> ids;
  std::optional<ChoiceResult> result;
};

// Collects the events in the request's channel, per choice.
std::vector<Collected> collect(const GenerationRequest& request) {
  std::vector<Collected> out(request.choices());
  for (const ChoiceEvent& e : request.channel->take()) {
    EXPECT_FALSE(out[e.choice].result) << "an event after the last";
    out[e.choice].text += e.text;
    out[e.choice].ids.insert(out[e.choice].ids.end(), e.token_ids.begin(), e.token_ids.end());
    if (e.result) out[e.choice].result = e.result;
  }
  return out;
}

std::shared_ptr<GenerationRequest> request(const std::string& prompt, uint64_t seed = 1, int64_t max_tokens = 200) {
  auto r = std::make_shared<GenerationRequest>();
  r->id = "req-" + prompt;
  r->prompts = {byte_tokenizer().encode(prompt, true)};
  r->options.max_tokens = max_tokens;
  r->options.eos_ids = {kEos};
  r->seed = seed;
  r->channel = std::make_shared<Channel>(1 << 20);
  return r;
}

struct Bench {
  explicit Bench(size_t max_batch = 4, size_t queue_limit = 64, const text::Tokenizer& tokenizer = byte_tokenizer())
      : queue(queue_limit) {
    SchedulerOptions options;
    options.max_batch = max_batch;
    const SchedulerParts parts{
        .runner = runner, .queue = queue, .tokenizer = tokenizer, .metrics = metrics, .clock = clock};
    scheduler = std::make_unique<Scheduler>(options, parts,
                                            [this](const FinishedAnswer& answer) { finished.push_back(answer); });
  }
  void run_all() {
    while (scheduler->turn()) {
    }
  }
  Collected answer(const std::shared_ptr<GenerationRequest>& r) {
    EXPECT_EQ(queue.push(r), RequestQueue::Push::kAccepted);
    run_all();
    return collect(*r).at(0);
  }

  FakeRunner runner;
  RequestQueue queue;
  Metrics metrics;
  specdec::testing::ManualClock clock;
  std::vector<FinishedAnswer> finished;
  std::unique_ptr<Scheduler> scheduler;
};

TEST(Scheduler, AnswersUpToEosWithoutShowingIt) {
  Bench b;
  const Collected c = b.answer(request("say:Hello, wörld"));
  EXPECT_EQ(c.text, "Hello, wörld");
  ASSERT_TRUE(c.result);
  EXPECT_EQ(c.result->reason, FinishReason::kStop);
  EXPECT_EQ(c.ids.back(), kEos);
  EXPECT_EQ(c.result->completion_tokens, static_cast<int64_t>(c.ids.size()));
  EXPECT_EQ(c.ids.size(), std::string("Hello, wörld").size() + 1);
  EXPECT_EQ(c.result->counts.emitted, c.result->completion_tokens);
  int64_t steps = 0;
  for (const int64_t n : c.result->accepted_histogram) steps += n;
  EXPECT_EQ(steps, c.result->counts.steps);
  EXPECT_EQ(b.runner.open(), 0u);
  ASSERT_EQ(b.finished.size(), 1u);
  EXPECT_EQ(b.finished[0].text, c.text);
}

TEST(Scheduler, MaxTokensCutsInTheMiddleOfAStep) {
  for (int64_t limit = 1; limit <= 12; ++limit)
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Bench b;
      const Collected c = b.answer(request("say:abcdefghijklmnop", seed, limit));
      EXPECT_EQ(c.text, std::string("abcdefghijklmnop").substr(0, static_cast<size_t>(limit)));
      EXPECT_EQ(c.result->reason, FinishReason::kLength);
      EXPECT_EQ(c.result->completion_tokens, limit);
    }
}

TEST(Scheduler, StopStringsAcrossTokenBorders) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Bench b;
    auto r = request("say:one two END three", seed);
    r->stop = {"END", "zzz"};
    const Collected c = b.answer(r);
    EXPECT_EQ(c.text, "one two ");
    EXPECT_EQ(c.result->reason, FinishReason::kStop);
    EXPECT_TRUE(c.result->ended_by_request);
    EXPECT_EQ(c.result->completion_tokens, 11) << "the stop string's tokens count";
  }
  Bench b;
  auto r = request("say:almost EN");
  r->stop = {"END"};
  const Collected almost = b.answer(r);
  EXPECT_EQ(almost.text, "almost EN") << "held back text is shown at the end";
  EXPECT_FALSE(almost.result->ended_by_request);
  auto split = request("say:a€b");
  split->stop = {"€"};
  EXPECT_EQ(b.answer(split).text, "a") << "a stop string in the middle of a character's bytes";
}

// A stop token of the request ends the answer like EOS, but its text is shown only if the request asks for that.
TEST(Scheduler, AStopTokenEndsTheAnswerAndIsShownOnlyIfAskedFor) {
  for (const bool include : {false, true})
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Bench b;
      auto r = request("say:one.two", seed);
      r->options.eos_ids = {kEos, '.', 'z'};
      r->stop_tokens = {'z', '.'};
      r->include_stop = include;
      const Collected c = b.answer(r);
      EXPECT_EQ(c.text, include ? "one." : "one");
      EXPECT_EQ(c.result->reason, FinishReason::kStop);
      EXPECT_EQ(c.ids, (std::vector<int32_t>{'o', 'n', 'e', '.'}));
      EXPECT_TRUE(c.result->ended_by_request);
      auto whole = request("say:é", seed);  // EOS has no text to show
      whole->include_stop = include;
      whole->stop_tokens = {'.'};
      const Collected ended = b.answer(whole);
      EXPECT_EQ(ended.text, "é");
      EXPECT_FALSE(ended.result->ended_by_request) << "the model's own EOS";
    }
}

TEST(Scheduler, StopStringsAreIncludedAndLateOnes) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Bench b;
    auto r = request("say:one END two END three", seed);
    r->stop = {"END"};
    r->include_stop = true;
    EXPECT_EQ(b.answer(r).text, "one END");
    r = request("say:one END two END three", seed);
    r->stop = {"END"};
    r->min_tokens = 7;  // the first END completes with token 7, which is too early
    const Collected late = b.answer(r);
    EXPECT_EQ(late.text, "one END two ");
    EXPECT_EQ(late.result->reason, FinishReason::kStop);
    r->min_tokens = 6;
    r->channel = std::make_shared<Channel>(1 << 20);
    EXPECT_EQ(b.answer(r).text, "one ") << "it is complete only after the minimum";
    r = request("say:one END", seed, 7);
    r->stop = {"END"};
    r->min_tokens = 7;
    const Collected never = b.answer(r);
    EXPECT_EQ(never.text, "one END");
    EXPECT_EQ(never.result->reason, FinishReason::kLength);
  }
}

// The decoder strips the first space of a text. The answer continues its prompt, so the answer's first space must stay.
TEST(Scheduler, TheFirstSpaceOfAnAnswerIsShownRecordedAndStoppedOn) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Bench b(4, 64, space_stripping_tokenizer());
    const Collected c = b.answer(request("say: time, there", seed));
    EXPECT_EQ(c.text, " time, there");
    ASSERT_EQ(b.finished.size(), 1u);
    EXPECT_EQ(b.finished[0].text, " time, there");
    auto stopped = request("say: time, there", seed);
    stopped->stop = {" ti"};
    const Collected none = b.answer(stopped);
    EXPECT_EQ(none.text, "");
    EXPECT_EQ(none.result->reason, FinishReason::kStop);
    EXPECT_EQ(none.result->completion_tokens, 3);
  }
}

TEST(Scheduler, AnUnfinishedCharacterIsNeverShownInHalves) {
  Bench b;
  auto r = request("say:aé", 0, 2);  // cut after the first of the two bytes of é
  ASSERT_EQ(b.queue.push(r), RequestQueue::Push::kAccepted);
  b.run_all();
  std::string text;
  for (const ChoiceEvent& e : r->channel->take()) text += e.text;
  EXPECT_EQ(text, "a\xEF\xBF\xBD");
}

TEST(Scheduler, IgnoreEosGoesOnToTheLimit) {
  Bench b;
  auto r = request("say:ab", 0, 20);
  r->options.eos_ids = {};
  const Collected c = b.answer(r);
  EXPECT_EQ(c.result->reason, FinishReason::kLength);
  EXPECT_EQ(c.result->completion_tokens, 20);
}

TEST(Scheduler, BatchesUpToTheLimitAndStartsTheOthersLater) {
  Bench b(3);
  std::vector<std::shared_ptr<GenerationRequest>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(request("say:answer " + std::to_string(i), static_cast<uint64_t>(i)));
    b.queue.push(all.back());
  }
  b.run_all();
  EXPECT_EQ(b.runner.largest_batch(), 3u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(collect(*all[static_cast<size_t>(i)])[0].text, "answer " + std::to_string(i));
  EXPECT_EQ(b.runner.finished(), 8u);
}

TEST(Scheduler, SeveralAnswersHaveDerivedSeedsAndTheFirstKeepsItsOwn) {
  Bench b(8);
  auto many = request("poem", 42);
  many->n = 4;
  b.queue.push(many);
  b.run_all();
  const auto answers = collect(*many);
  EXPECT_EQ(answers[0].text, b.answer(request("poem", 42)).text);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_NE(answers[i].text, answers[0].text);
    EXPECT_EQ(answers[i].text, b.answer(request("poem", choice_seed(42, i))).text);
  }
}

TEST(Scheduler, PromptsOfOneRequestKeepTheirOrder) {
  Bench b(2);
  auto r = request("say:first", 5);
  r->prompts.push_back(byte_tokenizer().encode("say:second", true));
  r->n = 2;
  b.queue.push(r);
  b.run_all();
  const auto answers = collect(*r);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[0].text + answers[1].text, "firstfirst");
  EXPECT_EQ(answers[2].text + answers[3].text, "secondsecond");
}

TEST(Scheduler, AFailingSequenceFailsAlone) {
  Bench b(4);
  std::vector<std::shared_ptr<GenerationRequest>> all = {request("say:good one"), request("die:start"),
                                                         request("die:step"), request("say:good two")};
  for (const auto& r : all) b.queue.push(r);
  b.run_all();
  EXPECT_EQ(collect(*all[0])[0].text, "good one");
  EXPECT_EQ(collect(*all[3])[0].text, "good two");
  for (const size_t i : {1u, 2u}) EXPECT_EQ(collect(*all[i])[0].result->reason, FinishReason::kFailed);
  EXPECT_EQ(b.runner.open(), 0u);
  EXPECT_EQ(b.finished.size(), 2u) << "failed answers are not recorded";
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 0);
}

// A client repeats a request that always fails. Each repetition must be answered; none counts as a device failure.
TEST(Scheduler, FailuresOfSingleSequencesAreNotTheDevices) {
  Bench b(4);
  std::vector<std::shared_ptr<GenerationRequest>> all;
  for (int i = 0; i < 40; ++i) b.queue.push(all.emplace_back(request(i % 2 ? "die:step" : "die:start")));
  b.run_all();
  for (const auto& r : all) EXPECT_EQ(collect(*r)[0].result->reason, FinishReason::kFailed);
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 0);
}

TEST(Scheduler, FailuresOfTheDeviceAreCountedUntilAStepSucceeds) {
  Bench b(1);
  for (int i = 0; i < 3; ++i) b.queue.push(request("die:device"));
  b.run_all();
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 3);
  for (int i = 0; i < 2; ++i) b.queue.push(request("die:pass"));
  b.run_all();
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 5);
  EXPECT_EQ(b.answer(request("say:fine")).text, "fine");
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 0);
}

TEST(Scheduler, AStepThatThrowsFailsItsBatchAndTheEngineGoesOn) {
  Bench b(2);
  auto bad = request("say:lost");
  b.queue.push(bad);
  b.runner.throw_in_step(true);
  b.run_all();
  EXPECT_EQ(collect(*bad)[0].result->reason, FinishReason::kFailed);
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 1);
  b.runner.throw_in_step(false);
  EXPECT_EQ(b.answer(request("say:fine")).text, "fine");
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 0);
}

TEST(Scheduler, CancelledWorkLeavesBeforeTheNextStep) {
  Bench b(2);
  auto endless = request("loop", 1, 1000000), other = request("say:still here");
  auto queued = request("say:never");
  for (const auto& r : {endless, other, queued}) b.queue.push(r);
  ASSERT_TRUE(b.scheduler->turn());
  endless->channel->cancel();
  queued->channel->cancel();
  b.run_all();
  EXPECT_EQ(collect(*endless)[0].result->reason, FinishReason::kCancelled);
  EXPECT_EQ(collect(*other)[0].text, "still here");
  EXPECT_TRUE(queued->channel->take().empty()) << "cancelled in the queue: never started";
  EXPECT_EQ(b.runner.open(), 0u);
}

TEST(Scheduler, AClientThatDoesNotReadIsCancelledWhenItsTextPilesUp) {
  Bench b(1);
  auto r = request("loop", 1, 1000000);
  r->channel = std::make_shared<Channel>(500);
  b.queue.push(r);
  b.run_all();
  EXPECT_EQ(collect(*r)[0].result->reason, FinishReason::kCancelled);
}

TEST(Scheduler, LongPromptsDoNotStarveWhatRuns) {
  Bench b(4);
  auto first = request("loop", 1, 50);
  b.queue.push(first);
  ASSERT_TRUE(b.scheduler->turn());
  std::vector<std::shared_ptr<GenerationRequest>> longer;
  for (const size_t length : {400, 3000, 400})
    b.queue.push(longer.emplace_back(request("say:" + std::string(length, 'x'), 1, 5)));
  const size_t before = b.runner.steps();
  for (size_t turns = 1; b.queue.size() > 0 || b.scheduler->running() > 1; ++turns) {
    ASSERT_TRUE(b.scheduler->turn());
    ASSERT_EQ(b.runner.steps(), before + turns) << "what runs is in every turn";
  }
  EXPECT_EQ(b.runner.most_read(), 512) << "the budget, over all that join";
  for (const auto& r : longer) EXPECT_EQ(collect(*r)[0].text, "xxxxx");
  b.run_all();
  EXPECT_EQ(collect(*first)[0].result->completion_tokens, 50);
}

// When the caches are full, the newest sequence is preempted. It is prefilled again when another sequence has ended,
// before any new sequence starts.
TEST(Scheduler, WithoutRoomTheLastGivesWayAndComesBackFirst) {
  Bench b(4);
  b.runner.limit_room(100);
  std::vector<std::shared_ptr<GenerationRequest>> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(request(std::string(10, static_cast<char>('a' + i)), 1, 60));
    all.back()->options.eos_ids = {};
    b.queue.push(all.back());
  }
  b.run_all();
  ASSERT_EQ(b.finished.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(b.finished[i].request, all[i]) << "what came first is never held up by what came later";
  EXPECT_GT(b.runner.preempted(), 3u);
  const std::string metrics = b.metrics.text(0, 0, 0);
  EXPECT_NE(metrics.find("specdec:num_preemptions_total " + std::to_string(b.runner.preempted())), std::string::npos)
      << metrics;
  EXPECT_NE(metrics.find("specdec:resumed_tokens_total " + std::to_string(b.runner.reread()) + "\n"), std::string::npos)
      << metrics;
  EXPECT_GT(b.runner.reread(), 30);
  EXPECT_EQ(b.runner.overtaken(), 0u);
  EXPECT_NE(metrics.find("specdec:prompt_tokens_total 66\n"), std::string::npos)
      << "BOS and ten letters each, read again or not";
  for (const auto& r : all) {
    Bench alone;
    auto copy = std::make_shared<GenerationRequest>(*r);
    copy->channel = std::make_shared<Channel>(1 << 20);
    EXPECT_EQ(collect(*r)[0].text, alone.answer(copy).text);
  }
}

TEST(Scheduler, WhatDoesNotFitAloneFailsAndTheOthersGoOn) {
  Bench b(4);
  b.runner.limit_room(50);
  auto prompt = request(std::string(80, 'p')), answer = request("loop", 1, 200), fine = request("say:fine");
  for (const auto& r : {prompt, answer, fine}) b.queue.push(r);
  b.run_all();
  for (const auto& r : {prompt, answer}) {
    const Collected c = collect(*r)[0];
    ASSERT_TRUE(c.result);
    EXPECT_EQ(c.result->reason, FinishReason::kNoRoom);
  }
  EXPECT_EQ(collect(*fine)[0].text, "fine");
  EXPECT_EQ(b.scheduler->failures_in_a_row(), 0) << "the device is well";
  EXPECT_EQ(b.runner.open(), 0u);
}

TEST(Scheduler, TheSuspendedCanBeCancelledAndDrained) {
  for (const bool drained : {false, true}) {
    Bench b(4);
    b.runner.limit_room(40);
    std::vector<std::shared_ptr<GenerationRequest>> all;
    for (int i = 0; i < 3; ++i) b.queue.push(all.emplace_back(request("loop" + std::to_string(i), 1, 30)));
    while (b.runner.preempted() == 0) ASSERT_TRUE(b.scheduler->turn());
    if (drained) {
      b.scheduler->stop_now();
      b.scheduler->run();
    } else {
      for (const auto& r : all) r->channel->cancel();
      b.run_all();
    }
    for (const auto& r : all)
      EXPECT_EQ(collect(*r)[0].result->reason, drained ? FinishReason::kDrained : FinishReason::kCancelled);
    EXPECT_EQ(b.runner.open(), 0u);
  }
}

TEST(Scheduler, RunAnswersWhatIsQueuedAfterCloseAndEnds) {
  Bench b(2);
  std::vector<std::shared_ptr<GenerationRequest>> all;
  for (int i = 0; i < 5; ++i) all.push_back(request("say:" + std::to_string(i)));
  std::thread engine([&] { b.scheduler->run(); });
  for (const auto& r : all) EXPECT_EQ(b.queue.push(r), RequestQueue::Push::kAccepted);
  b.queue.close();
  EXPECT_EQ(b.queue.push(request("say:late")), RequestQueue::Push::kClosed);
  engine.join();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(collect(*all[static_cast<size_t>(i)])[0].text, std::to_string(i));
}

TEST(Scheduler, AbortEndsEverythingAsDrained) {
  Bench b(2);
  std::vector<std::shared_ptr<GenerationRequest>> all;
  for (int i = 0; i < 4; ++i) all.push_back(request("loop", 1, 1 << 30));
  all[1]->n = 3;  // only some of its three answers are started
  for (const auto& r : all) r->channel = std::make_shared<Channel>(size_t{1} << 40);
  for (const auto& r : all) b.queue.push(r);
  std::thread engine([&] { b.scheduler->run(); });
  while (b.runner.steps() == 0) std::this_thread::yield();
  b.scheduler->stop_now();
  engine.join();
  for (const auto& r : all)
    for (const Collected& c : collect(*r)) {
      ASSERT_TRUE(c.result);
      EXPECT_EQ(c.result->reason, FinishReason::kDrained);
    }
  EXPECT_EQ(b.runner.open(), 0u);
}

// Several threads push random mixes of requests and cancellations, with random batch sizes. Every request must get the
// answer that it gets when it runs alone.
TEST(Scheduler, ConcurrentIsAlone) {
  PhiloxStream random(11, 0);
  for (int round = 0; round < 6; ++round) {
    std::vector<std::shared_ptr<GenerationRequest>> all;
    for (int i = 0; i < 40; ++i) {
      auto r = request("prompt " + std::to_string(random.below(5)), random.below(6),
                       static_cast<int64_t>(1 + random.below(60)));
      r->n = static_cast<int64_t>(1 + random.below(3));
      r->options.sampling.temperature = static_cast<double>(random.below(2));
      if (random.below(2)) r->stop = {std::string(1, static_cast<char>('a' + random.below(26))), "qu"};
      all.push_back(r);
    }
    std::vector<std::vector<std::string>> alone;
    for (const auto& r : all) {
      auto copy = std::make_shared<GenerationRequest>(*r);
      copy->channel = std::make_shared<Channel>(1 << 20);
      Bench b(1);
      b.queue.push(copy);
      b.run_all();
      alone.emplace_back();
      for (const Collected& c : collect(*copy)) alone.back().push_back(c.text + "|" + to_string(c.result->reason));
    }
    Bench b(1 + random.below(7));
    std::thread engine([&] { b.scheduler->run(); });
    std::vector<std::thread> clients;
    for (size_t t = 0; t < 4; ++t)
      clients.emplace_back([&, t] {
        for (size_t i = t; i < all.size(); i += 4) {
          EXPECT_EQ(b.queue.push(all[i]), RequestQueue::Push::kAccepted);
          if (i % 7 == 3) all[i]->channel->cancel();
        }
      });
    for (std::thread& client : clients) client.join();
    b.queue.close();
    engine.join();
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % 7 == 3) continue;
      const auto answers = collect(*all[i]);
      for (size_t c = 0; c < answers.size(); ++c) {
        ASSERT_TRUE(answers[c].result);
        EXPECT_EQ(answers[c].text + "|" + to_string(answers[c].result->reason), alone[i][c]);
      }
    }
    EXPECT_EQ(b.runner.open(), 0u);
  }
}

TEST(Scheduler, PromptsAreSharedWithinATenantOnly) {
  Bench b;
  for (const char* tenant : {"alice", "bob", "alice", ""}) {
    const auto r = request("say:x");
    r->tenant = tenant;
    b.answer(r);
  }
  const std::vector<uint64_t> of = b.runner.tenants();
  ASSERT_EQ(of.size(), 4u);
  EXPECT_EQ(of[0], of[2]);
  EXPECT_EQ(std::set(of.begin(), of.end()).size(), 3u);
}

}  // namespace
}  // namespace specdec::deploy
