#include "monitor/read/scrape.h"

#include <cctype>

#include "base/format.h"
#include "monitor/read/series.h"
#include "net/http_client.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxResponse = 16 << 20;

std::string percent_encoded(const std::string& text) {
  std::string out;
  for (const unsigned char c : text)
    out += std::isalnum(c) ? std::string(1, static_cast<char>(c)) : format("%%%02X", c);
  return out;
}

constexpr std::string_view kPrometheus = "prometheus+";

std::string query_url(const SecretUrl& source) {
  const std::string url = source.reveal().substr(kPrometheus.size());
  const size_t question = url.find('?');
  std::string base = url.substr(0, question), match;
  if (question != std::string::npos) {
    const std::string rest = url.substr(question + 1);
    if (!rest.starts_with("match={") || !rest.ends_with('}'))
      throw Error(ErrorKind::kUsage, "--source: " + source.shown() +
                                         ": expected ?match={label=\"value\",…} and nothing else after the address");
    match = rest.substr(7, rest.size() - 8);
  }
  while (base.ends_with('/')) base.pop_back();
  return base + "/api/v1/query?query=" + percent_encoded(counters_query(match));
}

}  // namespace

bool is_url(const std::string& text) {
  const std::string_view rest =
      text.starts_with(kPrometheus) ? std::string_view(text).substr(kPrometheus.size()) : std::string_view(text);
  return rest.starts_with("http://") || rest.starts_with("https://");
}

Counters read_counters(const SecretUrl& source, const Secret& api_key, const std::string& model) {
  if (source.reveal().starts_with(kPrometheus))
    return parse_query_answer(fetch(query_url(source), api_key).body, source.shown(), model);
  const FetchedPage page = fetch(source, api_key);
  require_whole_page(page.body, page.end, source.shown());
  return parse_exposition(page.body, source.shown(), model);
}

namespace {

// Returns advice for the user about a reply whose HTTP status is not 200.
std::string advice(const net::HttpReply& reply) {
  if (!reply.redirect.empty()) return "the page is at " + SecretUrl(reply.redirect).shown() + ": name that address";
  if (reply.status == 401) return "give --api-key-file";
  if (reply.status == 501) return "the server counts nothing: start llama-server with --metrics";
  return "is this a /metrics page?";
}

}  // namespace

FetchedPage fetch(const SecretUrl& url, const Secret& api_key) {
  net::HttpRequest request;
  request.url = url.reveal();
  request.bearer = api_key;
  request.redirects = net::Redirects::kSameOrigin;
  request.timeout_s = 30;
  request.max_body_bytes = kMaxResponse;
  net::HttpReply reply = net::HttpClient().once(request);
  // OpenSSL reports "wrong version number" if the server answers a TLS handshake with plain HTTP. This error is kData,
  // not kNetwork, because trying again would not help.
  if (url.shown().starts_with("https://") && reply.problem.find("wrong version number") != std::string::npos)
    throw Error(ErrorKind::kData, url.shown() + ": the server does not speak TLS there (" + reply.problem +
                                      "): did you mean http://" + url.shown().substr(8) + "?");
  if (!reply.problem.empty()) throw Error(ErrorKind::kNetwork, url.shown() + ": " + reply.problem);
  if (reply.status != 200)
    throw Error(net::may_pass(reply.status) ? ErrorKind::kNetwork : ErrorKind::kData,
                url.shown() + ": HTTP " + std::to_string(reply.status) + ", expected 200 (" + advice(reply) + ")");
  FetchedPage page;
  page.end.has_length = !reply.header("content-length").empty() || !reply.header("transfer-encoding").empty();
  page.end.is_openmetrics = reply.header("content-type").find("application/openmetrics-text") != std::string::npos;
  page.body = std::move(reply.body);
  return page;
}

}  // namespace specdec::monitor
