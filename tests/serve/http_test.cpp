// The transport alone, with a handler made for the purpose.
#include "deploy/serve/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/json.h"
#include "tests/serve/client.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;

// POST /echo answers with the body; /stream sends the pieces that the test pushes; GET /hello is answered at once.
class ToyHandler final : public HttpHandler {
 public:
  class Stream final : public Exchange {
   public:
    explicit Stream(ToyHandler& owner) : owner_(owner) {}
    void on_wake(std::function<void()> wake) override {
      const std::lock_guard lock(mutex_);
      wake_ = std::move(wake);
    }
    Turn next() override {
      const std::lock_guard lock(mutex_);
      if (!pieces_.empty()) {
        Turn turn{Turn::Kind::kData, {}, pieces_.front()};
        pieces_.erase(pieces_.begin());
        return turn;
      }
      return ended_ ? Turn{Turn::Kind::kEnd, {}, {}} : Turn{};
    }
    void abandon() override { owner_.abandoned.fetch_add(1); }
    void push(const std::string& piece, bool end) {
      std::function<void()> wake;
      {
        const std::lock_guard lock(mutex_);
        if (!piece.empty()) pieces_.push_back(piece);
        ended_ = end;
        wake = wake_;
      }
      if (wake) wake();
    }

   private:
    ToyHandler& owner_;
    std::mutex mutex_;
    std::vector<std::string> pieces_;
    bool ended_ = false;
    std::function<void()> wake_;
  };
  class Echo final : public Exchange {
   public:
    explicit Echo(std::string body) : body_(std::move(body)) {}
    void on_wake(std::function<void()>) override {}
    Turn next() override { return {Turn::Kind::kReply, {200, "text/plain", body_, {}}, {}}; }
    void abandon() override {}

   private:
    std::string body_;
  };

  std::optional<HttpReply> answer_head(const HttpRequest& request) override {
    if (request.path == "/hello") return HttpReply{200, "text/plain", "hello " + request.method + " " + request.query, {{"X-Toy", "1"}}};
    if (request.path == "/refused") return error_reply(invalid_api_key(), request.id);
    return std::nullopt;
  }
  std::shared_ptr<Exchange> respond(HttpRequest request) override {
    if (request.path != "/stream") return std::make_shared<Echo>(request.body);
    auto stream = std::make_shared<Stream>(*this);
    std::unique_lock lock(mutex_);
    streams_.push_back(stream);
    arrived_.notify_all();
    if (request.query == "slowly") arrived_.wait_for(lock, std::chrono::milliseconds(200));  // much happens before the connection has it
    return stream;
  }
  void replied(const HttpRequest&, int status) override {
    const std::lock_guard lock(mutex_);
    ++statuses[status];
  }
  std::shared_ptr<Stream> stream(size_t index) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return streams_.size() > index; });
    return streams_[index];
  }
  int count(int status) {
    const std::lock_guard lock(mutex_);
    return statuses[status];
  }

  std::atomic<int> abandoned{0};

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::map<int, int> statuses;
};

ServeLimits small_limits() {
  ServeLimits limits;
  limits.header_bytes = 2048;
  limits.header_fields = 10;
  limits.body_bytes = 1000;
  limits.connections = 8;
  return limits;
}

struct Http {
  explicit Http(ServeLimits limits = small_limits()) : server(limits) {
    port = server.listen("127.0.0.1", 0, handler);
    server.start();
  }
  ToyHandler handler;
  HttpServer server;
  int port = 0;
};

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(condition()) << "not reached in 10 s";
}

TEST(Http, KeepsAliveAndAnswersPipelinedRequestsInOrder) {
  Http h;
  Client c(h.port);
  std::string many;
  for (int i = 0; i < 300; ++i) many += i % 3 ? get("/hello?" + std::to_string(i)) : post("/echo", std::to_string(i));
  std::thread sender([&] { c.send(many); });
  for (int i = 0; i < 300; ++i) {
    const Response r = c.read();
    ASSERT_EQ(r.status, 200) << i;
    ASSERT_EQ(r.body, i % 3 ? "hello GET " + std::to_string(i) : std::to_string(i));
  }
  sender.join();
  EXPECT_EQ(h.handler.count(200), 300);
}

TEST(Http, RequestIdsDiffer) {
  Http h;
  Client c(h.port);
  c.send(get("/hello") + get("/hello"));
  const Response a = c.read(), b = c.read();
  EXPECT_TRUE(a.headers.at("x-request-id").starts_with("req-"));
  EXPECT_NE(a.headers.at("x-request-id"), b.headers.at("x-request-id"));
  EXPECT_EQ(a.headers.at("x-toy"), "1");
  EXPECT_EQ(a.headers.at("x-content-type-options"), "nosniff");
}

TEST(Http, HeadHasTheLengthAndNoBody) {
  Http h;
  Client c(h.port);
  c.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n" + get("/hello"));
  EXPECT_EQ(c.read(true).headers.at("content-length"), std::to_string(std::string("hello HEAD ").size()));
  EXPECT_EQ(c.read().body, "hello GET ");
}

TEST(Http, Http10ClosesUnlessAskedOtherwise) {
  Http h;
  Client c(h.port);
  c.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(c.read().status, 200);
  EXPECT_TRUE(c.at_end());
  Client k(h.port);
  k.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(k.read().status, 200);
  k.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(k.read().status, 200);
}

TEST(Http, ConnectionCloseIsObeyed) {
  Http h;
  Client c(h.port);
  c.send(get("/hello", "Connection: close\r\n"));
  EXPECT_EQ(c.read().headers.at("connection"), "close");
  EXPECT_TRUE(c.at_end());
}

TEST(Http, AbsoluteFormIsTaken) {
  Http h;
  Client c(h.port);
  c.send(get("http://somewhere.example/hello?q") + get("http://somewhere.example"));
  EXPECT_EQ(c.read().body, "hello GET q");
}

struct Malformed {
  std::string bytes;
  int status;
};

TEST(Http, MalformedRequestsAreAnsweredAndClosed) {
  Http h;
  const std::vector<Malformed> cases = {
      {"garbage\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
      {"GET /hello\r\n\r\n", 400},
      {"GET /hello HTTP/2.0\r\nHost: x\r\n\r\n", 505},
      {"GET /hello HTTP/1.1\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
      {"GET /he llo HTTP/1.1\r\nHost: x\r\n\r\n", 505},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nA\x01: b\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\nContent-Length: 3\r\n\r\nabc", 417},
      {"GET /" + std::string(3000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 431},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nA: " + std::string(3000, 'a') + "\r\n\r\n", 431},
  };
  for (const Malformed& m : cases) {
    Client c(h.port);
    c.send(m.bytes);
    const Response r = c.read();
    EXPECT_EQ(r.status, m.status) << m.bytes.substr(0, 90);
    EXPECT_EQ(r.headers.count("connection") ? r.headers.at("connection") : "", "close") << m.bytes.substr(0, 90);
    EXPECT_FALSE(Json::parse(r.body, nullptr, false).is_discarded()) << r.body;
    EXPECT_TRUE(c.at_end()) << m.bytes.substr(0, 90);
  }
}

TEST(Http, LimitsHoldJustUnderAtAndAbove) {
  Http h;
  const ServeLimits limits = small_limits();
  for (const int delta : {-1, 0, 1}) {
    Client fields(h.port);
    std::string headers;
    for (size_t i = 1; i < limits.header_fields + static_cast<size_t>(delta); ++i) headers += "A" + std::to_string(i) + ": b\r\n";
    fields.send(get("/hello", headers));
    EXPECT_EQ(fields.read().status, delta > 0 ? 431 : 200);

    const std::string body(limits.body_bytes + static_cast<size_t>(delta), 'b');
    Client fixed(h.port);
    fixed.send(post("/echo", body));
    const Response r = fixed.read();
    EXPECT_EQ(r.status, delta > 0 ? 413 : 200);
    Client chunked(h.port);
    std::string chunks;
    for (size_t at = 0; at < body.size(); at += 100) {
      const std::string part = body.substr(at, 100);
      char size[16];
      std::snprintf(size, sizeof size, "%zx\r\n", part.size());
      chunks += size + part + "\r\n";
    }
    chunked.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n");
    const Response q = chunked.read();
    EXPECT_EQ(q.status, delta > 0 ? 413 : 200);
    EXPECT_EQ(q.body == body, delta <= 0);
  }
  // The whole header: request line and empty line included.
  const auto sized = [&](size_t bytes) {
    const std::string empty = get("/hello", "A: \r\n");
    return get("/hello", "A: " + std::string(bytes - empty.size(), 'a') + "\r\n");
  };
  for (const auto& [bytes, status] : {std::pair{limits.header_bytes - 1, 200}, {limits.header_bytes, 200}, {limits.header_bytes + 1, 431}}) {
    Client c(h.port);
    c.send(sized(bytes));
    EXPECT_EQ(c.read().status, status) << bytes;
  }
}

TEST(Http, ALargeBodyIsRefusedBeforeItIsSentWhenTheClientWaits) {
  Http h;
  Client c(h.port);
  c.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(c.read().status, 413);
  Client ok(h.port);
  ok.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(ok.wait_for("100 Continue"));
  ok.send("abc");
  EXPECT_EQ(ok.read().body, "abc");
}

TEST(Http, AnEarlyRefusalReachesAClientThatStillSends) {
  Http h;
  Client c(h.port);
  c.send("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n");
  c.send(std::string(900, 'x'));
  EXPECT_EQ(c.read().status, 401);
}

TEST(Http, SlowClientsAreCutOff) {
  ServeLimits limits = small_limits();
  limits.header_seconds = limits.body_seconds = 0.15;
  limits.idle_seconds = 0.3;
  Http h(limits);
  Client silent(h.port);
  EXPECT_TRUE(silent.at_end());
  Client half(h.port);
  half.send("GET /hello HTTP/1.1\r\nHos");
  EXPECT_EQ(half.read().status, 408);
  Client body(h.port);
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.read().status, 408);
  Client idle(h.port);
  idle.send(get("/hello"));
  EXPECT_EQ(idle.read().status, 200);
  EXPECT_TRUE(idle.at_end());
}

TEST(Http, AnAnswerThatTakesTooLongIsGivenUp) {
  ServeLimits limits = small_limits();
  limits.total_seconds = 0.2;
  Http h(limits);
  Client waits(h.port);
  waits.send(post("/stream", "x"));
  EXPECT_EQ(waits.read().status, 408);
  Client streams(h.port);
  streams.send(post("/stream", "x"));
  h.handler.stream(1)->push("data: 1\n\n", false);
  const Response r = streams.read();
  EXPECT_EQ(r.body, "data: 1\n\n");
  EXPECT_FALSE(r.complete) << "no last chunk: the client can tell";
  wait_until([&] { return h.handler.abandoned.load() == 2; });
}

TEST(Http, StreamsAreChunkedAndTheConnectionGoesOn) {
  Http h;
  Client c(h.port);
  c.send(post("/stream", "x"));
  const auto stream = h.handler.stream(0);
  stream->push("data: one\n\n", false);
  ASSERT_TRUE(c.wait_for("one"));
  stream->push("data: two\n\n", true);
  const Response r = c.read();
  EXPECT_TRUE(r.complete);
  EXPECT_EQ(r.body, "data: one\n\ndata: two\n\n");
  EXPECT_TRUE(r.headers.at("content-type").starts_with("text/event-stream"));
  c.send(get("/hello"));
  EXPECT_EQ(c.read().status, 200);
  EXPECT_EQ(h.handler.abandoned.load(), 0);
}

TEST(Http, AStreamToHttp10EndsWithTheConnection) {
  Http h;
  Client c(h.port);
  c.send("POST /stream HTTP/1.0\r\nContent-Length: 1\r\n\r\nx");
  h.handler.stream(0)->push("data: one\n\n", true);
  const Response r = c.read();
  EXPECT_EQ(r.body, "data: one\n\n");
  EXPECT_FALSE(r.headers.count("transfer-encoding"));
}

TEST(Http, ADisconnectIsNoticedWhileTheEngineWorks) {
  Http h;
  for (int how = 0; how < 3; ++how) {
    Client c(h.port);
    c.send(post("/stream", "x"));
    const auto stream = h.handler.stream(static_cast<size_t>(how));
    if (how == 1) {
      stream->push("data: one\n\n", false);
      ASSERT_TRUE(c.wait_for("one"));
    }
    if (how == 2)
      c.reset();
    else
      c.close();
    wait_until([&] { return h.handler.abandoned.load() == how + 1; });
  }
  wait_until([&] { return h.server.connections() == 0; });
}

TEST(Http, APipelinedRequestIsNoDisconnect) {
  Http h;
  Client c(h.port);
  c.send(post("/stream", "x"));
  const auto stream = h.handler.stream(0);
  c.send(get("/hello"));
  stream->push("data: one\n\n", true);
  EXPECT_EQ(c.read().body, "data: one\n\n");
  EXPECT_EQ(c.read().body, "hello GET ");
  EXPECT_EQ(h.handler.abandoned.load(), 0);
}

TEST(Http, TooManyConnectionsAreToldSo) {
  Http h;
  std::vector<std::unique_ptr<Client>> all;
  for (size_t i = 0; i < small_limits().connections; ++i) {
    all.push_back(std::make_unique<Client>(h.port));
    all.back()->send(get("/hello"));
    EXPECT_EQ(all.back()->read().status, 200);
  }
  Client surplus(h.port);
  const Response r = surplus.read();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.headers.at("retry-after"), "1");
  all.pop_back();
  wait_until([&] { return h.server.connections() < small_limits().connections; });
  Client next(h.port);
  next.send(get("/hello"));
  EXPECT_EQ(next.read().status, 200);
}

// A request cut off at every byte, by an orderly and by an abortive close: the server lives and leaks no connection.
TEST(Http, ARequestMayEndAtEveryByte) {
  Http h;
  const std::string whole = post("/echo", "body");
  for (size_t n = 0; n <= whole.size(); ++n) {
    Client c(h.port);
    c.send(whole.substr(0, n));
    if (n % 2)
      c.reset();
    else
      c.close();
    if (n % 4 == 0) wait_until([&] { return h.server.connections() == 0; });
  }
  Client c(h.port);
  c.send(whole);
  EXPECT_EQ(c.read().body, "body");
}

TEST(Http, StopAcceptingClosesTheIdleAndLetsTheOthersFinish) {
  Http h;
  Client idle(h.port), busy(h.port);
  idle.send(get("/hello"));
  EXPECT_EQ(idle.read().status, 200);
  busy.send(post("/stream", "x"));
  const auto stream = h.handler.stream(0);
  h.server.stop_accepting();
  EXPECT_TRUE(idle.at_end());
  stream->push("data: one\n\n", true);
  EXPECT_EQ(busy.read().body, "data: one\n\n");
  EXPECT_TRUE(busy.at_end());
}

TEST(Http, StopEndsWhatRuns) {
  auto h = std::make_unique<Http>();
  Client busy(h->port);
  busy.send(post("/stream", "x"));
  const auto stream = h->handler.stream(0);
  h->server.stop();
  EXPECT_EQ(h->server.connections(), 0u);
  EXPECT_EQ(busy.read().status, 0);
}

TEST(Http, StopEndsWhatIsAboutToRun) {  // fails by not ending
  Http h;
  Client busy(h.port);
  busy.send(post("/stream?slowly", "x"));
  h.handler.stream(0);
  h.server.stop();
  EXPECT_EQ(h.handler.abandoned, 1);
}

TEST(Http, APortInUseIsAnErrorThatNamesIt) {
  Http h;
  HttpServer other(small_limits());
  expect_error(ErrorKind::kIo, {"--port", std::to_string(h.port), "in use"}, [&] { other.listen("127.0.0.1", h.port, h.handler); });
  expect_error(ErrorKind::kUsage, {"--host"}, [&] { other.listen("no such host.invalid", 0, h.handler); });
}

TEST(Http, AUnixSocketIsPrivateAndReplacesADeadOne) {
  const Scratch dir;
  const auto path = dir / "admin.sock";
  ToyHandler handler;
  {
    HttpServer server(small_limits());
    server.listen_unix(path, handler);
    server.start();
    EXPECT_EQ(fs::status(path).permissions() & fs::perms::mask, fs::perms::owner_read | fs::perms::owner_write);
    Client c(path.string());
    c.send(get("/hello"));
    EXPECT_EQ(c.read().status, 200);
    HttpServer second(small_limits());
    expect_error(ErrorKind::kIo, {"another server"}, [&] { second.listen_unix(path, handler); });
  }
  EXPECT_FALSE(fs::exists(path));
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(dead);
  HttpServer server(small_limits());
  EXPECT_NO_THROW(server.listen_unix(path, handler));
  testing::put(dir / "file", "x");
  expect_error(ErrorKind::kUsage, {"no socket"}, [&] { server.listen_unix(dir / "file", handler); });
  expect_error(ErrorKind::kUsage, {"longer"}, [&] { server.listen_unix(dir / std::string(200, 'a'), handler); });
}

}  // namespace
}  // namespace specdec::deploy
