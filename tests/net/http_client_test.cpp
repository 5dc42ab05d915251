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
  expect_error(ErrorKind::kNetwork, {"more than 5 times"},
               [&] { HttpClient().once(get(server.url(), Redirects::kAnywhere)); });
  for (const char* other : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1:1/"}) {
    location = other;
    expect_error(ErrorKind::kNetwork, {"another protocol"},
                 [&] { HttpClient().once(get(server.url(), Redirects::kAnywhere)); });
  }
}

TEST(HttpClient, ALongBodyMayBreakMoreOftenThanThereAreAttempts) {
  const std::string whole(32 << 20, 'x');
  size_t begin = 0, calls = 0;
  ToyServer server([&](const ToyRequest&) -> ToyReply {
    return {206, whole.substr(begin), "Content-Range: bytes " + std::to_string(begin) + "-/*\r\n", false, ++calls < 4};
  });
  Backoff twice;
  twice.max_attempts = 2;
  twice.sleep = [](double) {};
  HttpClient client;
  const HttpReply reply = client.send(
      [&] {
        HttpRequest r = get(server.url());
        r.on_body = [&](const HttpReply& head, std::string_view bytes) {
          EXPECT_EQ(head.status, 206);
          begin += bytes.size();
        };
        return r;
      },
      twice);
  EXPECT_EQ(reply.problem, "");
  EXPECT_EQ(calls, 4u);
  EXPECT_EQ(begin, whole.size());
  // An attempt that receives less than 1 MiB counts against max_attempts.
  begin = whole.size() - 1000;
  calls = 0;
  EXPECT_NE(client.send([&] { return get(server.url()); }, twice).problem, "");
  EXPECT_EQ(calls, 2u);
}

TEST(HttpClient, BytesThatCameBeforeAreNoProgress) {
  const std::string whole(8 << 20, 'x');
  for (const int status : {200, 206}) {
    ToyServer server([&](const ToyRequest&) -> ToyReply {
      return {status, whole, status == 206 ? "Content-Range: bytes 0-8388607/8388608\r\n" : "", false, true};
    });
    Backoff backoff;
    backoff.max_attempts = 3;
    int waits = 0;
    backoff.sleep = [&](double) {
      if (++waits > 20) throw Error(ErrorKind::kInternal, "without end");
    };
    const HttpReply reply = HttpClient().send(
        [&] {
          HttpRequest r = get(server.url());
          r.on_body = [](const HttpReply&, std::string_view) {};
          return r;
        },
        backoff);
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

TEST(HttpClient, SendsABodyPieceByPieceAndAgain) {
  std::string whole(3 << 20, '\0');
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<char>(i * 7 >> 5);
  std::vector<std::string> bodies, types;
  ToyServer server([&](const ToyRequest& r) -> ToyReply {
    EXPECT_EQ(r.method, "PUT");
    EXPECT_EQ(r.head.find("Content-Type"), std::string::npos) << r.head;
    bodies.push_back(r.body);
    return {bodies.size() == 1 ? 503 : 200, "", "ETag: \"tag\"\r\n", bodies.size() == 2};
  });
  Backoff backoff;
  backoff.sleep = [](double) {};
  const auto make = [&] {
    HttpRequest r = get(server.url());
    r.method = "PUT";
    r.upload_bytes = whole.size();
    r.upload = [&](uint64_t at, std::span<char> out) { whole.copy(out.data(), out.size(), at); };
    return r;
  };
  const HttpReply reply = HttpClient().send(make, backoff);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("etag"), "\"tag\"");
  ASSERT_EQ(bodies.size(), 3u);
  for (const std::string& body : bodies) EXPECT_TRUE(body == whole);
  HttpRequest bad = make();
  bad.upload = [](uint64_t, std::span<char>) { throw Error(ErrorKind::kData, "the file shrank"); };
  expect_error(ErrorKind::kData, {"the file shrank"}, [&] { HttpClient().once(bad); });
}

// A public hub must not redirect the client to a private address.
TEST(HttpClient, AForeignUrl) {
  int calls = 0;
  ToyServer server([&](const ToyRequest& r) -> ToyReply {
    ++calls;
    EXPECT_EQ(has_key(r), r.path == "/own") << r.head;
    return {200, std::string(100, 'x'), ""};
  });
  HttpRequest foreign = get(server.url() + "/x?signature=s3cret");
  foreign.foreign = true;
  expect_error(ErrorKind::kNetwork, {"leads to " + server.url(), "private network"},
               [&] { HttpClient().once(foreign); });
  EXPECT_EQ(calls, 0);
  HttpClient client;
  client.once(get(server.url() + "/own"));
  EXPECT_EQ(client.once(foreign).status, 200) << "a hub inside may name an address inside";
  foreign.max_body_bytes = 10;
  const std::string message = testing::error_of([&] { client.once(foreign); }, ErrorKind::kNetwork);
  EXPECT_NE(message.find("larger than 10"), std::string::npos);
  EXPECT_EQ(message.find("s3cret"), std::string::npos) << message;
}

Reach reach(const char* text) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  if (::inet_pton(AF_INET, text, &v4.sin_addr) == 1) return reach_of(reinterpret_cast<const sockaddr&>(v4));
  EXPECT_EQ(::inet_pton(AF_INET6, text, &v6.sin6_addr), 1) << text;
  return reach_of(reinterpret_cast<const sockaddr&>(v6));
}

TEST(HttpClient, HowFarAddressesReach) {
  for (const char* machine : {"127.0.0.1", "127.8.9.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "2002:7f00:1::"})
    EXPECT_EQ(reach(machine), Reach::kLoopback) << machine;
  for (const char* link :
       {"169.254.169.254", "fe80::1", "febf::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"})
    EXPECT_EQ(reach(link), Reach::kLinkLocal) << link;
  for (const char* inside : {"10.1.2.3", "192.168.1.1", "100.64.0.1", "fd00::1", "fec0::1", "::ffff:10.0.0.1"})
    EXPECT_EQ(reach(inside), Reach::kPrivate) << inside;
}

// A hub on this machine may redirect to another port of this machine, but neither to the local network nor to the
// link-local address at which cloud machines serve credentials.
TEST(HttpClient, ALoopbackHubOpensLoopbackAlone) {
  std::string location;
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {302, "", "Location: " + location + "\r\n"}; });
  for (const char* other : {"http://169.254.169.254/latest", "http://[fe80::1]/", "http://10.0.0.1/"}) {
    location = other;
    expect_error(ErrorKind::kNetwork, {"redirected to", "refused"},
                 [&] { HttpClient().once(get(server.url(), Redirects::kAnywhere)); });
  }
}

TEST(HttpClient, Addresses) {
  const auto is_inside = [](const char* text) { return reach(text) != Reach::kPublic; };
  for (const char* inside : {"127.0.0.1",
                             "10.1.2.3",
                             "172.16.0.1",
                             "172.31.255.255",
                             "192.168.1.1",
                             "169.254.169.254",
                             "100.64.0.1",
                             "0.0.0.0",
                             "::1",
                             "::",
                             "fe80::1",
                             "fd00::1",
                             "::ffff:10.0.0.1",
                             "::ffff:169.254.169.254",
                             "::10.0.0.1",
                             "64:ff9b::10.0.0.1",
                             "64:ff9b::a9fe:a9fe",
                             "64:ff9b:1::8.8.8.8",
                             "2002:a00:1::",
                             "2002:a9fe:a9fe::1",
                             "2002:7f00:1::",
                             "2001:0:0808:0808::f5ff:fffe",
                             "2001:0:a00:1::f7f7:f7f7",
                             "2606:4700::5efe:10.0.0.1",
                             "2606:4700::200:5efe:10.0.0.1",
                             "fec0::1",
                             "ff02::1",
                             "192.0.0.8",
                             "198.18.0.1",
                             "224.0.0.1",
                             "240.0.0.1",
                             "255.255.255.255"})
    EXPECT_TRUE(is_inside(inside)) << inside;
  for (const char* outside :
       {"8.8.8.8", "172.32.0.1", "172.15.0.1", "192.169.0.1", "100.128.0.1", "11.0.0.1", "2606:4700::1",
        "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "2001:0:0808:0808::f7f7:f7f7",
        "2606:4700::5efe:8.8.8.8", "198.20.0.1", "192.0.1.1", "223.255.255.255"})
    EXPECT_FALSE(is_inside(outside)) << outside;
}

// API keys and passwords in URLs are sent only over https or to this machine itself, whichever code uses the client.
TEST(HttpClient, AKeyIsNotSentInTheClear) {
  for (const char* url : {"http://10.255.255.1/metrics?token=s3cret", "http://metrics.example/x"})
    expect_error(ErrorKind::kUsage, {"plain http", "https"}, [&] { HttpClient().once(get(url)); });
  HttpRequest password;
  password.url = "http://me:hunter2@metrics.example/x?token=s3cret";
  const std::string refused = testing::error_of([&] { HttpClient().once(password); }, ErrorKind::kUsage);
  EXPECT_NE(refused.find("http://***@metrics.example/x?***"), std::string::npos) << refused;
  ToyServer server([](const ToyRequest& r) -> ToyReply { return {200, has_key(r) ? "key" : "none", ""}; });
  EXPECT_EQ(HttpClient().once(get(server.url())).body, "key") << "this machine";
}

// Sets environment variables while the object exists.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, std::string>>& variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) ::setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::string>> variables_;
};

TEST(HttpClient, BehindAProxyTheHostIsJudgedAndNotTheProxy) {
  std::vector<std::string> asked;
  ToyServer proxy([&](const ToyRequest& r) -> ToyReply {
    asked.push_back(r.path);
    if (r.path == "http://8.8.8.8/away") return {302, "", "Location: http://169.254.169.254/latest\r\n"};
    return {200, "through the proxy", ""};
  });
  const Environment environment({{"http_proxy", proxy.url()}});
  HttpRequest r;
  r.redirects = Redirects::kAnywhere;
  r.url = "http://8.8.8.8/away";
  expect_error(ErrorKind::kNetwork, {"redirected to http://169.254.169.254:80", "private network"},
               [&] { HttpClient().once(r); });
  for (const char* inside : {"http://10.0.0.1/", "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::a00:1]/",
                             "http://metadata.google.internal/", "http://intranet/"}) {
    r.url = inside;
    r.foreign = true;
    expect_error(ErrorKind::kNetwork, {"private network"}, [&] { HttpClient().once(r); });
  }
  EXPECT_EQ(asked, std::vector<std::string>{"http://8.8.8.8/away"}) << "nothing inside was asked for";
  r.url = "http://1.1.1.1/there";
  EXPECT_EQ(HttpClient().once(r).body, "through the proxy")
      << "a public address leads out, although the proxy is inside";
  HttpClient client;
  r.foreign = false;
  r.url = "http://10.0.0.1/own";
  EXPECT_EQ(client.once(r).status, 200);
  r.foreign = true;
  r.url = "http://10.0.0.2/";
  EXPECT_EQ(client.once(r).status, 200) << "a hub inside may name an address inside";
  for (const char* other : {"http://169.254.1.1/", "http://127.0.0.1/", "http://localhost/"}) {
    r.url = other;
    if (proxy_of(other).empty()) continue;  // the proxy is not used for addresses of this machine
    expect_error(ErrorKind::kNetwork, {"refused"}, [&] { client.once(r); });
  }
}

TEST(HttpClient, AQuotaSaysHowLongToWait) {
  std::string headers;
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {429, "", headers}; });
  std::vector<double> waits;
  const auto ask = [&] {
    waits.clear();
    HttpClient().send([&] { return get(server.url()); },
                      {.max_attempts = 2, .first_delay_s = 7, .sleep = [&](double s) { waits.push_back(s); }});
    return waits.at(0);
  };
  EXPECT_EQ(ask(), 7);
  headers = "RateLimit: \"api\";r=0;t=33\r\n";
  EXPECT_EQ(ask(), 33);
  headers = "RateLimit: \"minute\";r=0;t=33, \"day\";r=12;t=80000\r\n";
  EXPECT_EQ(ask(), 33) << "the quota that is used up";
  headers = "RateLimit: \"pages\"; r=0; t=34\r\n";
  EXPECT_EQ(ask(), 34) << "structured fields may have spaces there";
  headers = "RateLimit: \"api\";r=0;t=90000\r\n";
  EXPECT_EQ(ask(), 300) << "never longer";
  headers += "Retry-After: 5\r\n";
  EXPECT_EQ(ask(), 5);
}

TEST(HttpClient, WhichAnswersMayPass) {
  for (const long status : {408, 425, 429, 500, 502, 503, 504, 599}) EXPECT_TRUE(may_pass(status)) << status;
  for (const long status : {301, 302, 308, 400, 401, 403, 404, 409, 410, 412, 501})
    EXPECT_FALSE(may_pass(status)) << status;
}

TEST(HttpClient, WhichProxy) {
  const Environment environment(
      {{"http_proxy", "http://p:1"}, {"HTTPS_PROXY", "http://s:2"}, {"no_proxy", "example.org, .lan,10.0.0.0/8 *.x"}});
  EXPECT_EQ(proxy_of("http://host/x"), "http://p:1");
  EXPECT_EQ(proxy_of("https://host/x"), "http://s:2");
  for (const char* direct : {"http://example.org", "https://a.example.org:1/x", "http://b.lan", "http://10.9.8.7:1",
                             "http://127.0.0.1:5", "http://localhost", "http://[::1]:2"})
    EXPECT_EQ(proxy_of(direct), "") << direct;
  EXPECT_EQ(proxy_of("http://notexample.org"), "http://p:1");
  EXPECT_EQ(proxy_of("http://11.0.0.1"), "http://p:1");
  const Environment none(std::vector<std::pair<const char*, std::string>>{{"no_proxy", "*"}});
  EXPECT_EQ(proxy_of("http://host"), "");
}

TEST(HttpClient, Urls) {
  EXPECT_EQ(base_url("https://host:1/a/b//", "X", "Y"), "https://host:1/a/b");
  for (const char* bad : {"", "host", "ftp://host", "http://", "http://host?x", "http://ho st", "http://host/#a"})
    expect_error(ErrorKind::kUsage, {"X: expected"}, [&] { base_url(bad, "X", "Y"); });
  const std::string refused =
      testing::error_of([] { base_url("https://me:sekret@host", "X", "Y"); }, ErrorKind::kUsage);
  EXPECT_EQ(refused.find("sekret"), std::string::npos);
  EXPECT_EQ(
      testing::error_of([] { base_url("https://host/?token=sekret", "X", "Y"); }, ErrorKind::kUsage).find("sekret"),
      std::string::npos);
  EXPECT_EQ(percent_encoded("a b/c#%?\xc3\xa9-._~", true), "a%20b/c%23%25%3F%C3%A9-._~");
  EXPECT_EQ(percent_encoded("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(origin_of("https://HOST/x"), "https://host:443");
  EXPECT_EQ(origin_of("https://host:443/y"), origin_of("https://host/x"));
  EXPECT_NE(origin_of("http://host/x"), origin_of("https://host/x"));
  EXPECT_NE(origin_of("https://host:444"), origin_of("https://host"));
  EXPECT_EQ(origin_of("nonsense"), "");
  for (const char* safe :
       {"https://host", "http://localhost:1", "http://127.0.0.1", "http://127.9.9.9:80", "http://[::1]:5"})
    EXPECT_TRUE(keeps_secrets(safe)) << safe;
  for (const char* unsafe : {"http://host", "http://10.0.0.1", "http://127.0.0.1.host", "http://localhost.host",
                             "http://[::2]", "ftp://127.0.0.1", ""})
    EXPECT_FALSE(keeps_secrets(unsafe)) << unsafe;
}

}  // namespace
}  // namespace specdec::net
