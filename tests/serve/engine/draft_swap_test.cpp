// Tests replacing the draft of a running server: no text may change, no request may fail, and the figures of a trial
// must equal directly computed ones.
#include "deploy/serve/engine/draft_swap.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <condition_variable>
#include <set>
#include <thread>

#include "base/statistics.h"
#include "tests/serve/engine/toy_server.h"

namespace specdec::deploy {
namespace {

using decode::toy::Model;
using decode::toy::Tokens;

// A loader of toy drafts by name: "good" equals the target, "random" differs from it, "narrow" has another vocabulary,
// and "dying" throws in every pass.
struct Shelf {
  NamedDraft load(const std::string& name) {
    if (name == "missing") throw Error(ErrorKind::kModel, "missing: no such model");
    const auto model = std::make_shared<Model>(name == "narrow" ? 5 : kToyVocab,
                                               toy_logits(name == "good" ? 21 : 77, name == "random" ? 6 : 1.5));
    if (name == "dying") model->before_pass = [](auto) { throw Error(ErrorKind::kDevice, "dying"); };
    const std::lock_guard lock(mutex);
    loaded[name] = model;
    return {name, name + "-fingerprint", model};
  }
  bool alive(const std::string& name) {
    const std::lock_guard lock(mutex);
    return !loaded[name].expired();
  }
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Model>> loaded;
};

struct SwapServer : ToyServer {
  explicit SwapServer(Shelf& shelf, ToyOptions options = {.k = 3, .coupled_seeds = true}) : ToyServer(options) {
    drafts().set_loader([&shelf](const std::string& name) { return shelf.load(name); });
  }
};

Json request(int i) {
  Json body = {{"prompt", {kToyBos, i % 4, i / 4 % 4}},
               {"max_tokens", 20},
               {"seed", i},
               {"return_token_ids", true},
               {"ignore_eos", true}};
  if (i % 3 == 0) body["temperature"] = 0;
  return body;
}

double accepted_of(SwapServer& server, int requests) {
  int64_t drafted = 0, accepted = 0;
  for (int i = 0; i < requests; ++i) {
    Json body = request(i);
    body["include_metrics"] = true;
    const Json figures = server.complete(body)["metrics"]["speculative_decoding"];
    drafted += figures["num_draft_tokens"].get<int64_t>();
    accepted += figures["num_accepted_draft_tokens"].get<int64_t>();
  }
  return static_cast<double>(accepted) / static_cast<double>(drafted);
}

// Blocks the target's pass number `pass`, counted from construction, until open() is called.
struct Gate {
  explicit Gate(Model& model, int64_t pass) : model_(model) {
    model.before_pass = [this, left = pass](auto) mutable {
      std::unique_lock lock(mutex_);
      if (--left != 0) return;
      reached_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
    };
  }
  ~Gate() { model_.before_pass = {}; }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  Model& model_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false, open_ = false;
};

TEST(DraftSwap, ARequestInTheMiddleKeepsItsTextAndItsDraft) {
  Shelf shelf;
  for (const int i : {1, 3}) {  // request 1 is seeded, request 3 is greedy
    ToyServer plain({.k = 3, .coupled_seeds = true});
    const Json expected = plain.complete(request(i))["choices"];
    SwapServer server(shelf);
    server.ordered({{"action", "load"}, {"draft", "good"}});
    server.ordered({{"action", "promote"}});
    Json found;
    Gate gate(server.target, 4);
    std::thread client([&] { found = server.complete(request(i))["choices"]; });
    gate.wait();
    server.ordered({{"action", "load"}, {"draft", "random"}, {"score", 1}});
    EXPECT_EQ(server.ordered({{"action", "promote"}})["former"], 1);
    EXPECT_TRUE(shelf.alive("good")) << "the request has it still";
    EXPECT_EQ(server.draft_status()["serving"]["id"], "random-fingerprint");
    gate.open();
    client.join();
    EXPECT_EQ(found, expected);
    server.complete(request(2));  // a step of this request frees the first draft
    EXPECT_FALSE(shelf.alive("good"));
    EXPECT_EQ(server.draft_status()["former"], 0);
  }
}

TEST(DraftSwap, NoneOfManyRequestsFailsOrChangesWhileDraftsComeAndGo) {
  constexpr int kRequests = 240, kClients = 8;
  std::vector<Json> expected(kRequests), found(kRequests);
  {
    ToyServer plain({.k = 3, .coupled_seeds = true});
    for (int i = 0; i < kRequests; ++i) expected[static_cast<size_t>(i)] = plain.complete(request(i))["choices"];
  }
  Shelf shelf;
  SwapServer server(shelf);
  std::atomic<int> next{0}, answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c)
    clients.emplace_back([&] {
      Client client(server.port());
      for (int i = next++; i < kRequests; i = next++) {
        client.send(post("/v1/completions", request(i).dump()));
        const Response r = client.read();
        EXPECT_EQ(r.status, 200) << r.body;
        found[static_cast<size_t>(i)] = r.status == 200 ? Json::parse(r.body)["choices"] : Json();
        ++answered;
      }
    });
  const std::vector<std::string> names = {"good", "dying", "random"};
  int orders = 0;
  for (; answered < kRequests || orders < 12; ++orders) {
    server.ordered(
        {{"action", "load"}, {"draft", names[static_cast<size_t>(orders) % 3]}, {"score", 0.5}, {"serve", 0.3}});
    server.ordered({{"action", "share"}, {"serve", 0.6}});
    server.ordered({{"action", orders % 2 == 0 ? "promote" : "drop"}});
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < kRequests; ++i)
    EXPECT_EQ(found[i], expected[i]) << "request " << i << " of " << orders << " swaps";
}

// The request options of a test.
struct Asked {
  SamplingOptions sampling;
  float bias = 0;  // logit bias of token 1
  std::vector<float> distribution(uint64_t seed, double spread, std::span<const int32_t> context) const {
    std::vector<float> logits(kToyVocab);
    std::vector<int32_t> ids;
    toy_logits(seed, spread)(context, logits);
    logits[1] += bias;
    decode::distribution(logits, sampling, logits, ids);
    return logits;
  }
};

// The overlaps of one answer, by position, with the serving draft and the candidate.
struct PairedOverlaps {
  std::vector<double> serving, candidate;
};

// Answers one request through the runner. Checks the candidate's overlaps against overlaps computed from the toy
// models' distributions.
PairedOverlaps answer_beside_tables(StepperRunner& runner, uint64_t number, const Asked& asked) {
  PairedOverlaps overlaps;
  Tokens text = {kToyBos, static_cast<int32_t>(number % 4)};
  SequenceSpec spec;
  spec.request.prompt = text;
  spec.request.options.max_tokens = 30;
  spec.request.options.sampling = asked.sampling;
  spec.request.seed = number;
  spec.conversation = "conversation " + std::to_string(number);
  if (asked.bias != 0) {
    decode::LogitsProcessors biased;
    biased.bias = {{1, asked.bias}};
    spec.request.options.rules = std::make_shared<decode::LogitsProcessors>(biased);
  }
  const SequenceKey key = runner.start(spec);
  while (!runner.prefill(key, 512).whole) {
  }
  for (int64_t left = spec.request.options.max_tokens; left > 0;) {
    StepResult result;
    runner.step({&key, 1}, {&result, 1});
    EXPECT_FALSE(result.failed);
    EXPECT_EQ(result.shadow_overlaps.size(), result.overlaps.size());
    if (::testing::Test::HasFailure()) break;
    for (size_t at = 0; at < result.emitted.size(); text.push_back(result.emitted[at++])) {
      if (at >= result.overlaps.size()) continue;
      const double direct = decode::overlap(asked.distribution(21, 1.5, text), asked.distribution(77, 6, text));
      EXPECT_NEAR(result.shadow_overlaps[at], direct, 1e-5);
      overlaps.serving.push_back(result.overlaps[at]);
      overlaps.candidate.push_back(result.shadow_overlaps[at]);
    }
    left -= static_cast<int64_t>(result.emitted.size());
  }
  runner.finish(key);
  return overlaps;
}

// Answers requests one after another. Checks the overlaps of both drafts against the toy models' distributions.
void compare_with_tables(const StepperRunnerOptions& options, const Asked& asked) {
  Model target(kToyVocab, toy_logits(21)), draft(kToyVocab, toy_logits(22));
  Shelf shelf;
  SystemClock clock;
  StepperRunner runner(target, &draft, options, clock);
  runner.drafts().set_loader([&shelf](const std::string& name) { return shelf.load(name); });
  std::atomic<bool> loaded{false};
  runner.drafts().order({DraftOrder::Action::kLoad, "random", 1.0, 0.0},
                        [&](const std::optional<Error>& e) { loaded = !e; });
  while (!loaded) std::this_thread::yield();
  std::vector<double> serving, candidate;
  int64_t positions = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    const PairedOverlaps overlaps = answer_beside_tables(runner, i, asked);
    ASSERT_FALSE(overlaps.serving.empty());
    positions += static_cast<int64_t>(overlaps.serving.size());
    serving.push_back(mean(overlaps.serving));
    candidate.push_back(mean(overlaps.candidate));
  }
  const Json paired = runner.drafts().status()["paired"];
  EXPECT_EQ(paired["conversations"], 12);
  EXPECT_EQ(paired["positions"], positions);
  EXPECT_NEAR(paired["serving"]["value"].get<double>(), mean(serving), 1e-9);
  EXPECT_NEAR(paired["candidate"]["value"].get<double>(), mean(candidate), 1e-9);
  EXPECT_NEAR(paired["difference"]["value"].get<double>(), mean(candidate) - mean(serving), 1e-9);
  EXPECT_LE(paired["difference"]["ci"][0].get<double>(), mean(candidate) - mean(serving));
  EXPECT_GE(paired["difference"]["ci"][1].get<double>(), mean(candidate) - mean(serving));
  runner.drafts().order({DraftOrder::Action::kDrop, "", {}, {}},
                        [](const std::optional<Error>& e) { EXPECT_FALSE(e); });
  EXPECT_FALSE(shelf.alive("random"));
  EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
}

TEST(DraftSwap, PairedFiguresAreThoseOfADirectComputation) {
  const SamplingOptions whole{}, cut{.temperature = 0.8, .top_k = 4}, greedy{.temperature = 0};
  for (const SamplingOptions& sampling : {whole, cut, greedy})
    for (const float bias : {0.f, 1.5f}) {
      for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget, VerifyRule::kCoupled})
        compare_with_tables({{4, 8, rule}, 0.7}, {sampling, bias});
      compare_with_tables({{3, 8, VerifyRule::kToken, {2, 2, 1}}, 0.7}, {sampling, bias});
    }
}

TEST(DraftSwap, AGoodDraftForARandomOneRaisesAcceptance) {
  Shelf shelf;
  SwapServer server(shelf, {.k = 3});
  server.ordered({{"action", "load"}, {"draft", "random"}});
  server.ordered({{"action", "promote"}});
  const double before = accepted_of(server, 30);
  server.ordered({{"action", "load"}, {"draft", "good"}, {"score", 1}});
  EXPECT_EQ(server.draft_status()["paired"]["conversations"], 0);
  for (int i = 0; i < 60; ++i) server.complete(request(i));
  const Json status = server.draft_status();
  EXPECT_EQ(status["state"], "canary");
  EXPECT_EQ(status["paired"]["conversations"], 60);
  EXPECT_NEAR(status["paired"]["candidate"]["value"].get<double>(), 1, 1e-6) << "it is the target";
  EXPECT_GT(status["paired"]["difference"]["ci"][0].get<double>(), 0) << status.dump();
  EXPECT_EQ(server.ordered({{"action", "promote"}})["state"], "promoted");
  const double after = accepted_of(server, 30);
  EXPECT_EQ(after, 1) << "every draft of the target itself is kept";
  EXPECT_LT(before, 0.7);
}

TEST(DraftSwap, OneTenantLeavesScoresToTheOthers) {
  Shelf shelf;
  SwapServer server(shelf);
  server.ordered({{"action", "load"}, {"draft", "good"}, {"score", 1}});
  DraftSwap& drafts = server.drafts();
  drafts.share_among_tenants(2);
  const auto scores = [&](const std::string& conversation, uint64_t tenant) {
    const DraftSwap::Pick pick = drafts.pick(conversation, tenant);
    if (pick.shadow) drafts.scored(conversation, tenant, pick, std::array{0.5}, std::array{0.5});
    return pick.shadow != nullptr;
  };
  std::string scored;
  for (int i = 0; i < 5; ++i) scored += scores("loud " + std::to_string(i), 7) ? "y" : "n";
  EXPECT_EQ(scored, "yynnn");
  EXPECT_TRUE(scores("loud 1", 7)) << "a conversation that has a place keeps it";
  EXPECT_TRUE(scores("other", 8));
  EXPECT_EQ(server.draft_status()["paired"]["conversations"], 3);
}

TEST(DraftSwap, SharesSendWholeConversationsToTheCandidate) {
  Shelf shelf;
  SwapServer server(shelf);
  server.ordered({{"action", "load"}, {"draft", "good"}, {"score", 0}, {"serve", 0.5}});
  const auto answers = [&] { return server.draft_status()["candidate"]["answers"].get<int64_t>(); };
  int64_t conversations = 0;
  for (int i = 0; i < 40; ++i) {
    Json body = request(i);
    body["metadata"] = {{"conversation_id", "c" + std::to_string(i)}};
    const int64_t before = answers();
    for (int turn = 0; turn < 3; ++turn) server.complete(body);
    EXPECT_TRUE(answers() == before || answers() == before + 3) << "a conversation was split";
    conversations += answers() > before;
  }
  EXPECT_GT(conversations, 4);  // conversations are drawn at random; about 20 of the 40 are expected
  EXPECT_LT(conversations, 36);
  EXPECT_EQ(server.draft_status()["paired"]["conversations"], 0);
  const int64_t before = answers();
  server.ordered({{"action", "share"}, {"serve", 1}});
  for (int i = 0; i < 5; ++i) server.complete(request(i));
  EXPECT_EQ(answers(), before + 5);
  Client client(server.port());
  client.send(get("/metrics"));
  const std::string metrics = client.read().body;
  EXPECT_NE(metrics.find("specdec:draft_reached_tokens_total{draft=\"good-fingerp\",role=\"serve\"}"),
            std::string::npos)
      << metrics;
  EXPECT_EQ(metrics.find("role=\"shadow\""), std::string::npos);
  EXPECT_NE(metrics.find("specdec:info{draft=\"\""), std::string::npos) << "on trial only";
  server.ordered({{"action", "promote"}});
  client.send(get("/metrics"));
  EXPECT_NE(client.read().body.find("specdec:info{draft=\"good-fingerprint\""), std::string::npos);
}

TEST(DraftSwap, WhatCannotServeIsRefusedAndNothingChanges) {
  Shelf shelf;
  SwapServer server(shelf);
  const Json before = server.complete(request(1))["choices"];
  const auto refused = [&](const Json& order, int status, const std::string& reason) {
    const Response r = server.admin(order);
    EXPECT_EQ(r.status, status) << order.dump() << " → " << r.body;
    EXPECT_NE(r.body.find(reason), std::string::npos) << r.body;
  };
  refused({{"action", "load"}, {"draft", "missing"}}, 409, "no such model");
  EXPECT_EQ(server.draft_status()["state"], "refused");
  EXPECT_EQ(server.draft_status()["last"]["reason"], "missing: no such model");
  refused({{"action", "load"}, {"draft", "narrow"}}, 409, "the draft has 5 tokens, the target 6");
  EXPECT_FALSE(shelf.alive("narrow"));
  for (const char* action : {"share", "promote", "drop"}) refused({{"action", action}}, 409, "no draft is on trial");
  refused({{"action", "swap"}}, 400, "expected load, share, promote or drop");
  refused({{"action", "load"}}, 400, "draft");
  refused({{"action", "load"}, {"draft", "good"}, {"serve", 1.5}}, 400, "serve");
  refused({{"action", "load"}, {"draft", "good"}, {"part", 1}}, 400, "unknown key 'part'");
  refused({{"action", "promote"}, {"draft", "good"}}, 400, "draft does not go with promote");
  refused({{"action", "drop"}, {"serve", 0.5}}, 400, "serve does not go with drop");
  refused(Json::array(), 400, "expected a JSON object");
  EXPECT_EQ(server.draft_status()["candidate"], Json());
  server.ordered({{"action", "load"}, {"draft", "good"}});
  refused({{"action", "load"}, {"draft", "random"}}, 409, "good is on trial");
  EXPECT_EQ(server.draft_status()["candidate"]["name"], "good");
  server.ordered({{"action", "drop"}});
  EXPECT_EQ(server.draft_status()["state"], "dropped");
  EXPECT_FALSE(shelf.alive("good"));
  EXPECT_EQ(server.complete(request(1))["choices"], before);
}

TEST(DraftSwap, ACandidateThatDiesCostsNoRequestAnything) {
  Shelf shelf;
  SwapServer server(shelf);
  const Json before = server.complete(request(1))["choices"];
  server.ordered({{"action", "load"}, {"draft", "dying"}, {"score", 1}});
  EXPECT_EQ(server.complete(request(1))["choices"], before);
  EXPECT_EQ(server.draft_status()["paired"]["conversations"], 0);
  server.ordered({{"action", "share"}, {"serve", 1}});
  EXPECT_EQ(server.complete(request(1))["choices"], before);
}

// A recorded reject (a drafted token that the target refused) must be at a position where the answer has another token,
// with the target's log-probabilities at that position.
TEST(Rejects, AreWhatTheTargetRefusedAndWhere) {
  const Scratch records;
  std::map<std::string, Tokens> answers;  // conversation → tokens
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kCoupled}) {
    ToyServer server({.k = 3, .rule = rule, .record_dir = records.root()});
    for (int i = 0; i < 12; ++i) {
      Json body = request(i);
      const std::string name = "c" + std::to_string(i) + "-" + std::to_string(static_cast<int>(rule));
      body["metadata"] = {{"conversation_id", name}};
      body.erase("ignore_eos");
      answers[name] = {kToyBos, i % 4, i / 4 % 4};
      const Tokens answer = server.complete(body)["choices"][0]["token_ids"].get<Tokens>();
      answers[name].insert(answers[name].end(), answer.begin(), answer.end());
    }
  }
  int found = 0, coupled = 0;
  for (const auto& entry : fs::directory_iterator(records / "rejects")) {
    std::istringstream file(entry.path().extension() == ".jsonl" ? specdec::testing::get(entry.path()) : "");
    for (std::string line; std::getline(file, line);) {
      const RejectRecord record = reject_record_from_line(line, "rejects");
      const Tokens& text = answers.at(record.conversation);
      for (const RejectRecord::Reject& reject : record.rejects) {
        const size_t at = 3 + static_cast<size_t>(reject.position);
        ASSERT_LT(at, text.size());
        EXPECT_EQ(reject.next, text[at]);
        EXPECT_NE(reject.drafted, reject.next);
        std::vector<float> row(kToyVocab);
        toy_logits(21)(std::span<const int32_t>(text).first(at), row);
        const decode::PositionLogprobs expected = decode::logprobs_of(row, reject.drafted, kToyVocab);
        EXPECT_NEAR(reject.logprob, expected.token.logprob, 1e-3);
        ASSERT_EQ(reject.top.size(), expected.top.size());
        for (size_t i = 0; i + 1 < expected.top.size(); ++i) {  // the last token has probability 0
          EXPECT_EQ(reject.top[i].first, expected.top[i].id);
          EXPECT_NEAR(reject.top[i].second, expected.top[i].logprob, 1e-3);
        }
        ++found;
        coupled += record.conversation.ends_with("3");
      }
    }
  }
  EXPECT_GT(found - coupled, 10);
  EXPECT_GT(coupled, 10);
}

TEST(DraftSwap, OnlyTheAdminSocketTakesOrders) {
  Shelf shelf;
  SwapServer server(shelf);
  Client open(server.port());
  for (const std::string& sent : {get("/admin/draft"), post("/admin/draft", R"({"action":"drop"})")}) {
    open.send(sent);
    EXPECT_EQ(open.read().status, 404);
  }
  struct stat socket{};
  ASSERT_EQ(::stat(server.admin_socket().c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0600u) << "its mode is its key";
  Client admin(server.admin_socket());
  admin.send("DELETE /admin/draft HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Response r = admin.read();
  EXPECT_EQ(r.status, 405);
  EXPECT_EQ(r.headers.at("allow"), "GET, POST");
}

}  // namespace
}  // namespace specdec::deploy
