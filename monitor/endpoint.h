// What a remote OpenAI-compatible endpoint says of the model it serves. Only the given URL and its neighbours on the
// same server are asked; no redirects, bounded replies, the key goes nowhere else and into no message.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/exchangeable.h"
#include "net/http_client.h"

namespace specdec::monitor {

struct EndpointOptions {
  std::string url;                    // http(s)://host[:port][/v1]; /v1 is added where there is no path
  Secret api_key;                     // "" = none
  std::string model;                  // "" = the first of /v1/models
  std::function<void(double)> sleep;  // replaces waiting between attempts (tests)
};

// How it gives log-probabilities or, failing that, text.
struct Way {
  std::string route;  // "chat/completions" or "completions"
  int top = 0;        // likeliest tokens a call; 0 = no log-probabilities
  bool operator==(const Way&) const = default;
};

class Endpoint {
 public:
  // Throws Error(kUsage) for a URL that is not http(s) or carries a password.
  explicit Endpoint(EndpointOptions options);

  // {"id", "owned_by", "created", "root", "parent", "max_model_len", "specdec_target"} of /models as far as they are
  // there, "version" of /version (vLLM), "model_path" and "weight_version" of /get_model_info and /server_info
  // (SGLang), "model_path", "build_info" and "chat_template_sha256" of /props (llama.cpp). Only /models has to answer:
  // throws Error(kNetwork) if it does not, Error(kUsage) where the key is refused or the model is not served, PageError
  // if it is no model list.
  Json identity();

  // The first way that works: chat before completions, 20 tokens before 5, log-probabilities before text alone. Throws
  // Error(kNetwork).
  std::optional<Way> find_way();
  // First token after a prompt. Throws Error(kNetwork), PageError for a reply without log-probabilities.
  TopLogprobs first_token(const Way& way, const std::string& prompt);
  // Greedy text. Throws as above.
  std::string greedy(const Way& way, const std::string& prompt, int max_tokens);

  // The next call opens a new connection, which may lead to another backend.
  void reconnect();
  // system_fingerprint and openai-version of the replies so far, "" = none.
  const std::string& system_fingerprint() const { return system_fingerprint_; }
  const std::string& url() const { return base_; }

 private:
  net::HttpReply get(const std::string& url);
  Json page(const std::string& path);
  net::HttpReply ask(const Way& way, const std::string& prompt, int max_tokens, double temperature);
  Json answer(const Way& way, const std::string& prompt, int max_tokens, double temperature);

  EndpointOptions options_;
  std::string base_, server_;  // with and without /v1
  std::unique_ptr<net::HttpClient> http_;
  std::string system_fingerprint_;
};

}  // namespace specdec::monitor
