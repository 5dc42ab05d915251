// Client of an OpenAI-compatible endpoint on top of net/http_client. It bounds the time and size of each reply, retries
// as Retry-After asks, and follows no redirects.
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

  // `path` is below the base URL ("/models"). Both functions retry failed attempts, then return the last reply whatever
  // its status. They throw Error(kNetwork), the kind that means "try again", if in the last attempt the endpoint was
  // unreachable, timed out or sent too large a reply, or if a signal stopped them.
  HttpReply get(const std::string& path);
  HttpReply post(const std::string& path, const Json& body);

  // Sends one GET for a path that is not below the base URL ("/ready"), without retries; status 0 if the server cannot
  // be reached.
  HttpReply probe(const std::string& absolute_path);

  // Returns the first model of GET /models. Throws Error(kUsage) for status 401, 403 and 404, Error(kNetwork) for any
  // other status but 200, and Error(kData) for a reply that is not a model list.
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
