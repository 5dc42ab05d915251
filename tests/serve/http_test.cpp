// Tests of the HTTP transport alone: requests and replies.
#include "deploy/serve/http/http.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/json.h"
#include "tests/serve/toy_http.h"

namespace specdec::deploy {
namespace {

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
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\nContent-Length: 0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
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

// A body whose end cannot be determined must not count as empty, because its bytes would then be served as the next
// request (RFC 9112 6.3).
TEST(Http, ABodyThatEndsNowhereIsNotServedAsARequest) {
  Http h;
  for (const std::string coding :
       {"gzip", "chunked, identity", "identity", "chunked;q=1", "xchunked", "chunked, chunked", "", ",", "chunked,"}) {
    Client c(h.port);
    c.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + coding + "\r\n\r\n" + get("/hello?smuggled"));
    const Response r = c.read();
    EXPECT_EQ(r.status, 400) << coding;
    EXPECT_EQ(c.read_all().find("smuggled"), std::string::npos) << coding;
  }
  EXPECT_EQ(h.handler.count(200), 0);
}

TEST(Http, LimitsHoldJustUnderAtAndAbove) {
  Http h;
  const ServeLimits limits = small_limits();
  for (const int delta : {-1, 0, 1}) {
    Client fields(h.port);
    std::string headers;
    for (size_t i = 1; i < limits.header_fields + static_cast<size_t>(delta); ++i)
      headers += "A" + std::to_string(i) + ": b\r\n";
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
  // The limit applies to the whole head, including the request line and the empty line.
  const auto sized = [&](size_t bytes) {
    const std::string empty = get("/hello", "A: \r\n");
    return get("/hello", "A: " + std::string(bytes - empty.size(), 'a') + "\r\n");
  };
  for (const auto& [bytes, status] :
       {std::pair{limits.header_bytes - 1, 200}, {limits.header_bytes, 200}, {limits.header_bytes + 1, 431}}) {
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
  Client old(h.port);  // HTTP/1.0 has no 100 Continue (RFC 9110 10.1.1)
  old.send("POST /echo HTTP/1.0\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc");
  EXPECT_EQ(old.read().status, 200);
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
  for (const char* line : {"\r\n", "\r"}) {  // an empty line, or a part of one, does not begin a request
    Client kept(h.port);
    kept.send(post("/echo", "x") + line);
    EXPECT_EQ(kept.read().status, 200);
    EXPECT_TRUE(kept.at_end());
    Client later(h.port);
    later.send(post("/echo", "x"));
    EXPECT_EQ(later.read().status, 200);
    later.send(line);
    EXPECT_TRUE(later.at_end());
  }
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

// Connections end after every byte of a request, by an orderly close or a reset. The server must survive and leak no
// connection.
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

}  // namespace
}  // namespace specdec::deploy
