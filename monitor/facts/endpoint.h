// Asks a remote OpenAI-compatible endpoint which model it serves. Requests only the given URL and other paths on the
// same server, follows no redirects, and bounds the replies. The API key is sent to no other server and appears in no
// message.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/statistics/exchangeable.h"
#include "net/http_client.h"

namespace specdec::monitor {

struct EndpointOptions {
  std::string url;                    // http(s)://host[:port][/v1]; /v1 is added if there is no path
  Secret api_key;                     // "" = no key
  std::string model;                  // "" = the first model of /v1/models
  std::function<void(double)> sleep;  // tests replace the wait between attempts
};

// The JSON key under which Endpoint::identity() returns the target's fingerprint.
inline constexpr const char* kSpecdecTarget = "specdec_target";

// How to ask the endpoint for its likeliest tokens: the route, and whether the endpoint gives log-probabilities or only
// text.
struct Way {
  std::string route;  // "chat/completions" or "completions"
  int top = 0;        // number of likeliest tokens per call; 0 = no log-probabilities
  bool operator==(const Way&) const = default;
};

class Endpoint {
 public:
  // Throws Error(kUsage) for a URL that is not http(s) or that contains a password.
  explicit Endpoint(EndpointOptions options);

  // Returns an object with those of the following keys that the server gives:
  // * "id", "owned_by", "created", "root", "parent", "max_model_len" and "specdec_target" of /models;
  // * "version" of /version (vLLM);
  // * "model_path" and "weight_version" of /get_model_info and /server_info (SGLang);
  // * "model_path", "build_info" and "chat_template_sha256" of /props (llama.cpp).
  // "specdec_target" is included only if it is a fingerprint; then no path but /models is requested. Throws
  // Error(kNetwork) if /models does not answer, Error(kUsage) if the API key is refused or the model is not served,
  // PageError if the answer is not a model list. The other paths need not exist.
  Json identity();

  // Returns the first kind of request that works. Chat is tried before completions, 20 tokens before 5,
  // log-probabilities before text only. find_way(), first_token() and greedy() throw Error(kNetwork), and Error(kUsage)
  // if the API key is refused.
  std::optional<Way> find_way();
  // Requests the log-probabilities of the first token after a prompt. Throws PageError for a reply without
  // log-probabilities, or with far more of them than requested.
  TopLogprobs first_token(const Way& way, const std::string& prompt);
  // Requests greedy text. Throws PageError for a reply without a choice.
  std::string greedy(const Way& way, const std::string& prompt, int max_tokens);

  // Makes the next call open a new connection, which a load balancer may route to another backend.
  void reconnect();
  // Returns system_fingerprint and openai-version from the replies so far, "" = none.
  const std::string& system_fingerprint() const { return system_fingerprint_; }
  const std::string& url() const { return base_; }

 private:
  net::HttpReply get(const std::string& url);
  Json page(const std::string& path);
  net::HttpReply ask(const Way& way, const std::string& prompt, int max_tokens, double temperature);
  Json answer(const Way& way, const std::string& prompt, int max_tokens, double temperature);

  EndpointOptions options_;
  std::string base_, server_;  // the URL with and without /v1
  std::unique_ptr<net::HttpClient> http_;
  std::string system_fingerprint_;
};

}  // namespace specdec::monitor
