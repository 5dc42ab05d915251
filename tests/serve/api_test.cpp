// Tests of the API layer: which requests are queued, which are refused, and with which error.
#include "deploy/serve/api/api.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

TEST(Api, ATenantsOwnQueueIs429AndLeavesRoomForTheOthers) {
  const Scratch dir;
  testing::put(dir / "keys", "key-of-anna-1 anna\nkey-of-anna-2 anna\nkey-of-otto-1 otto\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  setup.options.max_batch = 1;
  setup.options.queue_limit = 4;  // two per tenant, because there are several tenants
  Running s(setup);
  s.start();
  s.runner.close_gate();
  const auto request = [](const std::string& key) {
    return post("/v1/completions", R"({"prompt":"say:done"})", "Authorization: Bearer " + key + "\r\n");
  };
  const auto metrics = [&] { return s.ask(get("/metrics", "Authorization: Bearer key-of-otto-1\r\n")).body; };
  std::vector<std::unique_ptr<Client>> accepted;
  const auto accept = [&](const std::string& key, int then_waiting) {
    accepted.push_back(std::make_unique<Client>(s.port));
    accepted.back()->send(request(key));
    wait_until([&] {
      return s.runner.at_gate() &&
             metrics().find("specdec:num_requests_waiting " + std::to_string(then_waiting) + "\n") != std::string::npos;
    });
  };
  accept("key-of-anna-1", 0);  // blocks in FakeRunner::start() until open_gate()
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

TEST(Api, ARepliesSizeIsPartOfAdmission) {
  Config setup;
  setup.limits.reply_bytes = 64 << 10;
  setup.max_context = 4000;
  Running s(setup);
  s.start();
  const auto refused = [&](const std::string& body, const std::string& param) {
    const Response r = s.ask(post("/v1/completions", body));
    EXPECT_EQ(r.status, 400) << r.body;
    EXPECT_EQ(Json::parse(r.body)["error"]["param"], param) << r.body;
  };
  Json prompts = Json::array();
  for (int i = 0; i < 64; ++i) prompts.push_back(std::string(100, 'p'));
  const std::string list = prompts.dump(), longer = Json(std::vector<std::string>(64, std::string(700, 'p'))).dump();
  refused(R"({"prompt":)" + list + R"(,"n":2,"echo":true,"logprobs":20,"max_tokens":0})", "logprobs");
  refused(R"({"prompt":)" + longer + R"(,"n":2,"echo":true,"max_tokens":1})", "echo");
  refused(R"({"prompt":"loop","logprobs":20,"max_tokens":1000})", "max_tokens");
  refused(R"({"prompt":"loop","return_token_ids":true,"n":8,"max_tokens":1000})", "max_tokens");
  EXPECT_EQ(s.ask(post("/v1/completions", R"({"prompt":)" + list + R"(,"echo":true,"max_tokens":1})")).status, 200);
  EXPECT_EQ(
      s.ask(post("/v1/completions", R"({"prompt":"say:x","logprobs":20,"max_tokens":1000,"stream":true})")).status, 200)
      << "a stream holds what is on its way";
  // Without max_tokens the answer's length is limited only by the context and by the size of the reply.
  const Response chat = s.ask(
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"loop"}],"n":8,"return_token_ids":true})"));
  ASSERT_EQ(chat.status, 200) << chat.body;
  const Json usage = Json::parse(chat.body)["usage"];
  EXPECT_GT(usage["completion_tokens"], 2000);
  EXPECT_LT(chat.body.size(), size_t{80} << 10);
}

TEST(Api, BytesOfAllRequestsAreCountedAndGivenBack) {
  const Scratch dir;
  testing::put(dir / "keys", "key-of-anna-1 anna\nkey-of-otto-1 otto\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  setup.options.max_batch = 1;
  setup.limits.held_bytes = 200000;
  setup.limits.small_body_bytes = 1000;
  setup.max_context = 60000;
  Running s(setup);
  s.start();
  s.runner.close_gate();
  const auto request = [](const std::string& key, size_t bytes) {
    return post("/v1/completions", R"({"prompt":"say:done )" + std::string(bytes, 'x') + R"(","max_tokens":5})",
                "Authorization: Bearer " + key + "\r\n");
  };
  const auto code = [&](const std::string& key, size_t bytes) {
    return Json::parse(s.ask(request(key, bytes)).body)["error"]["code"].get<std::string>();
  };
  Client first(s.port);
  first.send(request("key-of-anna-1", 15000));  // uses 15,000 bytes of text and 60,000 bytes of tokens
  wait_until([&] { return s.runner.at_gate(); });
  const Response full = s.ask(request("key-of-anna-1", 15000));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(Json::parse(full.body)["error"]["code"], "too_many_bytes");
  EXPECT_TRUE(full.headers.count("retry-after"));
  EXPECT_EQ(code("key-of-anna-1", 50000), "too_many_bytes") << "while its body arrives";
  Client other(s.port);
  other.send(request("key-of-otto-1", 15000));
  s.runner.open_gate();
  EXPECT_EQ(first.read().status, 200);
  EXPECT_EQ(other.read().status, 200) << "half of all is left to others";
  wait_until([&] { return s.ask(request("key-of-anna-1", 15000)).status == 200; });
}

TEST(Api, ACompiledGrammarIsCountedAmongWhatRequestsHold) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a grammar's size comes from malloc's own figures, which the sanitizers' allocators do not keep";
#endif
  const text::GrammarChecker grammars;
  Config setup;
  setup.limits.held_bytes = 400'000;
  Running s(setup);
  s.model.grammars = &grammars;
  s.start();
  const auto ask = [&](int properties, size_t prompts = 1) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}};
    for (int i = 0; i < properties; ++i)
      schema["properties"]["name" + std::to_string(i)] = {{"type", "string"},
                                                          {"pattern", "a{1," + std::to_string(i % 50 + 2) + "}"}};
    Json body = {{"prompt", std::vector<std::string>(prompts, "say:x")}, {"max_tokens", 2}};
    if (properties > 0) body["guided_json"] = schema;
    return s.ask(post("/v1/completions", body.dump()));
  };
  EXPECT_EQ(ask(1).status, 200);
  const Response large = ask(400);
  EXPECT_EQ(large.status, 429) << "30 KB of schema";
  EXPECT_EQ(Json::parse(large.body)["error"]["code"], "too_many_bytes");
  EXPECT_EQ(ask(1).status, 200) << "what was refused holds nothing";
  EXPECT_EQ(ask(0, 50).status, 200);
  EXPECT_EQ(ask(1, 50).status, 429) << "each answer has tables of its own";
}

// When memory is short, the system may kill the child process that renders chat templates. /health must then report
// that requests cannot be prepared.
TEST(Api, HealthSaysThatNothingCanBeMadeReadyAnyMore) {
  Running s;
  s.chat_template.confine();
  s.start();
  EXPECT_EQ(s.ask(get("/health")).status, 200);
  std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
  for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
  wait_until([&] { return s.ask(get("/health")).status == 503; });
}

TEST(Api, TextThatIsFarTooLongIsRefusedByItsBeginning) {
  Config setup;
  setup.max_context = 100;
  Running s(setup);
  s.start();
  for (const size_t bytes : {99, 100, 800, 1601, 5000000}) {
    const Response r = s.ask(post("/v1/completions", R"({"prompt":")" + std::string(bytes, 'x') + "\"}"));
    EXPECT_EQ(r.status, 400) << bytes;
    EXPECT_EQ(Json::parse(r.body)["error"]["param"], "prompt");
    const Response chat = s.ask(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":")" +
                                                                 std::string(bytes + 1, 'x') + R"("}]})"));
    EXPECT_EQ(chat.status, 400) << bytes;
    EXPECT_EQ(Json::parse(chat.body)["error"]["param"], "messages");
  }
}

// If tokens may be long, the byte length says little about the number of tokens. The server then tokenises only a piece
// to refuse a too long text, and must never refuse a text that fits.
TEST(Api, TextOfLongTokensIsRefusedByAPieceOfIt) {
  const Scratch dir;
  testing::write_byte_tokenizer(dir.root());
  Json file = Json::parse(testing::get(dir / "tokenizer.json"));
  Json token = file["added_tokens"][0];
  token["id"] = kVocab;
  token["content"] = std::string(2000, 'L');
  file["added_tokens"].push_back(token);
  testing::put(dir / "tokenizer.json", file.dump());
  const text::Tokenizer tokenizer(dir.root());
  Config setup;
  setup.max_context = 100;
  Running s(setup);
  s.model.tokenizer = &tokenizer;
  s.model.vocab_size = kVocab + 1;
  s.start();
  const auto status = [&](const std::string& text) {
    return s.ask(post("/v1/completions", R"({"prompt":")" + text + R"(","max_tokens":5})")).status;
  };
  EXPECT_EQ(status(std::string(100000, 'L')), 200) << "fifty tokens";
  EXPECT_EQ(status(std::string(100000, 'L') + std::string(20, 'x')), 200);
  EXPECT_EQ(status(std::string(100000, 'x')), 400);
  EXPECT_EQ(status(std::string(100000, 'L') + std::string(200, 'x')), 400) << "found out by reading all of it";
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
