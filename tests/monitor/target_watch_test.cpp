#include "monitor/facts/target_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "base/sha256.h"
#include "monitor/facts/endpoint.h"
#include "monitor/read/source.h"
#include "tests/base/manual_clock.h"
#include "tests/base/scratch.h"
#include "tests/monitor/toy_model.h"
#include "tests/net/toy_server.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;

// A fake OpenAI-compatible engine that serves toy models.
struct Engine {
  ToyModel old_model{5}, new_model{5, 0.05};
  double new_share = 0;  // share of the calls that new_model answers
  bool chat = true, completions = true, logprobs = true, text = true;
  int most_top = 20;
  std::string key, greedy_end;
  Json model = {{"id", "m"},       {"object", "model"}, {"owned_by", "vllm"},   {"created", 1},
                {"root", "org/m"}, {"parent", nullptr}, {"max_model_len", 4096}};
  std::map<std::string, net::ToyReply> pages;
  std::string fingerprint = "fp_1";
  int posts = 0, gets = 0, broken = 0;
  std::vector<std::string> requests;
  std::mutex mutex;

  net::ToyServer server{[this](const net::ToyRequest& r) {
    const std::lock_guard lock(mutex);
    requests.push_back(r.head);
    return reply(r);
  }};

  std::string url() const { return server.url() + "/v1"; }

  static net::ToyReply refused(int status) { return {status, "{}", "", false, false}; }
  static net::ToyReply said(const Json& json) { return {200, json.dump(), "", false, false}; }
  net::ToyReply reply(const net::ToyRequest& r) {
    if (!key.empty() && r.head.find("Authorization: Bearer " + key) == std::string::npos) return refused(401);
    if (r.method == "GET") {
      ++gets;
      if (r.path == "/v1/models") return said({{"object", "list"}, {"data", Json::array({model})}});
      const auto page = pages.find(r.path);
      return page == pages.end() ? refused(404) : page->second;
    }
    const bool is_chat = r.path == "/v1/chat/completions";
    if (is_chat ? !chat : !completions) return refused(404);
    const Json body = Json::parse(r.body);
    const int top = is_chat ? body.value("top_logprobs", 0) : body.value("logprobs", 0);
    if (top > 0 && (!logprobs || top > most_top)) return refused(400);
    if (top == 0 && !text) return refused(400);
    ++posts;
    if (broken > 0 && broken-- > 0) return refused(503);
    const std::string prompt = is_chat ? body["messages"][0]["content"] : body["prompt"];
    Json choice = {{"index", 0}, {"finish_reason", "length"}};
    if (top > 0) {
      const bool is_new = philox_uniform(9, 0, static_cast<uint64_t>(posts)) < new_share;
      TopLogprobs tokens = (is_new ? new_model : old_model).call(ToyModel::prompt_index(prompt));
      tokens.resize(static_cast<size_t>(top));
      Json chat_top = Json::array(), map = Json::object();
      for (const auto& [token, logprob] : tokens) {
        chat_top.push_back({{"token", token}, {"logprob", logprob}, {"bytes", nullptr}});
        map[token] = logprob;
      }
      choice["logprobs"] =
          is_chat ? Json{{"content",
                          {{{"token", tokens[0].first}, {"logprob", tokens[0].second}, {"top_logprobs", chat_top}}}}}
                  : Json{{"tokens", {tokens[0].first}}, {"top_logprobs", {map}}};
    }
    const std::string answer = top > 0 ? "x" : "About " + sha256_hex(prompt) + greedy_end;
    if (is_chat)
      choice["message"] = {{"role", "assistant"}, {"content", answer}};
    else
      choice["text"] = answer;
    return said({{"object", "x"}, {"system_fingerprint", fingerprint}, {"choices", Json::array({choice})}});
  }
};

class TargetWatch : public ::testing::Test {
 protected:
  TargetWatch() {
    options.url = engine.url();
    options.sleep = [](double) {};
  }

  TargetCheck look(double after_hours = 24) {
    clock.now += after_hours * 3600;
    const TargetCheck check = watch_target(options, pair, memory, clock);
    memory = check.memory;
    return check;
  }

  Engine engine;
  TargetWatchOptions options;
  WatchedPair pair{"package-1", std::string(64, 'a')};
  std::string memory;
  testing::ManualClock clock;
};

// The name of a target that an endpoint states is ignored unless it is a fingerprint.
TEST_F(TargetWatch, ATextThatIsNoFingerprintIsNoTarget) {
  for (const Json& odd : {Json("zz"), Json(""), Json(std::string(64, 'G')), Json(5)}) {
    engine.model["specdec"] = {{"target", odd}};
    memory.clear();
    const TargetCheck check = look();
    EXPECT_EQ(check.stale, "") << odd;
    EXPECT_EQ(check.evidence["watched_by"], "log-probabilities") << odd;
  }
}

TEST_F(TargetWatch, FarMoreLogProbabilitiesThanAskedForAreRefused) {
  engine.most_top = 20;
  net::ToyServer many([](const net::ToyRequest&) -> net::ToyReply {
    Json top = Json::array();
    for (int i = 0; i < 1000; ++i) top.push_back({{"token", "a"}, {"logprob", -1.0}});
    return {.status = 200,
            .body = Json{{"choices", {{{"logprobs", {{"content", {{{"top_logprobs", top}}}}}}}}}}.dump()};
  });
  Endpoint endpoint({.url = many.url() + "/v1", .model = "m"});
  expect_error(ErrorKind::kData, {"1000", "20"}, [&] { endpoint.first_token({"chat/completions", 20}, "a"); });
}

TEST_F(TargetWatch, AnUnchangedTargetDayAfterDay) {
  TargetCheck check = look();
  EXPECT_EQ(check.stale + check.wait, "");
  EXPECT_EQ(check.evidence["watched_by"], "log-probabilities");
  EXPECT_EQ(check.evidence["identity"]["root"], "org/m");
  for (int day = 0; day < 3; ++day) {
    const int before = engine.posts;
    check = look();
    EXPECT_EQ(check.stale + check.wait, "");
    EXPECT_EQ(engine.posts - before, 256);
    EXPECT_GT(check.evidence["p"].get<double>(), 0.001);
  }
  const int before = engine.posts;
  check = look(1);
  EXPECT_EQ(engine.posts, before) << "within the day only what it says of itself is asked for";
  EXPECT_EQ(check.evidence["looks"], 4);
}

TEST_F(TargetWatch, AFineTuningStepIsSeenInOneLookAndStays) {
  look();
  engine.new_share = 1;
  TargetCheck check = look();
  EXPECT_NE(check.stale.find("log-probabilities differ"), std::string::npos) << check.stale;
  EXPECT_GE(check.evidence["log10_e"].get<double>(), check.evidence["log10_alarm"].get<double>());
  const std::string stale = check.stale;
  engine.new_share = 0;
  EXPECT_EQ(look().stale, stale) << "the key of an alarm does not change";
  pair.package = "package-2";
  EXPECT_EQ(look().stale, "") << "another package begins anew";
}

TEST_F(TargetWatch, ARollingUpdateIsWaitedForAndThenSeen) {
  look();
  engine.new_share = 0.5;
  TargetCheck check = look();
  EXPECT_EQ(check.stale, "");
  EXPECT_NE(check.wait.find("rolling update"), std::string::npos) << check.evidence;
  EXPECT_NE(look(0.2).wait, "") << "the next check looks again, before the day is over";
  engine.new_share = 1;
  check = look(0.2);
  EXPECT_EQ(check.wait, "");
  EXPECT_NE(check.stale, "");
}

TEST_F(TargetWatch, ARollingUpdateThatIsTakenBackLeavesNothing) {
  look();
  engine.new_share = 0.5;
  EXPECT_NE(look().wait, "");
  engine.new_share = 0;
  const TargetCheck check = look(0.2);
  EXPECT_EQ(check.stale + check.wait, "");
}

TEST_F(TargetWatch, TwoModesForADayAreNoUpdateAnyMore) {
  look();
  engine.new_share = 0.5;
  EXPECT_NE(look().wait, "");
  const TargetCheck check = look(25);
  EXPECT_EQ(check.wait, "");
  EXPECT_NE(check.stale, "");
}

// A change in the endpoint's description of itself is only a hint: it causes a poll at once, but no verdict.
TEST_F(TargetWatch, ARestartOrAnotherVersionIsAHint) {
  engine.pages["/version"].body = R"({"version":"0.33.0"})";
  look();
  engine.model["created"] = 2;
  engine.pages["/version"].body = R"({"version":"0.33.1"})";
  engine.fingerprint = "fp_2";
  const int before = engine.posts;
  const TargetCheck check = look(1);
  EXPECT_EQ(engine.posts - before, 256);
  EXPECT_EQ(check.stale, "");
  EXPECT_EQ(check.evidence["changes"].size(), 3u) << check.evidence["changes"];
  EXPECT_TRUE(look(1).evidence["changes"].empty()) << "and then it is known";
}

TEST_F(TargetWatch, EnginesSayWhatTheyServe) {
  engine.pages["/get_model_info"].body = R"({"model_path":"/m/v1","weight_version":"7"})";
  engine.pages["/props"].body = R"({"build_info":"b1","chat_template":"{{ x }}","model_path":"/m/v1"})";
  engine.pages["/version"].status = 302;
  engine.pages["/version"].headers = "Location: /elsewhere\r\n";
  const Json id = look().evidence["identity"];
  EXPECT_EQ(id["weight_version"], "7");
  EXPECT_EQ(id["model_path"], "/m/v1");
  EXPECT_EQ(id["build_info"], "b1");
  EXPECT_EQ(id["chat_template_sha256"], sha256_hex("{{ x }}"));
  EXPECT_FALSE(id.contains("version"));
  for (const std::string& head : engine.requests)
    EXPECT_EQ(head.find("/elsewhere"), std::string::npos) << "no redirect is followed";
}

TEST_F(TargetWatch, CompletionsAndFewerTokensWhereChatHasNone) {
  engine.chat = false;
  engine.most_top = 5;
  look();
  EXPECT_NE(memory.find(R"("route":"completions","top":5)"), std::string::npos);
  EXPECT_EQ(look().stale, "");
  engine.new_share = 1;
  EXPECT_NE(look().stale, "");
}

TEST_F(TargetWatch, GreedyTextsWhereThereAreNoLogProbabilities) {
  engine.logprobs = false;
  TargetCheck check = look();
  EXPECT_EQ(check.evidence["watched_by"], "greedy texts");
  EXPECT_NE(check.evidence["not_watched"].get<std::string>().find("no log-probabilities"), std::string::npos);
  const int before = engine.posts;
  EXPECT_EQ(look().stale, "");
  EXPECT_EQ(engine.posts - before, 64);
  engine.greedy_end = " and so on, at much greater length than it was before the update of the model";
  EXPECT_NE(look().stale.find("greedy texts"), std::string::npos);
}

TEST_F(TargetWatch, OnlyWhatItSaysOfItselfWhereItSaysNothingElse) {
  engine.logprobs = engine.text = false;
  TargetCheck check = look();
  EXPECT_EQ(check.evidence["watched_by"], "identity");
  EXPECT_TRUE(check.evidence.contains("not_watched"));
  engine.model["created"] = 5;
  EXPECT_EQ(look().stale, "") << "a restart";
  engine.model["root"] = "org/m-v2";
  EXPECT_NE(look().stale.find("org/m-v2"), std::string::npos);
}

// `specdec serve` states the target's fingerprint, so the monitor requests nothing else.
TEST_F(TargetWatch, OwnServersTellTheFingerprint) {
  engine.model["specdec"] = {{"target", pair.target}, {"draft", nullptr}, {"package", nullptr}};
  TargetCheck check = look();
  EXPECT_EQ(check.stale, "");
  EXPECT_EQ(engine.posts, 0);
  EXPECT_EQ(engine.gets, 1);
  engine.model["specdec"]["target"] = std::string(64, 'b');
  EXPECT_NE(look().stale.find("bound to aaaaaaaaaaaa"), std::string::npos);
}

TEST_F(TargetWatch, KeysGoToTheEndpointAndIntoNoMessage) {
  engine.key = "sk-very-secret";
  expect_error(ErrorKind::kUsage, {"401", "--target-key-file"}, [&] { look(); });
  options.api_key = "sk-wrong-secret";
  EXPECT_EQ(testing::error_of([&] { look(); }, ErrorKind::kUsage).find("secret"), std::string::npos);
  options.api_key = engine.key;
  const TargetCheck check = look();
  EXPECT_EQ((check.evidence.dump() + check.memory).find("secret"), std::string::npos);
}

TEST_F(TargetWatch, WhatFailsIsTriedAgainThenSaid) {
  engine.broken = 2;
  look();
  engine.broken = 5;
  expect_error(ErrorKind::kNetwork, {"503"}, [&] { look(); });
  engine.broken = 0;
  engine.logprobs = false;
  expect_error(ErrorKind::kNetwork, {"400"}, [&] { look(); });
}

TEST_F(TargetWatch, WrongReplies) {
  options.model = "other";
  expect_error(ErrorKind::kUsage, {"no model 'other'"}, [&] { look(); });
  options.model = "m";
  engine.model = Json{{"no", "id"}};
  options.model = "";
  EXPECT_THROW(look(), PageError);
  engine.model = {{"id", std::string(5 << 20, 'x')}};
  expect_error(ErrorKind::kNetwork, {"larger"}, [&] { look(); });
  options.calls = 7;
  expect_error(ErrorKind::kUsage, {"--target-calls"}, [&] { look(); });
  options.calls = 32;
  memory = "{}";
  engine.model = {{"id", "m"}};
  expect_error(ErrorKind::kData, {"schema"}, [&] { look(); });
  options.url = "http://127.0.0.1:1/v1";
  expect_error(ErrorKind::kNetwork, {"127.0.0.1:1"}, [&] { look(); });
}

}  // namespace
}  // namespace specdec::monitor
