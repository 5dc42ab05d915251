#include "net/http_client.h"

#include <arpa/inet.h>

#include <atomic>

#include "tests/base/scratch.h"
#include "tests/net/toy_server.h"

namespace specdec::net {
namespace {

using testing::expect_error;

HttpRequest get(const std::string& url, Redirects redirects = Redirects::kNone) {
  HttpRequest r;
  r.url = url;
  r.redirects = redirects;
  r.bearer = "sekret";
  return r;
}
bool has_key(const ToyRequest& r) { return r.head.find("Authorization: Bearer sekret") != std::string::npos; }

TEST(HttpClient, TheKeyStaysWithItsHost) {
  std::atomic<int> far_calls{0};
  ToyServer far([&](const ToyRequest& r) -> ToyReply {
    ++far_calls;
    EXPECT_EQ(r.head.find("sekret"), std::string::npos) << r.head;
    return {200, "far", ""};
  });
  ToyServer near([&](const ToyRequest& r) -> ToyReply {
    EXPECT_TRUE(has_key(r)) << r.head;
    if (r.path == "/moved") return {307, "", "Location: /here\r\n"};
    if (r.path == "/away") return {302, "", "X-Size: 7\r\nLocation: " + far.url() + "/there\r\n"};
    return {200, "here", ""};
  });
  HttpClient client;
  EXPECT_EQ(client.once(get(near.url() + "/moved")).status, 307);
  EXPECT_EQ(client.once(get(near.url() + "/moved", Redirects::kSameOrigin)).body, "here");
  const HttpReply kept = client.once(get(near.url() + "/away", Redirects::kSameOrigin));
  EXPECT_EQ(kept.status, 302);
  EXPECT_EQ(kept.header("x-size"), "7");
  EXPECT_EQ(far_calls, 0);
  EXPECT_EQ(client.once(get(near.url() + "/away", Redirects::kAnywhere)).body, "far");
  EXPECT_EQ(far_calls, 1);
}

TEST(HttpClient, RedirectsThatAreRefused) {
  std::string location;
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {302, "", "Location: " + location + "\r\n"}; });
  location = "/again";
  expect_error(ErrorKind::kNetwork, {"more than 5 times"}, [&] { HttpClient().once(get(server.url(), Redirects::kAnywhere)); });
  for (const char* other : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:1/"}) {
    location = other;
    expect_error(ErrorKind::kNetwork, {"another protocol"}, [&] { HttpClient().once(get(server.url(), Redirects::kAnywhere)); });
  }
}

TEST(HttpClient, ALongBodyMayBreakMoreOftenThanThereAreAttempts) {
  const std::string whole(32 << 20, 'x');
  size_t begin = 0, calls = 0;
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {206, whole.substr(begin), "Content-Range: bytes " + std::to_string(begin) + "-/*\r\n", false, ++calls < 4}; });
  Backoff twice;
  twice.max_attempts = 2;
  twice.sleep = [](double) {};
  HttpClient client;
  const HttpReply reply = client.send([&] {
    HttpRequest r = get(server.url());
    r.on_body = [&](const HttpReply& head, std::string_view bytes) {
      EXPECT_EQ(head.status, 206);
      begin += bytes.size();
    };
    return r;
  }, twice);
  EXPECT_EQ(reply.problem, "");
  EXPECT_EQ(calls, 4u);
  EXPECT_EQ(begin, whole.size());
  // Less than 1 MiB an attempt counts.
  begin = whole.size() - 1000;
  calls = 0;
  EXPECT_NE(client.send([&] { return get(server.url()); }, twice).problem, "");
  EXPECT_EQ(calls, 2u);
}

TEST(HttpClient, BytesThatCameBeforeAreNoProgress) {
  const std::string whole(8 << 20, 'x');
  for (const int status : {200, 206}) {
    ToyServer server([&](const ToyRequest&) -> ToyReply { return {status, whole, status == 206 ? "Content-Range: bytes 0-8388607/8388608\r\n" : "", false, true}; });
    Backoff backoff;
    backoff.max_attempts = 3;
    int waits = 0;
    backoff.sleep = [&](double) {
      if (++waits > 20) throw Error(ErrorKind::kInternal, "without end");
    };
    const HttpReply reply = HttpClient().send([&] {
      HttpRequest r = get(server.url());
      r.on_body = [](const HttpReply&, std::string_view) {};
      return r;
    }, backoff);
    EXPECT_NE(reply.problem, "");
    EXPECT_EQ(reply.attempts, 3);
    EXPECT_EQ(waits, 2);
  }
}

TEST(HttpClient, WhatTakesTheBodyMayRefuseIt) {
  ToyServer server([](const ToyRequest&) -> ToyReply { return {200, "body", ""}; });
  HttpRequest r = get(server.url());
  r.on_body = [](const HttpReply&, std::string_view) { throw Error(ErrorKind::kModel, "not wanted"); };
  expect_error(ErrorKind::kModel, {"not wanted"}, [&] { HttpClient().once(r); });
  r.bearer = "two\nlines";
  expect_error(ErrorKind::kUsage, {"line break"}, [&] { HttpClient().once(r); });
}

TEST(HttpClient, Addresses) {
  const auto is_inside = [](const char* text) {
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    v4.sin_family = AF_INET;
    v6.sin6_family = AF_INET6;
    if (::inet_pton(AF_INET, text, &v4.sin_addr) == 1) return is_private(reinterpret_cast<const sockaddr&>(v4));
    EXPECT_EQ(::inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
    return is_private(reinterpret_cast<const sockaddr&>(v6));
  };
  for (const char* inside : {"127.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1", "::", "fe80::1", "fd00::1",
                             "::ffff:10.0.0.1", "::ffff:169.254.169.254"})
    EXPECT_TRUE(is_inside(inside)) << inside;
  for (const char* outside : {"8.8.8.8", "172.32.0.1", "172.15.0.1", "192.169.0.1", "100.128.0.1", "11.0.0.1", "2606:4700::1", "::ffff:8.8.8.8"}) EXPECT_FALSE(is_inside(outside)) << outside;
}

TEST(HttpClient, Urls) {
  EXPECT_EQ(base_url("https://host:1/a/b//", "X", "Y"), "https://host:1/a/b");
  for (const char* bad : {"", "host", "ftp://host", "http://", "http://host?x", "http://ho st", "http://host/#a"}) expect_error(ErrorKind::kUsage, {"X: expected"}, [&] { base_url(bad, "X", "Y"); });
  const std::string refused = testing::error_of([] { base_url("https://me:sekret@host", "X", "Y"); }, ErrorKind::kUsage);
  EXPECT_EQ(refused.find("sekret"), std::string::npos);
  EXPECT_EQ(origin_of("https://HOST/x"), "https://host:443");
  EXPECT_EQ(origin_of("https://host:443/y"), origin_of("https://host/x"));
  EXPECT_NE(origin_of("http://host/x"), origin_of("https://host/x"));
  EXPECT_NE(origin_of("https://host:444"), origin_of("https://host"));
  EXPECT_EQ(origin_of("nonsense"), "");
  for (const char* safe : {"https://host", "http://localhost:1", "http://127.0.0.1", "http://127.9.9.9:80", "http://[::1]:5"}) EXPECT_TRUE(keeps_secrets(safe)) << safe;
  for (const char* unsafe : {"http://host", "http://10.0.0.1", "http://127.0.0.1.host", "http://localhost.host", "http://[::2]", ""}) EXPECT_FALSE(keeps_secrets(unsafe)) << unsafe;
}

}  // namespace
}  // namespace specdec::net
