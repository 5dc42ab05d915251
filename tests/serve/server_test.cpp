// Tests of the whole server over loopback: routes, protocol, queue, scheduler and records. The step runner needs no
// model.
#include "deploy/serve/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::put;

// Returns the payload of each "data: …" line of a stream.
std::vector<std::string> events(const std::string& body) {
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_EQ(body.substr(at, 6), "data: ");
    out.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return out;
}

TEST(Server, CompletionsAndChat) {
  Running s;
  s.start();
  const Json a = s.complete("say:Hello", R"("max_tokens":50,"return_token_ids":true,"include_metrics":true,"seed":3)");
  EXPECT_EQ(a["choices"][0]["text"], "Hello");
  EXPECT_EQ(a["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(a["choices"][0]["token_ids"], Json({'H', 'e', 'l', 'l', 'o', kEos}));
  EXPECT_EQ(a["usage"], Json({{"prompt_tokens", 10}, {"completion_tokens", 6}, {"total_tokens", 16}}))
      << "BOS and nine bytes";
  EXPECT_EQ(a["model"], "tiny");
  EXPECT_EQ(a["system_fingerprint"], "fp_aaaaaaaaaaaa");
  EXPECT_GT(a["metrics"]["speculative_decoding"]["num_spec_steps"], 0);
  EXPECT_EQ(s.complete("say:0123456789012345678901")["choices"][0]["text"], "0123456789012345")
      << "16 tokens unless said otherwise";
  EXPECT_EQ(s.complete("")["usage"]["prompt_tokens"], 1) << "BOS alone";

  const Response chat =
      s.ask(post("/v1/chat/completions",
                 R"({"model":"tiny","messages":[{"role":"user","content":"say:Hi there, a longer answer"}]})"));
  EXPECT_EQ(Json::parse(chat.body)["choices"][0]["message"]["content"], "Hi there, a longer answer");
  const Json models = Json::parse(s.ask(get("/v1/models")).body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(Json::parse(s.ask(get("/v1/models/tiny")).body)["specdec"]["target"], std::string(64, 'a'));
  EXPECT_EQ(s.ask(get("/v1/models/other")).status, 404);
}

TEST(Server, ListsOfPromptsAndSeveralAnswers) {
  Running s;
  s.start();
  const Json texts = Json::parse(s.ask(post("/v1/completions", R"({"prompt":["say:a","say:b"],"n":2})")).body);
  std::string joined;
  for (const Json& choice : texts["choices"])
    joined += choice["text"].get<std::string>() + std::to_string(choice["index"].get<int>());
  EXPECT_EQ(joined, "a0a1b2b3");
  const Json ids =
      Json::parse(s.ask(post("/v1/completions", R"({"prompt":[[115,97,121,58,120],[256,115,97,121,58,121]]})")).body);
  EXPECT_EQ(ids["choices"][0]["text"].get<std::string>() + ids["choices"][1]["text"].get<std::string>(), "xy");
  const Json n = s.complete("poem", R"("n":3,"seed":5,"max_tokens":60)");
  EXPECT_EQ(n["choices"][0]["text"], s.complete("poem", R"("seed":5,"max_tokens":60)")["choices"][0]["text"]);
  EXPECT_NE(n["choices"][0]["text"], n["choices"][1]["text"]);
  EXPECT_NE(s.complete("poem")["choices"][0]["text"], s.complete("poem")["choices"][0]["text"])
      << "no seed: drawn anew";
}

TEST(Server, Streams) {
  Running s;
  s.start();
  const std::string text = "a stream of text, é";
  const Response r =
      s.ask(post("/v1/chat/completions",
                 R"({"messages":[{"role":"user","content":"say:)" + text +
                     R"("}],"stream":true,"stream_options":{"include_usage":true},"include_metrics":true,"n":2})"));
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_TRUE(r.headers.at("content-type").starts_with("text/event-stream"));
  const auto all = events(r.body);
  ASSERT_GT(all.size(), 6u);
  EXPECT_EQ(all.back(), "[DONE]");
  std::string shown[2];
  std::string reasons[2];
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const Json e = Json::parse(all[i]);
    EXPECT_EQ(e["object"], "chat.completion.chunk");
    for (const Json& choice : e["choices"]) {
      const size_t index = choice["index"];
      shown[index] += choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) reasons[index] += choice["finish_reason"].get<std::string>();
      EXPECT_TRUE(e["usage"].is_null());
    }
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(shown[i], text);
    EXPECT_EQ(reasons[i], "stop");
  }
  const Json last = Json::parse(all[all.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 2 * (text.size() + 1));
  EXPECT_TRUE(last.contains("metrics"));
}

TEST(Server, TextThatSpellsATokenTheModelLacksIsTheCallersError) {
  Running s;
  s.model.vocab_size = kEos;  // the tokenizer's last token is outside of the model's vocabulary
  s.start();
  for (const auto& [endpoint, body, param] :
       {std::tuple{"/v1/completions", R"({"prompt":"a</s>"})", "prompt"},
        {"/v1/completions", R"({"prompt":[257]})", "prompt"},
        {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a</s>"}]})", "messages"}}) {
    const Response r = s.ask(post(endpoint, body));
    EXPECT_EQ(r.status, 400) << r.body;
    EXPECT_EQ(Json::parse(r.body)["error"]["param"], param) << r.body;
  }
  EXPECT_EQ(s.ask(post("/v1/completions", R"({"prompt":"say:a"})")).status, 200);
}

TEST(Server, EveryErrorClass) {
  Config setup;
  setup.max_context = 64;
  Running s(setup);
  EXPECT_EQ(s.ask(get("/health")).status, 200) << "alive while loading";
  EXPECT_EQ(s.ask(get("/ready")).status, 503);
  const Response early = s.ask(post("/v1/completions", R"({"prompt":"x"})"));
  EXPECT_EQ(early.status, 503);
  EXPECT_TRUE(early.headers.count("retry-after"));
  EXPECT_EQ(s.ask(get("/v1/models")).status, 503);
  s.start();
  EXPECT_EQ(s.ask(get("/ready")).status, 200);
  const auto error = [&](const std::string& request, int status, const std::string& code, const std::string& param) {
    const Response r = s.ask(request);
    const Json body = Json::parse(r.body, nullptr, false);
    EXPECT_EQ(r.status, status) << r.body;
    ASSERT_TRUE(body.is_object()) << r.body;
    EXPECT_EQ(body["error"]["code"], code) << r.body;
    EXPECT_EQ(body["error"]["param"], param.empty() ? Json() : Json(param)) << r.body;
    EXPECT_TRUE(body["error"]["type"].is_string() && body["error"]["message"].is_string());
    // An error must reveal nothing of the server's internals: no pointer, path or type name, and not the message of the
    // runner's error.
    for (const char* leak : {"0x", "/home", "std::", "specdec::", "out of memory", "secret", "body:"})
      EXPECT_EQ(r.body.find(leak), std::string::npos) << leak << " in " << r.body;
  };
  const std::string chat = "/v1/chat/completions", completions = "/v1/completions";
  error(post(completions, R"({"prompt":"x","temperature":9})"), 400, "invalid_value", "temperature");
  error(post(completions, R"({"prompt":"x","logit_bias":{"258":5}})"), 400, "invalid_value", "logit_bias");
  error(post(completions, R"({"prompt":"x","guided_regex":"("})"), 400, "invalid_value", "guided_regex");
  error(post(completions, R"({"prompt":"x","suffix":"y"})"), 400, "unsupported_parameter", "suffix");
  error(post(completions, R"({"prompt":"x","use_beam_search":true})"), 400, "unsupported_parameter", "use_beam_search");
  error(post("/tokenize", R"({"prompt":"x","model":"other"})"), 404, "model_not_found", "model");
  error(post("/detokenize", R"({"tokens":[258]})"), 400, "invalid_value", "tokens");
  error(post(completions, "{"), 400, "invalid_json", "");
  error(post(completions, R"({"prompt":[1,258]})"), 400, "invalid_value", "prompt");
  error(post(completions, R"({"prompt":")" + std::string(64, 'x') + "\"}"), 400, "invalid_value", "prompt");
  error(post(completions, R"({"prompt":")" + std::string(100000, 'x') + "\"}"), 400, "invalid_value", "prompt");
  error(post(completions, R"({"prompt":"x","max_tokens":63})"), 400, "invalid_value", "max_tokens");
  error(post(chat, R"({"messages":[{"role":"user","content":"x"}],"max_completion_tokens":64})"), 400, "invalid_value",
        "max_completion_tokens");
  error(post(chat, R"({"messages":[{"role":"tool","content":"x"}]})"), 400, "invalid_value", "messages");
  error(post(chat, R"({"messages":[{"role":"user","content":""}]})"), 400, "invalid_value", "messages");
  error(post(completions, R"({"prompt":"x","model":"other"})"), 404, "model_not_found", "model");
  EXPECT_NE(s.ask(post(completions, R"({"prompt":"x","model":"other"})")).body.find("served: 'tiny'"),
            std::string::npos);
  error(get("/v2/nothing"), 404, "unknown_url", "");
  error(get("/openapi.yaml"), 404, "unknown_url", "");
  error(get("/v1/models/"), 404, "unknown_url", "");
  error(get("/v1/mod%zzls"), 400, "malformed_request", "");
  error(get(completions), 405, "method_not_allowed", "");
  error("DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", "");
  error("BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed", "");
  error("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 415,
        "unsupported_media_type", "");
  error("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
        415, "unsupported_media_type", "");
  error(post(completions, "{}", "Content-Encoding: gzip\r\n"), 415, "unsupported_media_type", "");
  error(post(completions, R"({"prompt":"die:start"})"), 500, "internal_error", "");
  error(post(completions, R"({"prompt":"die:step"})"), 500, "internal_error", "");
  error(post(completions, R"({"prompt":"die:step","stream":true})"), 500, "internal_error", "");
  EXPECT_EQ(s.ask(get("/v1/mod%65ls/tin%79")).status, 200);
  EXPECT_EQ(s.complete("say:fine")["choices"][0]["text"], "fine") << "and the server lives";
  EXPECT_EQ(s.ask(post(completions, R"({"prompt":"x","max_tokens":62,"seed":1})")).status, 200)
      << "prompt and answer fill the context";
  EXPECT_EQ(s.ask(post(completions, R"({"prompt":")" + std::string(62, 'x') + R"(","max_tokens":1})")).status, 200);
  const Response options = s.ask("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
}

TEST(Server, ChatNeedsATemplate) {
  Config setup;
  setup.chat = false;
  Running s(setup);
  s.start();
  const Response r = s.ask(post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})"));
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(Json::parse(r.body)["error"]["param"], "messages");
}

// Tries every route and method with no key, a wrong key and a right key. Only /health, /ready and /ping may be open.
TEST(Server, AuthMatrix) {
  const Scratch dir;
  put(dir / "keys", "right-key-1 alice\nright-key-2\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  Running s(setup);
  s.start();
  const std::vector<std::pair<std::string, int>> routes = {{"GET /health", 200},
                                                           {"GET /ready", 200},
                                                           {"GET /metrics", 200},
                                                           {"GET /gate", 200},
                                                           {"GET /ping", 200},
                                                           {"POST /ping", 200},
                                                           {"GET /version", 200},
                                                           {"POST /version", 405},
                                                           {"GET /dashboard", 200},
                                                           {"GET /v1/models", 200},
                                                           {"GET /v1/models/tiny", 200},
                                                           {"GET /v1/models/x", 404},
                                                           {"POST /v1/completions", 400},
                                                           {"POST /v1/chat/completions", 400},
                                                           {"POST /tokenize", 400},
                                                           {"POST /detokenize", 400},
                                                           {"GET /tokenize", 405},
                                                           {"GET /nowhere", 404},
                                                           {"POST /admin/drain", 404},
                                                           {"DELETE /v1/models", 405},
                                                           {"OPTIONS /v1/completions", 204},
                                                           {"HEAD /metrics", 200},
                                                           {"GET /health/", 404},
                                                           {"GET //health", 404}};
  for (const auto& [route, with_key] : routes)
    for (const std::string auth :
         {"", "Authorization: Bearer wrong-key-1\r\n", "Authorization: Bearer right-key-1\r\n",
          "Authorization: Bearer right-key-2\r\n", "Authorization: Basic eDpyaWdodC1rZXktMg==\r\n"}) {
      Client c(s.port);
      c.send(route + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + auth +
             (route[0] == 'P' ? "Content-Length: 2\r\n\r\n{}" : "\r\n"));
      const bool open = route == "GET /health" || route == "GET /ready" || route.ends_with(" /ping"),
                 right = auth.find("right") != std::string::npos || auth.find("Basic") != std::string::npos;
      const Response r = c.read(route.starts_with("HEAD"));
      EXPECT_EQ(r.status, open || right ? with_key : 401) << route << " " << auth;
      EXPECT_EQ(r.headers.count("www-authenticate") == 1, r.status == 401) << route;
    }
}

TEST(Server, WithoutKeysOnlyLoopbackIsBound) {
  SystemClock clock;
  ServeOptions options;
  options.host = "0.0.0.0";
  options.port = 0;
  expect_error(ErrorKind::kUsage, {"--api-key-file"}, [&] { Server server(options, {}, clock); });
  options.host = "127.0.0.1";
  options.max_batch = 0;
  expect_error(ErrorKind::kUsage, {"--max-batch"}, [&] { Server server(options, {}, clock); });
}

// A web page whose DNS name resolves to 127.0.0.1 (DNS rebinding) sends its own name as Host, and a page of another
// site sends its own name as Origin. The server must refuse both.
TEST(Server, WithoutKeysOnlyItsOwnNamesAreAnswered) {
  Config setup;
  setup.options.allowed_hosts = {"box.local"};
  Running s(setup);
  s.start();
  const auto status = [&](const std::string& host, const std::string& more = "") {
    return s.ask("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n");
  };
  for (const char* own : {"localhost", "127.0.0.1:8000", "[::1]:8000", "Box.Local"})
    EXPECT_EQ(status(own).status, 200) << own;
  EXPECT_EQ(status("localhost", "Origin: http://127.0.0.1:8000\r\n").status, 200);
  EXPECT_EQ(s.ask("GET /v1/models HTTP/1.0\r\n\r\n").status, 200) << "no browser sends that";
  const Response foreign = status("evil.example");
  EXPECT_EQ(foreign.status, 403);
  EXPECT_EQ(Json::parse(foreign.body)["error"]["code"], "foreign_host");
  for (const char* origin : {"http://evil.example", "null"})
    EXPECT_EQ(status("localhost", std::string("Origin: ") + origin + "\r\n").status, 403) << origin;
  EXPECT_EQ(s.ask("GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 403)
      << "the target's authority counts";
  for (const char* open : {"/health", "/ready", "/metrics", "/nowhere"})
    EXPECT_EQ(s.ask(std::string("GET ") + open + " HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403) << open;
  EXPECT_EQ(s.ask("POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Type: "
                  "application/json\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}")
                .status,
            403);

  const Scratch dir;
  put(dir / "keys", "right-key-1\n");
  Config keyed;
  keyed.options.api_key_file = dir / "keys";
  Running k(keyed);
  k.start();
  EXPECT_EQ(k.ask("GET /v1/models HTTP/1.1\r\nHost: llm.example\r\nOrigin: https://app.example\r\nAuthorization: "
                  "Bearer right-key-1\r\n\r\n")
                .status,
            200)
      << "the key says who asks";
}

TEST(Server, ConnectionsLeaveDescriptorsForOtherThings) {
  EXPECT_EQ(connections_within(1 << 20, 1024, 16), 1024u);
  EXPECT_EQ(connections_within(1024 + 16 + 256, 1024, 16), 1024u);
  EXPECT_EQ(connections_within(1024, 1024, 16), 1024u - 256 - 16);
  EXPECT_EQ(connections_within(256, 1024, 16), 256u - 64 - 16);
  EXPECT_EQ(connections_within(50, 1024, 16), 1u);
}

TEST(Server, AFullQueueIs429AndHealthStillAnswers) {
  Config setup;
  setup.options.max_batch = 1;
  setup.options.queue_limit = 2;
  Running s(setup);
  s.start();
  s.runner.close_gate();
  const std::string request = post("/v1/completions", R"({"prompt":"say:done"})");
  std::vector<std::unique_ptr<Client>> waiting;
  // One request blocks in start() at the closed gate, and two are queued.
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::make_unique<Client>(s.port));
    waiting.back()->send(request);
    wait_until([&] {
      return s.runner.at_gate() &&
             s.ask(get("/metrics")).body.find("specdec:num_requests_waiting " + std::to_string(i)) != std::string::npos;
    });
  }
  const Response full = s.ask(request);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(full.body)["error"]["code"], "queue_full");
  EXPECT_EQ(s.ask(get("/health")).status, 200);
  EXPECT_EQ(s.ask(get("/ready")).status, 200);
  waiting.pop_back();  // a queued request's client disconnects, so the queue has space
  wait_until([&] {
    Client c(s.port);
    c.send(request);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (s.ask(get("/metrics")).body.find("specdec:num_requests_waiting 2") == std::string::npos) return false;
    return true;
  });
  s.runner.open_gate();
  for (const auto& c : waiting) EXPECT_EQ(Json::parse(c->read().body)["choices"][0]["text"], "done");
}

TEST(Server, AClientThatLeavesFreesItsPlace) {
  Config setup;
  setup.options.max_batch = 1;
  setup.max_context = 1 << 24;
  Running s(setup);
  s.start();
  for (const bool stream : {true, false}) {
    Client c(s.port);
    c.send(post("/v1/completions",
                std::string(R"({"prompt":"loop","max_tokens":7000000,"stream":)") + (stream ? "true}" : "false}")));
    ASSERT_TRUE(!stream || c.wait_for("data: "));
    wait_until([&] { return s.runner.open() == 1; });
    c.close();
    wait_until([&] { return s.runner.open() == 0; });
  }
  EXPECT_EQ(s.complete("say:next")["choices"][0]["text"], "next");
}

TEST(Server, AClientThatStopsReadingIsCutOff) {
  Config setup;
  setup.limits.write_seconds = 0.3;
  setup.max_context = 1 << 24;
  Running s(setup);
  s.start();
  Client c(s.port);
  c.send(post("/v1/completions", R"({"prompt":"loop","max_tokens":10000000,"stream":true})"));
  wait_until([&] { return s.runner.open() == 1; });
  wait_until([&] { return s.runner.open() == 0; });
}

TEST(Server, DrainFinishesWhatRunsRefusesWhatComesAndPublishesRecords) {
  const Scratch dir;
  Config setup;
  setup.options.admin_socket = dir / "admin.sock";
  setup.options.record_dir = dir / "traffic";
  Running s(setup);
  s.start();
  s.runner.close_gate();
  Client running(s.port), kept(s.port);
  kept.send(get("/health"));
  EXPECT_EQ(kept.read().status, 200);
  running.send(post("/v1/completions", R"({"prompt":"say:finished","metadata":{"domain":"code"}})"));
  wait_until([&] { return s.runner.at_gate(); });
  Client admin(setup.options.admin_socket);
  admin.send(get("/admin/drain") + post("/admin/drain", ""));
  EXPECT_EQ(admin.read().status, 405);
  EXPECT_EQ(admin.read().status, 202);
  EXPECT_TRUE(kept.at_end()) << "idle connections are closed";
  wait_until([&] { return !Client(s.port).connected(); });
  s.runner.open_gate();
  const Response r = running.read();
  EXPECT_EQ(Json::parse(r.body)["choices"][0]["text"], "finished");
  EXPECT_EQ(r.headers.at("connection"), "close");
  s.main.join();
  EXPECT_FALSE(s.failure);
  size_t published = 0;
  for (const auto& entry : fs::directory_iterator(dir / "traffic")) {
    published += entry.path().extension() == ".jsonl";
    EXPECT_NE(entry.path().extension(), ".partial");
  }
  EXPECT_EQ(published, 1u);
}

TEST(Server, TheDrainHasAnEnd) {
  Config setup;
  setup.options.drain_seconds = 0.1;
  setup.max_context = 1 << 24;
  Running s(setup);
  s.start();
  Client whole(s.port), streamed(s.port);
  whole.send(post("/v1/completions", R"({"prompt":"loop","max_tokens":7000000})"));
  streamed.send(post("/v1/completions", R"({"prompt":"loop","max_tokens":16000000,"stream":true})"));
  ASSERT_TRUE(streamed.wait_for("data: "));
  wait_until([&] { return s.runner.open() == 2; });
  std::thread reader([&] {
    const Response r = streamed.read();
    EXPECT_NE(r.body.find("\"draining\""), std::string::npos) << "said inside the stream";
  });
  s.finish();
  reader.join();
  const Response r = whole.read();
  EXPECT_EQ(r.status, 503);
  EXPECT_TRUE(r.headers.count("retry-after"));
  EXPECT_FALSE(s.failure);
}

TEST(Server, MetricsAndDashboard) {
  Running s;
  s.start();
  s.complete("say:some text to count", R"("max_tokens":100)");
  s.ask(post("/v1/completions", "{"));
  s.ask(get("/" + std::string(100, 'q')));
  const Response metrics = s.ask(get("/metrics"));
  EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line : {"specdec:spec_decode_num_drafts_total ",
                           "specdec:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} ",
                           "specdec:spec_decode_num_reached_tokens_per_pos_total{position=\"0\"} ",
                           "specdec:spec_decode_overlap_sum_per_pos_total{position=\"0\"} ",
                           "specdec:requests_total{route=\"/v1/completions\",status=\"200\"} 1",
                           "specdec:requests_total{route=\"/v1/completions\",status=\"400\"} 1",
                           "specdec:requests_total{route=\"other\",status=\"404\"} 1",
                           "specdec:answers_finished_total{reason=\"stop\"} 1"})
    EXPECT_NE(metrics.body.find(line), std::string::npos) << line;
  const Response page = s.ask(get("/dashboard"));
  EXPECT_TRUE(page.headers.at("content-type").starts_with("text/html"));
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'"), std::string::npos);
  for (const char* foreign : {"http://", "https://", "src=", "@import"})
    for (size_t at = page.body.find(foreign); at != std::string::npos; at = page.body.find(foreign, at + 1))
      EXPECT_EQ(page.body.substr(at, 26), "http://www.w3.org/2000/svg") << "nothing is loaded from elsewhere";
}

// Many clients at once send requests, cancel some and send invalid ones. Every request must get the answer that it gets
// when it is sent alone.
TEST(Server, ConcurrentIsAlone) {
  Running s;
  s.start();
  const auto body = [](int i) {
    return R"({"prompt":"prompt )" + std::to_string(i % 7) + R"(","seed":)" + std::to_string(i % 5) +
           R"(,"max_tokens":40,"n":)" + std::to_string(1 + i % 3) + "}";
  };
  std::vector<std::string> alone;
  for (int i = 0; i < 60; ++i)
    alone.push_back(Json::parse(s.ask(post("/v1/completions", body(i))).body)["choices"].dump());
  std::vector<std::thread> clients;
  for (int t = 0; t < 6; ++t)
    clients.emplace_back([&, t] {
      Client c(s.port);
      for (int i = t; i < 60; i += 6) {
        if (i % 4 == 0)
          Client(s.port).send(post("/v1/completions", R"({"prompt":"loop","max_tokens":1500,"stream":true})"));
        if (i % 5 == 0) s.ask(post("/v1/completions", R"({"prompt":"die:step"})"));
        c.send(post("/v1/completions", body(i)));
        const Response r = c.read();
        ASSERT_EQ(r.status, 200) << r.body;
        EXPECT_EQ(Json::parse(r.body)["choices"].dump(), alone[static_cast<size_t>(i)]);
      }
    });
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace specdec::deploy
