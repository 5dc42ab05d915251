// Tests of the HTTP transport with TLS: requests and replies, hostile clients, and the certificate and key files.
#include "deploy/serve/http/tls.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/serve/tls_client.h"
#include "tests/serve/toy_http.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::put;

struct Https {
  explicit Https(ServeLimits limits = small_limits())
      : files(write_identity(dir.root(), "first")), identity(files.certificate, files.key), http(limits, &identity) {}
  // Checks that a well-behaved client is served, whatever other clients do.
  void expect_served() {
    TlsClient c(http.port);
    c.send(get("/hello"));
    EXPECT_EQ(c.read().status, 200);
  }
  const Scratch dir;
  const IdentityFiles files;
  TlsIdentity identity;
  Http http;
};

TEST(Tls, KeepsAliveAndAnswersPipelinedRequestsInOrder) {
  Https h;
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient c(h.http.port, version);
    ASSERT_TRUE(c.secure());
    EXPECT_EQ(SSL_version(c.session()), version);
    EXPECT_EQ(c.peer(), "first");
    std::string many;
    for (int i = 0; i < 300; ++i) many += i % 3 ? get("/hello?" + std::to_string(i)) : post("/echo", std::to_string(i));
    c.send(many);
    for (int i = 0; i < 300; ++i) {
      const Response r = c.read();
      ASSERT_EQ(r.status, 200) << i;
      ASSERT_EQ(r.body, i % 3 ? "hello GET " + std::to_string(i) : std::to_string(i));
    }
  }
}

TEST(Tls, LargeBodiesArriveWhole) {
  ServeLimits limits = small_limits();
  limits.body_bytes = 4 << 20;
  Https h(limits);
  TlsClient c(h.http.port);
  for (const size_t bytes : {0, 1, 16000, 16384, 16385, 100000, 4 << 20}) {
    std::string body(bytes, ' ');
    for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<char>('a' + i * 7 % 26);
    c.send(post("/echo", body));
    const Response r = c.read();
    EXPECT_EQ(r.status, 200) << bytes;
    EXPECT_TRUE(r.body == body) << bytes;
  }
}

TEST(Tls, StreamsAreChunkedAndTheConnectionGoesOn) {
  Https h;
  TlsClient c(h.http.port);
  c.send(post("/stream", "x"));
  const auto stream = h.http.handler.stream(0);
  stream->push("data: one\n\n", false);
  ASSERT_TRUE(c.wait_for("one"));
  c.send(get("/hello"));  // the next request must not count as a disconnect
  stream->push("data: two\n\n", true);
  const Response r = c.read();
  EXPECT_TRUE(r.complete);
  EXPECT_EQ(r.body, "data: one\n\ndata: two\n\n");
  EXPECT_EQ(c.read().body, "hello GET ");
  EXPECT_EQ(h.http.handler.abandoned.load(), 0);
}

// The server must send close_notify, or a client could not tell a complete reply from one that was cut off.
TEST(Tls, TheServerSaysGoodbye) {
  Https h;
  TlsClient closing(h.http.port);
  closing.send(get("/hello", "Connection: close\r\n"));
  EXPECT_EQ(closing.read().status, 200);
  EXPECT_TRUE(closing.at_end());
  EXPECT_TRUE(closing.heard_goodbye());
  TlsClient old(h.http.port);
  old.send("POST /stream HTTP/1.0\r\nContent-Length: 1\r\n\r\nx");
  h.http.handler.stream(0)->push("data: one\n\n", true);
  EXPECT_EQ(old.read().body, "data: one\n\n");
  EXPECT_TRUE(old.heard_goodbye());
}

TEST(Tls, ADisconnectIsNoticedWhileTheEngineWorks) {
  Https h;
  for (int how = 0; how < 4; ++how) {
    TlsClient c(h.http.port, how < 2 ? TLS1_2_VERSION : TLS1_3_VERSION);
    c.send(post("/stream", "x"));
    const auto stream = h.http.handler.stream(static_cast<size_t>(how));
    stream->push("data: one\n\n", false);
    ASSERT_TRUE(c.wait_for("one"));
    if (how == 0)
      c.close();
    else if (how == 1)
      c.reset();
    else
      c.say_goodbye();  // sends close_notify, but the socket stays open
    wait_until([&] { return h.http.handler.abandoned.load() == how + 1; });
  }
  wait_until([&] { return h.http.server.connections() == 0; });
}

TEST(Tls, PlainHttpIsToldSo) {
  Https h;
  Client c(h.http.port);
  c.send(get("/hello"));
  const Response r = c.read();
  EXPECT_EQ(r.status, 400);
  EXPECT_NE(r.body.find("https_expected"), std::string::npos) << r.body;
  EXPECT_TRUE(c.at_end());
  h.expect_served();
  EXPECT_EQ(h.http.handler.count(400), 1);
}

TEST(Tls, GarbageEndsOnlyItsConnection) {
  Https h;
  std::string noise;
  for (int i = 0; i < 5000; ++i) noise += static_cast<char>(i * 131 % 251 + 1);
  const std::string hello("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", 10);
  for (const std::string& bytes : {noise, hello, std::string("\x16\x03\x01\xff\xff", 5) + noise,
                                   std::string(1000, '\0'), std::string("\x80\x2e\x01\x00\x02", 5) + noise}) {
    Client c(h.http.port);
    c.send(bytes);
    const std::string answer = c.read_all();
    EXPECT_EQ(answer.find("HTTP/"), std::string::npos) << answer;
    TlsClient late(h.http.port);
    late.send(get("/hello"));
    EXPECT_EQ(late.read().status, 200);
    late.send_raw(bytes);
    late.read_all();
    h.expect_served();
  }
  wait_until([&] { return h.http.server.connections() == 0; });
}

TEST(Tls, OldVersionsAndRenegotiationAreRefused) {
  Https h;
  EXPECT_FALSE(TlsClient(h.http.port, TLS1_1_VERSION).secure());
  TlsClient c(h.http.port, TLS1_2_VERSION);
  ASSERT_TRUE(c.secure());
  EXPECT_EQ(SSL_get_current_compression(c.session()), nullptr);
  SSL_renegotiate(c.session());
  EXPECT_NE(SSL_do_handshake(c.session()), 1) << "refused";
  h.expect_served();
}

TEST(Tls, SlowClientsAreCutOff) {
  ServeLimits limits = small_limits();
  limits.header_seconds = limits.body_seconds = limits.idle_seconds = 1;  // covers the handshake and the request
  Https h(limits);
  Client silent(h.http.port), half(h.http.port);
  half.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(half.at_end());
  TlsClient mute(h.http.port);
  EXPECT_TRUE(mute.at_end()) << "it has shaken hands and sends nothing";
  TlsClient head(h.http.port);
  head.send("GET /hello HTTP/1.1\r\nHos");
  EXPECT_EQ(head.read().status, 408);
  TlsClient idle(h.http.port);
  idle.send(get("/hello"));
  EXPECT_EQ(idle.read().status, 200);
  EXPECT_TRUE(idle.at_end());
}

TEST(Tls, AClientThatStopsReadingIsCutOff) {
  ServeLimits limits = small_limits();
  limits.write_seconds = 0.3;
  Https h(limits);
  TlsClient c(h.http.port);
  c.send(post("/stream", "x"));
  h.http.handler.stream(0)->push(std::string(32 << 20, 'x'), false);  // more than the buffers of both sockets hold
  wait_until([&] { return h.http.handler.abandoned.load() == 1; });
  wait_until([&] { return h.http.server.connections() == 0; });
}

TEST(Tls, HalfOpenHandshakesTakeNoPlaceOfAGoodClient) {
  Https h;
  std::vector<std::unique_ptr<Client>> half;
  for (size_t i = 0; i < 4 * small_limits().connections; ++i) {
    half.push_back(std::make_unique<Client>(h.http.port));
    if (i % 2) half.back()->send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
    if (i % 8 == 7) h.expect_served();
  }
  EXPECT_EQ(h.http.handler.count(503), 0);
}

// Connections end after every byte that the client sends of a handshake and a request. The server must survive and leak
// no connection.
TEST(Tls, AConnectionMayEndAtEveryByte) {
  Https h;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  for (size_t sent = 0; sent < 600; sent += 1 + sent / 40) {
    const std::unique_ptr<SSL, decltype(&SSL_free)> session(SSL_new(context.get()), SSL_free);
    BIO* const out = BIO_new(BIO_s_mem());
    SSL_set_bio(session.get(), BIO_new(BIO_s_mem()), out);
    SSL_connect(session.get());  // writes the first handshake message to `out`
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(out, &bytes);
    Client c(h.http.port);
    c.send(std::string(bytes, std::min(static_cast<size_t>(size), sent)));
    if (sent % 2)
      c.reset();
    else
      c.close();
  }
  wait_until([&] { return h.http.server.connections() == 0; });
  h.expect_served();
}

TEST(Tls, AReloadIsForNewConnections) {
  Https h;
  TlsClient before(h.http.port);
  const IdentityFiles second = write_identity(h.dir.root(), "second");
  put(h.files.certificate, testing::get(second.certificate));
  expect_error(ErrorKind::kConfig, {"does not belong"}, [&] { h.identity.reload(); });
  EXPECT_EQ(TlsClient(h.http.port).peer(), "first") << "the old pair stays in force";
  put(h.files.key, testing::get(second.key));
  h.identity.reload();
  EXPECT_EQ(TlsClient(h.http.port).peer(), "second");
  before.send(get("/hello"));
  EXPECT_EQ(before.read().status, 200);
  EXPECT_EQ(before.peer(), "first");
}

TEST(Tls, BadFilesAreNamed) {
  const Scratch dir;
  const IdentityFiles good = write_identity(dir.root(), "good"), other = write_identity(dir.root(), "other"),
                      locked = write_identity(dir.root(), "locked", "passphrase");
  const auto refused = [&](const fs::path& certificate, const fs::path& key, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kConfig, parts, [&] { TlsIdentity identity(certificate, key); });
  };
  refused(dir / "none", good.key, {"/none"});
  refused(good.certificate, dir / "none", {"/none"});
  refused(dir.root(), good.key, {dir.root().string()});
  refused(good.certificate, other.key, {other.key.string(), "does not belong", good.certificate.string()});
  refused(good.key, good.key, {good.key.string(), "no certificate found"});
  refused(good.certificate, good.certificate, {"no private key found"});
  refused(good.certificate, locked.key, {locked.key.string(), "not encrypted"});
  const std::string pem = testing::get(good.certificate);
  put(dir / "cut", pem.substr(0, pem.size() / 2));
  refused(dir / "cut", good.key, {"no certificate found"});
  put(dir / "chain", pem + testing::get(other.certificate));
  EXPECT_NO_THROW(TlsIdentity(dir / "chain", good.key));
  put(dir / "cut-chain", pem + pem.substr(0, pem.size() / 2));
  refused(dir / "cut-chain", good.key, {"a further certificate is malformed"});
  put(dir / "with-key", pem + testing::get(good.key));
  EXPECT_NO_THROW(TlsIdentity(dir / "with-key", dir / "with-key")) << "both in one file";
}

}  // namespace
}  // namespace specdec::deploy
