// The only HTTP client of specdec. It speaks http and https, limits time and size, retries with back-off, and sends
// keys only to the host that they are for.
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

// Statuses 429, 500, 502, 503, 504 and broken connections are retried. The wait doubles each time. If the server
// says how long to wait, in the header Retry-After (seconds) or as t in the header RateLimit, the client waits that
// long, but at most 300 s.
struct Retry {
  std::string reason;  // why the last attempt failed: "connection refused", "HTTP 503"
  int attempt = 1, max_attempts = 1;
  double wait_s = 0;  // time until the next attempt
};
struct Backoff {
  int max_attempts = 8;  // the count restarts after an attempt that received 1 MiB more of the body
  double first_delay_s = 0.5, max_delay_s = 60;
  long also_retried = 0;  // one more status that is temporary at this server, 0 = none
  // Waits between attempts. If empty, the client waits itself and throws Error(kNetwork) on a stop request.
  std::function<void(double seconds)> sleep;
  // Called for each failed attempt that is followed by another one, before the wait. May be empty.
  std::function<void(const Retry&)> on_retry = {};
};
// Returns "<reason> (attempt 1 of 8), next attempt in 0.5 s".
std::string readable(const Retry& retry);
// Returns whether a request that got this status may get another answer later. Otherwise the status is final: the
// request or its address is wrong, or the server cannot do what was asked (501).
bool may_pass(long status);

struct HttpReply {
  long status = 0;  // 0 = no status was received
  // `problem` says why the reply is missing or incomplete; "" = the reply is complete.
  std::string body, problem;
  std::map<std::string, std::string> headers;  // of the last response, with names in lower case
  std::string redirect;                        // the address of a redirect that was not followed, "" = none
  double retry_after_s = -1;                   // seconds to wait before the next attempt, as the server asks; -1 = none
  int attempts = 1;
  // The offset in the whole file (see Content-Range) after the last byte that was given to on_body.
  uint64_t reached = 0;

  std::string header(const std::string& name) const;  // returns "" if absent
};

enum class Redirects { kNone, kSameOrigin, kAnywhere };

struct HttpRequest {
  std::string url;
  bool head = false;
  const std::string* post = nullptr;  // JSON body of a POST
  // Path of the socket to connect to instead of the URL's host; "" = none.
  std::string unix_socket;
  // The method of a request with `post` or `upload`: PUT, DELETE or POST. Such a request has a Content-Type only if
  // `headers` has one. "" = POST of JSON with `post`, HEAD with `head`, else GET.
  std::string method;
  // Supplies a body of `upload_bytes` bytes, instead of `post`. Each call fills `out` with the bytes from offset `at`
  // on. Calls are in order, but start at 0 again if the body has to be sent again. An exception ends the exchange and
  // is passed on.
  std::function<void(uint64_t at, std::span<char> out)> upload;
  uint64_t upload_bytes = 0;
  // True if another host supplied `url`. The URL is then treated like a redirect: no bearer is sent, and not every
  // address is allowed.
  bool foreign = false;
  // Key or token. It is sent only to the scheme, host and port of `url`, and only if keeps_secrets().
  Secret bearer;
  std::vector<std::string> headers;  // "Name: value"
  // Says which redirects of GET and HEAD are followed. Any other redirect is returned as the reply. Every host may
  // redirect to a public address, a host of this machine also to this machine, and a host of a private network also to
  // a private address (Reach). Following throws Error(kNetwork) at any other address, at a redirect from https to http,
  // and after 5 redirects.
  Redirects redirects = Redirects::kNone;
  double connect_timeout_s = 10;
  double timeout_s = 600;             // for the whole exchange; 0 = none
  double stall_timeout_s = 0;         // breaks off a transfer slower than 1 KiB/s for this long; 0 = never
  size_t max_body_bytes = 64u << 20;  // limit for HttpReply::body
  // Receives the body of status 200 and 206 instead of HttpReply::body. An exception ends the exchange and is passed
  // on.
  std::function<void(const HttpReply& head, std::string_view bytes)> on_body;
};

// A client that keeps its connection open. One thread at a time may use an object; different threads may use different
// objects. Messages show URLs as SecretUrl does. Uses the proxy of http_proxy, https_proxy or all_proxy, unless
// no_proxy names the host.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  // Makes one exchange. Throws Error(kNetwork) for a reply larger than allowed, a refused redirect, or a stop by a
  // signal; Error(kUsage) if a key, or a user name or password in the URL, would be sent over plain http to another
  // machine.
  HttpReply once(const HttpRequest& request);
  // Calls `make` and sends the request until an answer is not temporary or all attempts are used up. Returns the last
  // reply, whatever its status.
  HttpReply send(const std::function<HttpRequest()>& make, const Backoff& backoff);

 private:
  struct Impl;
  HttpReply hop(const HttpRequest& request, const std::string& url, bool foreign, std::string& redirect);
  std::unique_ptr<Impl> impl_;
};

// Returns the URL in a form that paths can be appended to, without slashes at its end. Throws Error(kUsage), calling
// the URL `what`, if it is not http(s), has a query or fragment, or contains a user name or password; `instead` says
// where the secret belongs.
std::string base_url(const std::string& url, const std::string& what, const std::string& instead);
// Returns "https://host:443" in lower case, "" if it is not a URL.
std::string origin_of(const std::string& url);
// Returns true for https, and for http to this machine.
bool keeps_secrets(const std::string& url);
// Encodes as in RFC 3986: every character except the unreserved ones, and except '/' if keep_slash.
std::string percent_encoded(std::string_view text, bool keep_slash);

// Returns the proxy that the environment names for a URL, "" = none.
std::string proxy_of(const std::string& url);

// Says from where an address can be reached. An IPv6 address that embeds an IPv4 address (mapped, compatible, NAT64,
// 6to4, Teredo, ISATAP) is judged by the IPv4 address.
enum class Reach {
  kPublic,
  kPrivate,    // private networks, shared addresses (100.64/10), and whatever is not an internet address
  kLoopback,   // this machine
  kLinkLocal,  // 169.254/16 and fe80::/10, where cloud machines keep their credentials
};
Reach reach_of(const sockaddr& address);
// Returns the reach of a URL's host. It is for connections through a proxy, which do not show the host's address. An
// address is judged as by reach_of(). A name that is never public, such as "x.local", counts as private, and any other
// name is resolved on this machine. A name that only the proxy can resolve counts as public.
Reach reach_of_host(const std::string& url);
// Throws Error(kNetwork, "stopped by a signal") once a stop was requested.
void stop_check();
void interruptible_sleep(double seconds);

}  // namespace specdec::net
