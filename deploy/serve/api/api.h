// Implements the HTTP routes. The public listener serves OpenAI's API, health, metrics, the gate and the dashboard; the
// admin listener serves drain and draft. This file connects protocol, queue and metrics, and uses neither sockets nor
// models.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "deploy/serve/answer/answer_parser.h"
#include "deploy/serve/answer/reply.h"
#include "deploy/serve/api/api_keys.h"
#include "deploy/serve/http/allowed_hosts.h"
#include "deploy/serve/http/http.h"
#include "deploy/serve/http/reloadable.h"
#include "deploy/serve/queue/queue.h"
#include "deploy/serve/request/byte_budget.h"
#include "deploy/serve/request/protocol.h"
#include "deploy/serve/schedule/draft_control.h"
#include "deploy/serve/schedule/live_gate.h"
#include "deploy/serve/schedule/mask_workers.h"
#include "deploy/serve/schedule/metrics.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

// Facts about the served model that the HTTP threads need.
struct ServedModel {
  ModelCard card;
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;  // null: chat requests are refused
  const text::GrammarChecker* grammars = nullptr;     // null: grammars are compiled without a check
  std::vector<int32_t> eos_ids;
  int64_t vocab_size = 0, max_context = 0;     // max_context: in tokens, prompt and answer together
  ToolFormat tool_format = ToolFormat::kNone;  // the syntax in which the model writes calls
  ReasoningMarkers reasoning;                  // markers around the model's thoughts
};

class Api final : public HttpHandler {
 public:
  enum class State { kLoading, kReady, kDraining };
  struct Gauges {  // current values, read when a GET route asks for them
    std::function<size_t()> running, connections;
    std::function<bool()> broken;  // true: the engine has failed for good, and /health returns 503
    // Returns the fingerprint of the draft that serves now; none: still the draft given to set_ready().
    std::function<std::optional<std::string>()> draft;
    // Returns the acceptance of the draft on trial, or of the serving draft if there is no trial.
    std::function<LiveGate::Reading(const std::string& serving)> gate;
  };

  struct Admission {  // which clients are admitted, and how much memory their requests may use
    std::shared_ptr<const ApiKeys> keys;
    AllowedHosts hosts;  // other hosts and origins are refused only if no key is required
    RequestQueue& queue;
    ByteBudget& budget;
    MaskWorkers& masks;
  };

  Api(Admission admission, const ServeLimits& limits, Metrics& metrics, const Clock& clock, Gauges gauges);
  ~Api() override;

  void set_ready(ServedModel model);  // called once, before any request is accepted
  void set_draining();
  void set_keys(std::shared_ptr<const ApiKeys> keys);  // may be called at any time, from any thread
  State state() const { return state_.load(); }

  std::optional<HttpReply> answer_head(HttpRequest& request) override;
  std::shared_ptr<Exchange> respond(HttpRequest request) override;
  void replied(const HttpRequest& request, int status) override;

 private:
  struct Route;
  static const Route* find_route(const std::string& path);
  ModelCard card() const;
  bool prepares() const;
  HttpReply get(const Route& route, const HttpRequest& request);
  std::optional<HttpReply> stranger(HttpRequest& request, bool open_route) const;
  std::optional<ApiError> refusal(RequestQueue::Push answer, const std::string& tenant) const;
  std::shared_ptr<Exchange> counted(HttpReply reply, const HttpRequest& request) const;
  std::shared_ptr<Exchange> generate(Endpoint endpoint, const HttpRequest& request);
  std::optional<ApiError> tokenise(const ApiRequest& parsed, GenerationRequest& out);
  std::variant<std::string, ApiError> render_answered(const ApiRequest& parsed, GenerationRequest& out) const;
  // These functions are defined in api_tokens.cpp.
  std::variant<std::string, ApiError> render(const ChatFields& chat, bool add_generation_prompt,
                                             const std::string& id) const;
  static size_t content_bytes(const std::vector<ChatMessage>& messages);
  std::optional<std::vector<int32_t>> encode(std::string_view text, bool add_special) const;
  size_t longest_text() const;
  std::optional<std::vector<int32_t>> encode_long(std::string_view text, bool add_special) const;
  std::optional<ApiError> kept_tokens(const ApiRequest& parsed, size_t& kept) const;
  bool keep_last(std::vector<int32_t>& tokens, size_t kept, bool added_special) const;
  std::optional<ApiError> set_rules(const ApiRequest& parsed, GenerationRequest& out);
  std::optional<ApiError> set_grammar(const RequestedGrammar& asked, GenerationRequest& out,
                                      decode::LogitsProcessors& rules);
  bool knows(std::span<const int32_t> ids) const;
  HttpReply tokenize(const HttpRequest& request) const;
  HttpReply detokenize(const HttpRequest& request) const;
  // These functions are defined in api.cpp.
  std::optional<ApiError> hold(const GenerationRequest& request, size_t bytes) const;
  ReplyFrame frame_of(const ApiRequest& parsed, const GenerationRequest& generation) const;
  std::optional<ApiError> bound_reply(const ApiRequest& parsed, const ReplyFrame& frame, GenerationRequest& out) const;
  std::optional<ApiError> fit(const ApiRequest& parsed, GenerationRequest& out) const;
  std::string domain_of(const std::string& asked, const std::string& tenant);

  Reloadable<const ApiKeys> keys_;
  // True if the server has, or ever had, more than one tenant. The metrics may then hold domains of several tenants, so
  // each tenant sees only its own domains.
  std::atomic<bool> several_tenants_;
  const AllowedHosts hosts_;
  ServeLimits limits_;
  RequestQueue& queue_;
  ByteBudget& budget_;
  MaskWorkers& masks_;
  Metrics& metrics_;
  const Clock& clock_;
  Gauges gauges_;
  std::atomic<State> state_{State::kLoading};
  ServedModel model_;
  size_t longest_token_bytes_ = 1;
  std::shared_ptr<const text::TokenBytes> token_bytes_;
  std::once_flag vocabulary_made_;  // vocabulary_ is made at the first request with a grammar
  std::unique_ptr<const text::Vocabulary> vocabulary_;
  // Random salt of conversation keys. It prevents clients from choosing conversations that a draft on trial serves or
  // scores.
  const std::string salt_;
  std::mutex mutex_;                            // guards domains_
  std::map<std::string, std::string> domains_;  // domain → the tenant whose request introduced it
};

// Serves POST /admin/drain, GET and POST /admin/draft, and GET /health on the Unix socket. The socket's file mode is
// the only access control.
class AdminApi final : public HttpHandler {
 public:
  explicit AdminApi(std::function<void()> drain) : drain_(std::move(drain)) {}
  void set_drafts(DraftControl* drafts) { drafts_.store(drafts); }  // null until a model is loaded: replies are 503
  std::optional<HttpReply> answer_head(HttpRequest& request) override;
  std::shared_ptr<Exchange> respond(HttpRequest request) override;
  void replied(const HttpRequest&, int) override {}

 private:
  std::function<void()> drain_;
  std::atomic<DraftControl*> drafts_{nullptr};
};

// The content of assets/dashboard.html, a page that polls /metrics and loads nothing from other sites.
extern const char kDashboardHtml[];
// The content of docs/openapi.json.
extern const char kOpenapiJson[];

}  // namespace specdec::deploy
