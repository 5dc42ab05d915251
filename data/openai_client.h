// Client of an OpenAI-compatible endpoint over net/http_client: bounded, with retries that honour Retry-After, no
// redirects.
#pragma once

#include <string>

#include "base/json.h"
#include "net/http_client.h"

namespace specdec::data {

struct ClientOptions {
  std::string url;  // http(s)://host[:port][/v1]; /v1 is added when there is no path
  Secret api_key;   // "" = none
  double request_timeout_s = 600;
  size_t max_response_bytes = 64u << 20;
  net::Backoff backoff;
};

using net::HttpReply;

// One connection that is kept open; one thread at a time. Different objects may be used by different threads.
class OpenAiClient {
 public:
  // Throws Error(kUsage) for a URL that is not http(s) or carries a user name or password.
  explicit OpenAiClient(ClientOptions options);

  // Path below the base URL ("/models"). Retries as above, then gives the last reply whatever its status.
  // Throws Error(kNetwork): unreachable, timed out or too large after all attempts, or stopped by a signal.
  HttpReply get(const std::string& path);
  HttpReply post(const std::string& path, const Json& body);

  // GET of a path of the server itself ("/ready"), once, without retries; status 0 when it cannot be reached.
  HttpReply probe(const std::string& absolute_path);

  // First model of GET /models. Throws Error(kNetwork) on a bad status, Error(kData) on a reply that is no model list.
  std::string first_model();

  const std::string& base_url() const { return base_; }

 private:
  net::HttpRequest request(const std::string& url, const std::string* post = nullptr) const;
  HttpReply send(const std::string& path, const std::string* post);
  ClientOptions options_;
  std::string base_;
  net::HttpClient http_;
};

// "HTTP 401: <message of an OpenAI error object, at most 200 printable characters>".
std::string describe(const HttpReply& reply);

}  // namespace specdec::data
