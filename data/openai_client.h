// HTTP client of an OpenAI-compatible endpoint: bounded, with retries that honour Retry-After. http and https only, no redirects.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"

namespace specdec::data {

struct ClientOptions {
  std::string url;                    // http(s)://host[:port][/v1]; /v1 is added when there is no path
  std::string api_key;                // "" = none; never logged
  double connect_timeout_s = 10, request_timeout_s = 600;
  size_t max_response_bytes = 64u << 20;
  int max_attempts = 8;               // of one request, on 429, 500, 502, 503, 504 and broken connections
  double first_delay_s = 0.5, max_delay_s = 60;   // doubled after every attempt; Retry-After (seconds) wins, capped at 300
  std::function<void(double seconds)> sleep;      // empty: really sleeps, in slices that end on a stop request
};

struct HttpReply {
  long status = 0;
  std::string body;
  double retry_after_s = -1;          // -1 = none
};

// One connection that is kept open; one thread at a time. Different objects may be used by different threads.
class OpenAiClient {
 public:
  // Throws Error(kUsage) for a URL that is not http(s) or carries a user name or password.
  explicit OpenAiClient(ClientOptions options);
  ~OpenAiClient();
  OpenAiClient(OpenAiClient&&) noexcept;
  OpenAiClient& operator=(OpenAiClient&&) = delete;

  // Path below the base URL ("/models"). Retries as above, then gives the last reply whatever its status.
  // Throws Error(kNetwork): unreachable, timed out or too large after all attempts, or stopped by a signal.
  HttpReply get(const std::string& path);
  HttpReply post(const std::string& path, const Json& body);

  // GET of a path of the server itself ("/ready"), once, without retries; status 0 when it cannot be reached.
  HttpReply probe(const std::string& absolute_path);

  // First model of GET /models. Throws Error(kNetwork) on a bad status, Error(kData) on a reply that is no model list.
  std::string first_model();

  const std::string& base_url() const;

 private:
  struct Impl;
  HttpReply request(const std::string& path, const std::string* body);
  bool perform(const std::string& url, const std::string* body, HttpReply& reply, std::string& problem);
  std::unique_ptr<Impl> impl_;
};

// "HTTP 401: <message of an OpenAI error object, at most 200 printable characters>".
std::string describe(const HttpReply& reply);

}  // namespace specdec::data
