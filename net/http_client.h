// The one HTTP client: http and https only, bounded in time and size, tried again with back-off, keys kept to the host
// they are for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"

struct sockaddr;

namespace specdec::net {

// Tried again: 429, 500, 502, 503, 504 and broken connections. The wait doubles; Retry-After (seconds) wins, capped at
// 300.
struct Backoff {
  int max_attempts = 8;  // an attempt that came 1 MiB further in a body starts the count anew
  double first_delay_s = 0.5, max_delay_s = 60;
  std::function<void(double seconds)> sleep;  // empty: really sleeps, in slices that end on a stop request
};

struct HttpReply {
  long status = 0;                             // 0: none was received
  std::string body, problem;                   // problem: why there is no reply, or only a part of one; else ""
  std::map<std::string, std::string> headers;  // of the last response, names in lower case
  double retry_after_s = -1;                   // -1 = none
  int attempts = 1;
  uint64_t reached = 0;  // where in the body, from Content-Range on, the bytes given to on_body ended

  std::string header(const std::string& name) const;  // "" = absent
};

enum class Redirects { kNone, kSameOrigin, kAnywhere };

struct HttpRequest {
  std::string url;
  bool head = false;
  const std::string* post = nullptr;  // JSON
  std::string unix_socket;            // a path: what is connected to instead of the URL's host; "" = none
  std::string method;  // with `post` or `upload`: PUT, DELETE or POST, whose body is of no type but what `headers` say;
                       // "" = as above
  // Instead of `post`: a body of so many bytes, filled from `at` on, in order; from 0 again where it has to be sent
  // again. What it throws ends the exchange and is thrown on.
  std::function<void(uint64_t at, std::span<char> out)> upload;
  uint64_t upload_bytes = 0;
  // another host named `url`: as behind a redirect no bearer, and from a public address to no private one
  bool foreign = false;
  Secret bearer;  // key or token: goes to the scheme, host and port of `url` and nowhere else, and only where
                  // keeps_secrets()
  std::vector<std::string> headers;  // "Name: value"
  // At most 5, of GET and HEAD only, never from https to http; what is not followed is the reply. From an address that
  // is public to one that is private, link-local or loopback never.
  Redirects redirects = Redirects::kNone;
  double connect_timeout_s = 10;
  double timeout_s = 600;             // of the whole exchange; 0 = none
  double stall_timeout_s = 0;         // slower than 1 KiB/s for so long: broken off; 0 = never
  size_t max_body_bytes = 64u << 20;  // of HttpReply::body
  // Takes the body of status 200 and 206 instead of HttpReply::body; what it throws ends the exchange and is thrown on.
  std::function<void(const HttpReply& head, std::string_view bytes)> on_body;
};

// One connection that is kept open; one thread at a time. Different objects may be used by different threads. Messages
// hold URLs as SecretUrl shows them. The proxy is that of http_proxy, https_proxy or all_proxy where no_proxy does not
// name the host.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // One exchange. Throws Error(kNetwork): larger than allowed, a redirect that is refused, stopped by a signal;
  // Error(kUsage): a key, or a password in the URL, would go over plain http to another machine.
  HttpReply once(const HttpRequest& request);
  // Makes and sends a request until it is answered or Backoff is used up: the last reply, whatever it is.
  HttpReply send(const std::function<HttpRequest()>& make, const Backoff& backoff);

 private:
  struct Impl;
  HttpReply hop(const HttpRequest& request, const std::string& url, bool foreign, std::string& redirect);
  std::unique_ptr<Impl> impl_;
};

// A URL that paths can be put after: no trailing slash, query or fragment. Throws Error(kUsage), calling it `what`, for
// one that is not http(s) or carries a user name or password; `instead` says where the secret belongs.
std::string base_url(const std::string& url, const std::string& what, const std::string& instead);
// "https://host:443", lower case. "" if it is no URL.
std::string origin_of(const std::string& url);
// https, or http to this machine.
bool keeps_secrets(const std::string& url);
// Of RFC 3986: all but the unreserved characters, and '/' where it is kept.
std::string percent_encoded(std::string_view text, bool keep_slash);

// The proxy that the environment names for a URL, "" = none.
std::string proxy_of(const std::string& url);

// Private, link-local, loopback, shared (100.64/10) or no internet address at all; also where such an IPv4 address
// stands in an IPv6 one (mapped, compatible, NAT64, 6to4, Teredo, ISATAP).
bool is_private(const sockaddr& address);
// The same of a URL's host, where the connection does not show it because a proxy makes it: of an address itself, of
// names that are never public, else of what this machine's resolver says. A name that only the proxy can resolve is not
// private.
bool is_private_host(const std::string& url);

// Throws Error(kNetwork, "stopped by a signal") once a stop was requested.
void stop_check();
void interruptible_sleep(double seconds);

}  // namespace specdec::net
