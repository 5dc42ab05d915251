// Client of an OpenAI-compatible endpoint on top of net/http_client: bounded, with retries that honour Retry-After,
// without redirects.
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

// Keeps one connection open. An object may be used by one thread at a time, different objects by different threads.
class OpenAiClient {
 public:
  // Throws Error(kUsage) for a URL that is not http(s) or carries a user name or password.
  explicit OpenAiClient(ClientOptions options);

  // `path` is below the base URL ("/models"). Both retry, then return the last reply whatever its status. They throw
  // Error(kNetwork) if the endpoint is unreachable, timed out or sent too large a reply in all attempts, or if a signal
  // stopped them.
  HttpReply get(const std::string& path);
  HttpReply post(const std::string& path, const Json& body);

  // Sends GET for a path of the server itself ("/ready") once, without retries; status 0 if it cannot be reached.
  HttpReply probe(const std::string& absolute_path);

  // Returns the first model of GET /models. Throws Error(kNetwork) for a bad status, Error(kData) for a reply that is
  // not a model list.
  std::string first_model();

  const std::string& base_url() const { return base_; }

 private:
  net::HttpRequest request(const std::string& url, const std::string* post = nullptr) const;
  HttpReply send(const std::string& path, const std::string* post);
  ClientOptions options_;
  std::string base_;
  net::HttpClient http_;
};

// Returns "HTTP 401: <message of an OpenAI error object, at most 200 printable characters>".
std::string describe(const HttpReply& reply);

}  // namespace specdec::data
