#include "net/http_client.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/progress.h"
#include "base/version.h"
#include "net/url_parts.h"

namespace specdec::net {

// The kinds of networks (Reach) of the hosts that the caller named, such as loopback or private.
class Reaches {
 public:
  void add(Reach reach) { bits_ |= 1u << static_cast<unsigned>(reach); }
  // Adds the reach of the URL's host, but resolves the host only when open() needs it.
  void add_later(const std::string& url) { later_ = url; }
  // Returns whether a host that the caller did not name may have an address of this kind.
  bool open(Reach to) {
    if (to == Reach::kPublic || to == Reach::kLinkLocal) return to == Reach::kPublic;
    if (!later_.empty()) add(reach_of_host(std::exchange(later_, "")));
    return (bits_ >> static_cast<unsigned>(to) & 1u) != 0;
  }

 private:
  unsigned bits_ = 0;
  std::string later_;
};

namespace {

constexpr double kMaxRetryAfterS = 300;
constexpr int kMaxRedirects = 5;
constexpr size_t kMaxHeaders = 200, kMaxHeaderBytes = 16384, kProgressBytes = 1u << 20;

void global_init() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) throw Error(ErrorKind::kInternal, std::string("libcurl: ") + curl_easy_strerror(code));
}

// The data that the callbacks of one exchange share. libcurl's C code calls them, so they store an exception here
// instead of throwing it.
struct Exchange {
  CURL* curl;
  const HttpRequest& request;
  HttpReply reply = {};
  std::exception_ptr failure = {};
  bool foreign = false;  // another host supplied or redirected to this URL
  bool proxied = false;  // the connection leads to a proxy
  // Address kinds (Reach) of the hosts that the caller named. A host to which those hosts redirect may have an address
  // of these kinds, too.
  Reaches* own;
  bool refused_private = false;
  uint64_t sent = 0;  // bytes sent of HttpRequest::upload
};

std::string shown(const std::string& url) { return SecretUrl(url).shown(); }

// Returns the offset of the reply's body within the requested file.
uint64_t range_begin(const HttpReply& reply) {
  const std::string range = reply.status == 206 ? reply.header("content-range") : "";
  constexpr std::string_view kUnit = "bytes ";
  uint64_t begin = 0;
  if (range.starts_with(kUnit)) std::from_chars(range.data() + kUnit.size(), range.data() + range.size(), begin);
  return begin;
}

size_t on_header(char* data, size_t size, size_t count, void* to) {
  auto& exchange = *static_cast<Exchange*>(to);
  std::string line(data, size * count);
  if (line.starts_with("HTTP/")) exchange.reply.headers.clear();  // drops the headers of an interim response
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
  const size_t colon = line.find(':');
  if (colon == std::string::npos || line.size() > kMaxHeaderBytes || exchange.reply.headers.size() >= kMaxHeaders)
    return size * count;
  std::string name = line.substr(0, colon);
  name = lower(name);
  const size_t value = line.find_first_not_of(" \t", colon + 1);
  exchange.reply.headers[name] = value == std::string::npos ? "" : line.substr(value);
  return size * count;
}

size_t on_body(char* data, size_t size, size_t count, void* to) {
  auto& exchange = *static_cast<Exchange*>(to);
  const std::string_view bytes(data, size * count);
  try {
    curl_easy_getinfo(exchange.curl, CURLINFO_RESPONSE_CODE, &exchange.reply.status);
    if (exchange.request.on_body && (exchange.reply.status == 200 || exchange.reply.status == 206)) {
      exchange.request.on_body(exchange.reply, bytes);
      if (exchange.reply.reached == 0) exchange.reply.reached = range_begin(exchange.reply);
      exchange.reply.reached += bytes.size();
    } else if (exchange.reply.body.size() + bytes.size() <= exchange.request.max_body_bytes) {
      exchange.reply.body += bytes;
    } else {
      throw Error(ErrorKind::kNetwork, shown(exchange.request.url) + ": the reply is larger than " +
                                           std::to_string(exchange.request.max_body_bytes) + " bytes");
    }
    return bytes.size();
  } catch (...) {
    exchange.failure = std::current_exception();
    return 0;
  }
}

size_t on_read(char* data, size_t size, size_t count, void* to) {
  auto& exchange = *static_cast<Exchange*>(to);
  try {
    const size_t n = std::min<uint64_t>(size * count, exchange.request.upload_bytes - exchange.sent);
    exchange.request.upload(exchange.sent, std::span(data, n));
    exchange.sent += n;
    return n;
  } catch (...) {
    exchange.failure = std::current_exception();
    return CURL_READFUNC_ABORT;
  }
}

// Rewinds the upload. libcurl calls this function if a kept connection turns out to be closed after a part of the body
// was sent.
int on_seek(void* to, curl_off_t offset, int origin) {
  auto& exchange = *static_cast<Exchange*>(to);
  if (origin != SEEK_SET || offset < 0 || static_cast<uint64_t>(offset) > exchange.request.upload_bytes)
    return CURL_SEEKFUNC_FAIL;
  exchange.sent = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int on_progress(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) { return stop_requested() ? 1 : 0; }

// Checks the address of the connection and not the host name, because the name may resolve to another address a moment
// later.
curl_socket_t on_socket(void* with, curlsocktype, curl_sockaddr* address) {
  auto& exchange = *static_cast<Exchange*>(with);
  const Reach reach = exchange.proxied ? Reach::kPublic : reach_of(address->addr);
  if (!exchange.foreign) exchange.own->add(reach);
  if (exchange.foreign && !exchange.own->open(reach)) {
    exchange.refused_private = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

bool is_temporary(const HttpReply& reply, const Backoff& backoff) {
  return !reply.problem.empty() || reply.status == 429 || reply.status == 500 || reply.status == 502 ||
         reply.status == 503 || reply.status == 504 || (reply.status == backoff.also_retried && reply.status != 0);
}

// Returns the seconds until an exhausted quota is refilled, from a RateLimit header such as "api";r=0;t=30
// (draft-ietf-httpapi-ratelimit-headers); -1 if the header names no exhausted quota.
double quota_wait(const std::string& header) {
  double longest = -1;
  for (size_t begin = 0; begin < header.size();) {
    const size_t end = std::min(header.find(',', begin), header.size());
    std::string policy = header.substr(begin, end - begin);
    std::erase(policy, ' ');
    begin = end + 1;
    const auto parameter = [&](const char* name) -> int64_t {
      int64_t value = -1;
      const size_t at = policy.find(name);
      if (at != std::string::npos) std::from_chars(policy.data() + at + 3, policy.data() + policy.size(), value);
      return value;
    };
    if (parameter(";r=") <= 0) longest = std::max(longest, static_cast<double>(parameter(";t=")));
  }
  return longest;
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string part_of(const std::string& url, CURLUPart part) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), curl_url_cleanup);
  char* text = nullptr;
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK ||
      curl_url_get(parsed.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK)
    return "";
  std::string value = text;
  curl_free(text);
  return lower(value);
}

void stop_check() {
  if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal");
}

void interruptible_sleep(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    stop_check();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string origin_of(const std::string& url) {
  const std::string host = part_of(url, CURLUPART_HOST);
  return host.empty() ? "" : part_of(url, CURLUPART_SCHEME) + "://" + host + ":" + part_of(url, CURLUPART_PORT);
}

bool keeps_secrets(const std::string& url) {
  const std::string scheme = part_of(url, CURLUPART_SCHEME);
  if (scheme != "http") return scheme == "https";
  const std::string host = part_of(url, CURLUPART_HOST);
  in_addr v4{};
  return host == "localhost" || host == "[::1]" ||
         (::inet_pton(AF_INET, host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

std::string percent_encoded(std::string_view text, bool keep_slash) {
  std::string out;
  for (const unsigned char c : text) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (c == '/' && keep_slash);
    out += plain ? std::string(1, static_cast<char>(c))
                 : std::string{'%', "0123456789ABCDEF"[c >> 4], "0123456789ABCDEF"[c & 15]};
  }
  return out;
}

std::string base_url(const std::string& url, const std::string& what, const std::string& instead) {
  const size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  std::string base = url;
  while (base.size() > scheme && base.ends_with('/')) base.pop_back();
  const std::string host = base.substr(scheme, base.find('/', scheme) - scheme);
  // The message does not show the URL, because the part before '@' is a secret.
  if (host.find('@') != std::string::npos)
    throw Error(ErrorKind::kUsage, what + ": put the secret into " + instead + ", not into the URL");
  if (scheme == 0 || host.empty() || base.find_first_of(" \t\r\n?#") != std::string::npos || origin_of(base).empty())
    throw Error(ErrorKind::kUsage,
                what + ": expected http(s)://host[:port][/path], found '" + shown(url).substr(0, 200) + "'");
  return base;
}

std::string HttpReply::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

struct HttpClient::Impl {
  CURL* curl = nullptr;
  Reaches own;  // address kinds of the hosts that the caller named
  ~Impl() {
    if (curl) curl_easy_cleanup(curl);
  }
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {
  global_init();
  impl_->curl = curl_easy_init();
  if (!impl_->curl) throw Error(ErrorKind::kInternal, "libcurl: curl_easy_init failed");
}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;

namespace {

[[noreturn]] void refuse_private(const HttpRequest& request, const std::string& url) {
  throw Error(ErrorKind::kNetwork, shown(request.url) + (url == request.url ? ": leads to " : ": redirected to ") +
                                       origin_of(url) +
                                       ", an address of a private network or of this machine: refused");
}

// Returns the proxy for `url`, "" = none. On a connection through a proxy the client does not see the server's address,
// so the host of a URL that another host supplied (`foreign`) is checked here. Throws Error(kNetwork) if such a URL
// leads to an address that it may not have.
std::string proxy_for(const HttpRequest& request, const std::string& url, bool foreign, Reaches& own) {
  const std::string proxy = request.unix_socket.empty() ? proxy_of(url) : "";
  if (proxy.empty()) return "";
  // A machine behind a proxy may have no working resolver. So the host that the caller named is not resolved here, but
  // only if a later URL from another host must be compared with it.
  if (!foreign)
    own.add_later(url);
  else if (!own.open(reach_of_host(url)))
    refuse_private(request, url);
  return proxy;
}

// Throws Error(kUsage) if a key, or a user name or password in the URL, would be sent unencrypted to another machine.
void require_kept(const HttpRequest& request) {
  const bool has_key = (!request.bearer.empty() && !request.foreign) ||
                       !part_of(request.url, CURLUPART_PASSWORD).empty() ||
                       !part_of(request.url, CURLUPART_USER).empty();
  if (has_key && request.unix_socket.empty() && !keeps_secrets(request.url))
    throw Error(
        ErrorKind::kUsage,
        shown(request.url) +
            ": a key is not sent over plain http to another machine: use https, or a tunnel that ends on this one");
}

// Owns the header lines of a request.
class HeaderLines {
 public:
  void add(const std::string& line) {
    curl_slist* list = curl_slist_append(lines_.get(), line.c_str());
    if (!list) throw std::bad_alloc();
    lines_.release();
    lines_.reset(list);
  }
  curl_slist* list() const { return lines_.get(); }

 private:
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> lines_{nullptr, curl_slist_free_all};
};

// Sets the URL, the proxy, the certificates and the time limits.
void set_connection(CURL* curl, const HttpRequest& request, const std::string& url, const std::string& proxy) {
  const auto milliseconds = [](double seconds) { return static_cast<long>(seconds * 1000); };
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROXY, proxy.c_str());  // "" = no proxy, even if the environment names one
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "");
  if (!request.unix_socket.empty()) curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, request.unix_socket.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, (std::string("specdec/") + kToolVersion).c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(request.connect_timeout_s));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, milliseconds(request.timeout_s));
  if (request.stall_timeout_s > 0) {
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(request.stall_timeout_s)));
  }
  // Takes the file of CA certificates from the variables that curl and Python use, so that an install tree also works
  // on another distribution, which keeps the certificates elsewhere.
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"})
    if (const char* file = std::getenv(name); file && *file) {
      curl_easy_setopt(curl, CURLOPT_CAINFO, file);
      break;
    }
}

void set_callbacks(Exchange& exchange) {
  CURL* const curl = exchange.curl;
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, on_socket);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &exchange);
}

// Sets the method and the body, and adds the headers that a body needs.
void set_body(Exchange& exchange, HeaderLines& headers) {
  CURL* const curl = exchange.curl;
  const HttpRequest& request = exchange.request;
  if (request.head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (request.post || request.upload) {
    headers.add(request.method.empty() ? "Content-Type: application/json" : "Content-Type:");
    if (!request.method.empty()) curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    headers.add("Expect:");  // avoids libcurl's extra round trip before a large body
  }
  if (request.post) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.post->data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.post->size()));
  } else if (request.upload) {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.upload_bytes));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(curl, CURLOPT_READDATA, &exchange);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &exchange);
  }
}

}  // namespace

HttpReply HttpClient::hop(const HttpRequest& request, const std::string& url, bool foreign, std::string& redirect) {
  CURL* curl = impl_->curl;
  curl_easy_reset(curl);
  const std::string proxy = proxy_for(request, url, foreign, impl_->own);
  Exchange exchange{
      .curl = curl, .request = request, .foreign = foreign, .proxied = !proxy.empty(), .own = &impl_->own};
  HeaderLines headers;
  for (const std::string& line : request.headers) headers.add(line);
  if (!request.bearer.empty() && !foreign) headers.add("Authorization: Bearer " + request.bearer.reveal());
  char reason[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
  set_connection(curl, request, url, proxy);
  set_callbacks(exchange);
  set_body(exchange, headers);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list());
  const CURLcode code = curl_easy_perform(curl);
  stop_check();
  if (exchange.failure) std::rethrow_exception(exchange.failure);
  if (exchange.refused_private) refuse_private(request, url);
  HttpReply& reply = exchange.reply;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
  curl_off_t wait = -1;
  if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK && wait > 0)
    reply.retry_after_s = static_cast<double>(wait);
  else if (reply.status == 429)
    reply.retry_after_s = quota_wait(reply.header("ratelimit"));
  char* next = nullptr;
  redirect = curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &next) == CURLE_OK && next ? next : "";
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
    throw Error(ErrorKind::kNetwork, shown(request.url) + ": " + (*reason ? reason : curl_easy_strerror(code)) +
                                         " (certificates are looked up in SSL_CERT_FILE where it is set)");
  if (code != CURLE_OK) reply.problem = *reason ? reason : curl_easy_strerror(code);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  return reply;
}

HttpReply HttpClient::once(const HttpRequest& request) {
  if (request.bearer.reveal().find_first_of("\r\n") != std::string::npos)
    throw Error(ErrorKind::kUsage, "the API key holds a line break");
  require_kept(request);
  const std::string home = origin_of(request.url);
  std::string url = request.url;
  for (int hops = 0;; ++hops) {
    std::string next;
    const std::string origin = origin_of(url);
    HttpReply reply = hop(request, url, request.foreign || origin != home, next);
    reply.redirect = next;
    if (next.empty() || !reply.problem.empty() || request.post || request.upload ||
        request.redirects == Redirects::kNone)
      return reply;
    if (request.redirects == Redirects::kSameOrigin && origin_of(next) != home) return reply;
    if (hops == kMaxRedirects)
      throw Error(ErrorKind::kNetwork,
                  shown(request.url) + ": redirected more than " + std::to_string(kMaxRedirects) + " times");
    if (!next.starts_with("https:") && (origin.starts_with("https:") || !next.starts_with("http:")))
      throw Error(ErrorKind::kNetwork, shown(request.url) + ": redirected to another protocol (" +
                                           next.substr(0, next.find(':')) + "): refused");
    url = next;
  }
}

bool may_pass(long status) {
  return status < 300 || status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501);
}

std::string readable(const Retry& retry) {
  return retry.reason +
         format(" (attempt %d of %d), next attempt in %.3g s", retry.attempt, retry.max_attempts, retry.wait_s);
}

HttpReply HttpClient::send(const std::function<HttpRequest()>& make, const Backoff& backoff) {
  double delay = backoff.first_delay_s;
  uint64_t furthest = 0;
  for (int attempt = 1;; ++attempt) {
    stop_check();
    HttpReply reply = once(make());
    // A long download may break often, so each further MiB restarts the count of attempts. Receiving the same bytes
    // again does not.
    if (reply.reached >= furthest + kProgressBytes) {
      furthest = reply.reached;
      attempt = 1;
      delay = backoff.first_delay_s;
    }
    reply.attempts = attempt;
    if (!is_temporary(reply, backoff) || attempt >= backoff.max_attempts) return reply;
    const double wait = reply.retry_after_s >= 0 ? std::min(reply.retry_after_s, kMaxRetryAfterS) : delay;
    if (backoff.on_retry)
      backoff.on_retry({.reason = reply.problem.empty() ? "HTTP " + std::to_string(reply.status) : reply.problem,
                        .attempt = attempt,
                        .max_attempts = backoff.max_attempts,
                        .wait_s = wait});
    backoff.sleep ? backoff.sleep(wait) : interruptible_sleep(wait);
    delay = std::min(2 * delay, backoff.max_delay_s);
  }
}

}  // namespace specdec::net
