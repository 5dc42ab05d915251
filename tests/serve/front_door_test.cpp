// Tests of TLS with reloaded files, model names, pages of other origins (CORS), and health probes.
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/version.h"
#include "tests/serve/running_server.h"
#include "tests/serve/tls_client.h"
#include "tests/source_folder.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::put;

// Collects log lines while the object exists.
class Log {
 public:
  Log() {
    set_log_sink({});  // drops log lines that earlier tests left
    set_log_sink([this](LogLevel level, const std::string& text) {
      const std::lock_guard lock(mutex_);
      text_ += (level == LogLevel::kError ? "error: " : level == LogLevel::kWarn ? "warning: " : "") + text + "\n";
    });
  }
  ~Log() { set_log_sink({}); }
  void wait_for(const std::string& text) {
    wait_until([&] { return this->text().find(text) != std::string::npos; });
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

TEST(FrontDoor, KeysAreReadAgain) {
  const Scratch dir;
  put(dir / "keys", "key-of-anna anna\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  setup.options.max_batch = 1;
  setup.options.queue_limit = 4;
  Log log;
  Running s(setup);
  s.start();
  const auto status = [&](const std::string& key) {
    return s.ask(get("/v1/models", "Authorization: Bearer " + key + "\r\n")).status;
  };
  EXPECT_EQ(status("key-of-otto"), 401);
  s.runner.close_gate();
  std::vector<std::unique_ptr<Client>> accepted;
  const auto ask = [&](const std::string& key) {
    accepted.push_back(std::make_unique<Client>(s.port));
    accepted.back()->send(post("/v1/completions", R"({"prompt":"say:done"})", "Authorization: Bearer " + key + "\r\n"));
  };
  ask("key-of-anna");
  wait_until([&] { return s.runner.at_gate(); });

  put(dir / "keys", "short\n");
  s.reload.store(true);
  log.wait_for("error: reload: --api-key-file: the old content stays in force");
  EXPECT_NE(log.text().find("line 1: expected a key of at least 8"), std::string::npos) << log.text();
  EXPECT_EQ(status("key-of-anna"), 200);

  put(dir / "keys", "key-of-anna-2 anna\nkey-of-otto otto\n");
  s.reload.store(true);
  log.wait_for("reload: --api-key-file: the new content is in force");
  EXPECT_EQ(status("key-of-anna"), 401);
  EXPECT_EQ(status("key-of-anna-2"), 200);
  EXPECT_EQ(status("key-of-otto"), 200);
  EXPECT_EQ(log.text().find("key-of"), std::string::npos) << log.text();
  // The reloaded key file has two tenants, so each may fill half of the queue.
  const auto waiting = [&](int count) {
    wait_until([&] {
      return s.ask(get("/metrics", "Authorization: Bearer key-of-otto\r\n"))
                 .body.find("specdec:num_requests_waiting " + std::to_string(count) + "\n") != std::string::npos;
    });
  };
  for (int i = 0; i < 2; ++i) {
    ask("key-of-anna-2");
    waiting(i + 1);
  }
  const Response full = s.ask(post("/v1/completions", R"({"prompt":"x"})", "Authorization: Bearer key-of-anna-2\r\n"));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(Json::parse(full.body)["error"]["code"], "tenant_queue_full");
  s.runner.open_gate();
  for (const auto& c : accepted) EXPECT_EQ(c->read().status, 200) << "accepted requests go on";
  s.finish();
}

TEST(FrontDoor, TheCertificateIsReadAgain) {
  const Scratch dir;
  const IdentityFiles files = write_identity(dir.root(), "first"), second = write_identity(dir.root(), "second");
  Config setup;
  setup.options.tls_cert = files.certificate;
  setup.options.tls_key = files.key;
  Log log;
  Running s(setup);
  EXPECT_TRUE(s.server->address().starts_with("https://127.0.0.1:"));
  s.start();
  const auto peer = [&] { return TlsClient(s.port).peer(); };
  TlsClient streams(s.port);
  streams.send(post("/v1/completions", R"({"prompt":"loop","max_tokens":1000,"stream":true})"));
  ASSERT_TRUE(streams.wait_for("data: "));
  put(files.certificate, testing::get(second.certificate));
  s.reload.store(true);
  log.wait_for("error: reload: --tls-cert, --tls-key: the old content stays in force");
  EXPECT_EQ(peer(), "first");
  put(files.key, testing::get(second.key));
  s.reload.store(true);
  log.wait_for("reload: --tls-cert, --tls-key: the new content is in force");
  EXPECT_EQ(peer(), "second");
  EXPECT_NE(streams.read().body.find("[DONE]"), std::string::npos);
  TlsClient c(s.port);
  c.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(c.read().status, 403) << "names are checked as over plain HTTP";
  s.finish();
}

TEST(FrontDoor, WithoutFilesThereIsNothingToReadAgain) {
  Log log;
  Running s;
  s.start();
  s.reload.store(true);
  log.wait_for("warning: reload: there is nothing to read again");
  EXPECT_EQ(s.complete("say:fine")["choices"][0]["text"], "fine");
  s.finish();
}

TEST(FrontDoor, CertificateAndKeyComeTogether) {
  const SystemClock clock;
  ServeOptions options;
  options.port = 0;
  options.tls_cert = "cert.pem";
  expect_error(ErrorKind::kUsage, {"--tls-cert", "--tls-key FILE"}, [&] { Server server(options, {}, clock); });
  std::swap(options.tls_cert, options.tls_key);
  expect_error(ErrorKind::kUsage, {"--tls-key", "--tls-cert FILE"}, [&] { Server server(options, {}, clock); });
}

TEST(FrontDoor, TheModelHasSeveralNames) {
  Running s;
  s.model.card.names = {"production", "org/Tiny-8B"};
  s.start();
  const Json models = Json::parse(s.ask(get("/v1/models")).body);
  ASSERT_EQ(models["data"].size(), 2u);
  for (const char* name : {"production", "org/Tiny-8B"}) {
    const Json model = Json::parse(s.ask(get(std::string("/v1/models/") + name)).body);
    EXPECT_EQ(model["id"], name);
    EXPECT_EQ(model["root"], "production");
    EXPECT_EQ(s.complete("say:x", std::string(R"("model":")") + name + "\"")["model"], "production");
  }
  EXPECT_EQ(s.complete("say:x")["model"], "production");
  EXPECT_EQ(s.ask(get("/v1/models/tiny")).status, 404);
  EXPECT_EQ(s.ask(post("/v1/completions", R"({"prompt":"x","model":"tiny"})")).status, 404);
  const SystemClock clock;
  ServeOptions options;
  options.port = 0;
  for (const std::string& name : {std::string(), std::string(257, 'n'), std::string("a\nb")}) {
    options.model_names = {"good", name};
    expect_error(ErrorKind::kUsage, {"--served-model-name"}, [&] { Server server(options, {}, clock); });
  }
}

constexpr char kPage[] = "Origin: https://app.example\r\n", kOther[] = "Origin: https://app.example:444\r\n";

Config with_origin() {
  Config setup;
  setup.options.allowed_origins = {"https://app.example", "http://localhost:3000"};
  return setup;
}

std::string preflight(const std::string& path, const std::string& origin) {
  return "OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\n" + origin +
         "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n";
}

TEST(FrontDoor, PagesOfAllowedOriginsReadEveryReply) {
  Running s(with_origin());
  s.start();
  const auto allowed = [&](const std::string& request) {
    const Response r = s.ask(request);
    EXPECT_EQ(r.headers.count("vary") ? r.headers.at("vary") : "", "Origin");
    return r.headers.count("access-control-allow-origin") ? r.headers.at("access-control-allow-origin") : "";
  };
  const std::string completion = R"({"prompt":"say:x"})", stream = R"({"prompt":"say:x","stream":true})";
  for (const std::string& request : {get("/health", kPage), get("/v1/models", kPage), get("/nowhere", kPage),
                                     post("/v1/completions", completion, kPage), post("/v1/completions", stream, kPage),
                                     post("/v1/completions", "{", kPage),
                                     post("/v1/completions", completion, std::string(kPage) + "Expect: miracles\r\n")})
    EXPECT_EQ(allowed(request), "https://app.example") << request;
  EXPECT_EQ(allowed(get("/health", "Origin: http://localhost:3000\r\n")), "http://localhost:3000");
  EXPECT_EQ(allowed(get("/health", "Origin: http://localhost:3001\r\n")), "") << "its own name, but not on the list";
  EXPECT_EQ(allowed(get("/health")), "");
  EXPECT_EQ(allowed(get("/health", kOther)), "");
  EXPECT_EQ(s.ask(get("/health", kPage)).status, 200);
  EXPECT_EQ(s.ask(get("/health", kOther)).status, 403);

  const Response asked = s.ask(preflight("/v1/chat/completions", kPage));
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.headers.at("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(asked.headers.at("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(asked.headers.at("access-control-allow-headers"), "*, Authorization");
  EXPECT_EQ(asked.headers.at("access-control-max-age"), "7200");
  EXPECT_EQ(s.ask(preflight("/v1/chat/completions", kOther)).status, 403);
  EXPECT_EQ(s.ask(preflight("/nowhere", kPage)).status, 404);
  const std::string foreign =
      "OPTIONS /v1/models HTTP/1.1\r\nHost: evil.example\r\nAccess-Control-Request-Method: GET\r\n";
  EXPECT_EQ(s.ask(foreign + kPage + "\r\n").status, 403) << "another site's name for this machine";

  Running without;
  without.start();
  const Response plain = without.ask(get("/health", "Origin: http://localhost:3000\r\n"));
  EXPECT_EQ(plain.status, 200);
  EXPECT_FALSE(plain.headers.count("access-control-allow-origin"));
  EXPECT_FALSE(plain.headers.count("vary"));
}

TEST(FrontDoor, APreflightNeedsNoKeyAndOpensNothing) {
  const Scratch dir;
  put(dir / "keys", "right-key-1\n");
  Config setup = with_origin();
  setup.options.api_key_file = dir / "keys";
  Running s(setup);
  s.start();
  EXPECT_EQ(s.ask(preflight("/v1/models", kPage)).status, 204);
  EXPECT_EQ(s.ask(preflight("/v1/models", kOther)).status, 401);
  EXPECT_EQ(s.ask(preflight("/nowhere", kPage)).status, 401);
  EXPECT_EQ(s.ask("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n" + std::string(kPage) + "\r\n").status, 401);
  const Response refused = s.ask(get("/v1/models", kPage));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "https://app.example") << "the page may read why";
  const Response other = s.ask(get("/v1/models", std::string(kOther) + "Authorization: Bearer right-key-1\r\n"));
  EXPECT_EQ(other.status, 200) << "the key says who asks";
  EXPECT_FALSE(other.headers.count("access-control-allow-origin"));
}

TEST(FrontDoor, OriginsAreThoseThatBrowsersSend) {
  for (const char* good :
       {"https://app.example", "http://localhost:3000", "http://[::1]:8080", "chrome-extension://abc"})
    EXPECT_TRUE(AllowedHosts({}, {good}).shares_with(good)) << good;
  for (const char* bad : {"*", "", "null", "app.example", "https://", "https://app.example/", "https://App.example",
                          "https://app.example:443", "http://app.example:80", "https://*.example", "https://a b",
                          "https://a,https://b", "https://a@b", "://a", "https://app.example?x"})
    expect_error(ErrorKind::kUsage, {"--allow-origin", bad}, [&] { AllowedHosts({}, {bad}); });
}

TEST(FrontDoor, ProbesAndVersion) {
  const Scratch dir;
  put(dir / "keys", "right-key-1\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  Running s(setup);
  EXPECT_EQ(s.ask(get("/ping")).status, 200) << "alive while loading";
  s.start();
  EXPECT_EQ(s.ask(get("/ping")).status, 200);
  EXPECT_EQ(s.ask("POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").status, 200);
  EXPECT_EQ(s.ask("POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc").status, 200);
  const Response wrong = s.ask("PUT /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(s.ask("POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").status, 405);
  EXPECT_EQ(s.ask(get("/version")).status, 401);
  const std::string key = "Authorization: Bearer right-key-1\r\n";
  EXPECT_EQ(Json::parse(s.ask(get("/version", key)).body), (Json{{"version", kToolVersion}}));
  EXPECT_EQ(s.ask(get("/openapi.json")).status, 401);
  EXPECT_EQ(s.ask(get("/openapi.json", key)).body,
            testing::get(std::filesystem::path(source_folder()) / "docs/openapi.json"));
  const std::string metrics = s.ask(get("/metrics", key)).body;
  for (const char* line : {"specdec:requests_total{route=\"/ping\",status=\"200\"} 4",
                           "specdec:requests_total{route=\"/version\",status=\"200\"} 1"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace specdec::deploy
