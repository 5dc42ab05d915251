#include "deploy/serve/api.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "deploy/serve/token_rules.h"

namespace specdec::deploy {

namespace {

// A reply that is there already.
class Finished final : public Exchange {
 public:
  explicit Finished(HttpReply reply) : reply_(std::move(reply)) {}
  void on_wake(std::function<void()>) override {}
  Turn next() override { return {Turn::Kind::kReply, std::move(reply_), {}}; }
  void abandon() override {}

 private:
  HttpReply reply_;
};

std::shared_ptr<Exchange> finished(const ApiError& error, const std::string& id) { return std::make_shared<Finished>(error_reply(error, id)); }

// Collects the answers of one queued request, as one body or as a stream.
class Generation final : public Exchange {
 public:
  Generation(ReplyFrame frame, bool stream, size_t choices, std::string request_id, std::shared_ptr<Channel> channel,
             std::shared_ptr<const text::TokenBytes> token_bytes)
      : frame_(std::move(frame)), stream_(stream), answers_(choices), begun_(choices, false), request_id_(std::move(request_id)),
        channel_(std::move(channel)), token_bytes_(std::move(token_bytes)) {}
  ~Generation() override {
    channel_->on_event({});
    channel_->cancel();
  }

  void on_wake(std::function<void()> wake) override { channel_->on_event(std::move(wake)); }
  void abandon() override { channel_->cancel(); }

  Turn next() override {
    if (ended_) return {Turn::Kind::kEnd, {}, {}};
    std::string data;
    for (ChoiceEvent& event : merge(channel_->take())) {
      if (event.result && event.result->reason != FinishReason::kStop && event.result->reason != FinishReason::kLength)
        return fail(event.result->reason, std::move(data));
      collect(event);
      if (stream_) data += events(event);
    }
    const bool complete = std::all_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.result.has_value(); });
    if (complete && !stream_) return {Turn::Kind::kReply, {200, "application/json", full_reply(frame_, answers_), {}}, {}};
    if (complete) {
      ended_ = true;
      data += usage_event(frame_, answers_) + done_event();
    }
    if (data.empty()) return {};
    sent_ = true;
    return {Turn::Kind::kData, {}, std::move(data)};
  }

 private:
  // One event a choice: a slow client gets fewer, longer pieces.
  static std::vector<ChoiceEvent> merge(std::vector<ChoiceEvent> events) {
    std::vector<ChoiceEvent> merged;
    for (ChoiceEvent& event : events) {
      const auto same = std::find_if(merged.begin(), merged.end(), [&](const ChoiceEvent& m) { return m.choice == event.choice; });
      if (same == merged.end()) {
        merged.push_back(std::move(event));
        continue;
      }
      same->text += event.text;
      same->token_ids.insert(same->token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(same->logprobs));
      if (event.result) same->result = std::move(event.result);
    }
    return merged;
  }

  // Of a stream the answer holds no more than the piece that comes next.
  void collect(const ChoiceEvent& event) {
    Answer& answer = answers_[event.choice];
    if (stream_) {
      for (const TokenEntry& entry : answer.logprobs) answer.logprobs_offset += entry.characters;
      answer.text.clear();
      answer.token_ids.clear();
      answer.logprobs.clear();
    }
    answer.text += event.text;
    answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    for (const decode::PositionLogprobs& position : event.logprobs) answer.logprobs.push_back(entry_of(position));
    answer.result = event.result;
  }

  const std::string& bytes_of(int32_t id) const { return token_bytes_->tokens[static_cast<size_t>(id)]; }

  TokenEntry entry_of(const decode::PositionLogprobs& position) const {
    TokenEntry entry;
    entry.bytes = bytes_of(position.token.id);
    const bool special = std::binary_search(token_bytes_->special.begin(), token_bytes_->special.end(), position.token.id);
    entry.characters = special ? 0 : characters(entry.bytes);
    if (!std::isnan(position.token.logprob)) entry.logprob = position.token.logprob;
    for (const decode::TokenLogprob& t : position.top) entry.top.emplace_back(bytes_of(t.id), t.logprob);
    return entry;
  }

  std::string events(const ChoiceEvent& event) {
    std::string data;
    if (!begun_[event.choice]) data += first_event(frame_, event.choice);
    begun_[event.choice] = true;
    data += delta_event(frame_, event.choice, answers_[event.choice]);
    if (event.result) data += finish_event(frame_, event.choice, event.result->reason);
    return data;
  }

  // Before the first byte a failure is a status, behind it an event.
  Turn fail(FinishReason reason, std::string data) {
    channel_->cancel();
    const ApiError error = reason == FinishReason::kDrained       ? draining()
                           : reason == FinishReason::kNoTokenLeft ? no_token_left()
                           : reason == FinishReason::kNoRoom      ? no_room()
                                                                  : internal_error();
    if (!sent_) return {Turn::Kind::kReply, error_reply(error, request_id_), {}};
    ended_ = true;
    return {Turn::Kind::kData, {}, data + error_event(error, request_id_) + done_event()};
  }

  ReplyFrame frame_;
  const bool stream_;
  std::vector<Answer> answers_;
  std::vector<bool> begun_;
  std::string request_id_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<const text::TokenBytes> token_bytes_;
  bool sent_ = false, ended_ = false;
};

HttpReply text_reply(int status, const char* content_type, std::string body) { return {status, content_type, std::move(body), {}}; }

HttpReply dashboard_reply() {
  HttpReply reply = text_reply(200, "text/html; charset=utf-8", kDashboardHtml);
  reply.headers = {{"Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'"},
                   {"X-Frame-Options", "DENY"},
                   {"Referrer-Policy", "no-referrer"}};
  return reply;
}

bool is_json(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return type == "application/json";
}

uint64_t random_seed() {
  thread_local std::random_device source;
  return (static_cast<uint64_t>(source()) << 32) | source();
}

constexpr char kModelPrefix[] = "/v1/models/";

}  // namespace

struct Api::Route {
  const char* path;
  bool post;
  bool open;  // asks for no key
  Endpoint endpoint;
};

const Api::Route* Api::find_route(const std::string& path) {
  static constexpr Route kRoutes[] = {
      {"/health", false, true, {}},      {"/ready", false, true, {}},      {"/metrics", false, false, {}},
      {"/gate", false, false, {}},       {"/dashboard", false, false, {}},  {"/v1/models", false, false, {}}, {"/v1/chat/completions", true, false, Endpoint::kChat},
      {"/v1/completions", true, false, Endpoint::kCompletions}, {kModelPrefix, false, false, {}},
  };
  for (const Route& route : kRoutes)
    if (path == route.path && path != kModelPrefix) return &route;
  return path.rfind(kModelPrefix, 0) == 0 && path.size() > sizeof kModelPrefix - 1 ? &kRoutes[std::size(kRoutes) - 1] : nullptr;
}

Api::Api(ApiKeys keys, const ServeLimits& limits, RequestQueue& queue, Metrics& metrics, const Clock& clock, Gauges gauges)
    : keys_(std::move(keys)), limits_(limits), queue_(queue), metrics_(metrics), clock_(clock), gauges_(std::move(gauges)) {}

Api::~Api() = default;

void Api::set_ready(ServedModel model) {
  model_ = std::move(model);
  for (int64_t id = 0; id < model_.tokenizer->vocab_size(); ++id)
    longest_token_bytes_ = std::max(longest_token_bytes_, model_.tokenizer->id_to_token(static_cast<int32_t>(id)).size());
  token_bytes_ = std::make_shared<text::TokenBytes>(model_.tokenizer->token_bytes(model_.vocab_size));
  state_.store(State::kReady);
}

void Api::set_draining() { state_.store(State::kDraining); }

std::optional<HttpReply> Api::answer_head(const HttpRequest& request) {
  const Route* route = find_route(request.path);
  if (keys_.required() && !(route && route->open) && !keys_.accepts(request.authorization)) {
    HttpReply reply = error_reply(invalid_api_key(), request.id);
    // A browser asks for the key by itself when it is offered Basic.
    const bool for_people = request.path == "/dashboard" || request.path == "/metrics";
    reply.headers.emplace_back("WWW-Authenticate", for_people ? "Basic realm=\"specdec: any name, the API key as password\"" : "Bearer");
    return reply;
  }
  if (!route) return error_reply(unknown_route(), request.id);
  const char* allow = route->post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  if (request.method == "OPTIONS") return HttpReply{204, "text/plain", "", {{"Allow", allow}}};
  if (route->post ? request.method != "POST" : request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = error_reply(wrong_method(), request.id);
    reply.headers.emplace_back("Allow", allow);
    return reply;
  }
  if (!route->post) return get(*route, request);
  if (!request.content_encoding.empty() || !is_json(request.content_type)) return error_reply(unsupported_media_type(), request.id);
  if (state() == State::kLoading) return error_reply(loading(), request.id);
  if (state() == State::kDraining) return error_reply(draining(), request.id);
  return std::nullopt;
}

ModelCard Api::card() const {
  ModelCard card = model_.card;
  if (const auto draft = gauges_.draft ? gauges_.draft() : std::nullopt; draft && *draft != card.draft) {
    card.draft = *draft;
    card.package.clear();  // what serves is no longer what was packaged
  }
  return card;
}

HttpReply Api::get(const Route& route, const HttpRequest& request) {
  const std::string path = route.path;
  if (path == "/health") {
    const bool broken = gauges_.broken && gauges_.broken();
    return text_reply(broken ? 503 : 200, "application/json", broken ? R"({"status":"broken"})" : R"({"status":"ok"})");
  }
  if (path == "/ready") {
    const State now = state();
    HttpReply reply = text_reply(now == State::kReady ? 200 : 503, "application/json",
                                 now == State::kReady ? R"({"status":"ready"})" : now == State::kLoading ? R"({"status":"loading"})" : R"({"status":"draining"})");
    if (now != State::kReady) reply.headers.emplace_back("Retry-After", "5");
    return reply;
  }
  if (path == "/metrics") {
    if (state() != State::kLoading) metrics_.set_info(card());
    const std::string gate = gauges_.gate && state() != State::kLoading ? gate_metrics(gauges_.gate(card().draft)) : "";
    return text_reply(200, "text/plain; version=0.0.4; charset=utf-8",
                      metrics_.text(queue_.size(), gauges_.running ? gauges_.running() : 0, gauges_.connections ? gauges_.connections() : 0) + gate);
  }
  if (path == "/dashboard") return dashboard_reply();
  if (state() == State::kLoading) return error_reply(loading(), request.id);
  if (path == "/gate") {
    const std::optional<double> floor = gate_floor(request.query);
    if (!floor) return error_reply(invalid_parameter("floor", "a number from 0 to 1, as in /gate?floor=0.65"), request.id);
    return text_reply(200, "application/json", gate_json(gauges_.gate ? gauges_.gate(card().draft) : LiveGate::Reading{"serving", card().draft, {0, {0, 1}, 0}}, *floor).dump());
  }
  if (path == "/v1/models") return text_reply(200, "application/json", model_list(card()));
  if (request.path.substr(sizeof kModelPrefix - 1) != model_.card.name) return error_reply(unknown_model(), request.id);
  return text_reply(200, "application/json", model_object(card()));
}

void Api::replied(const HttpRequest& request, int status) {
  const Route* route = find_route(request.path);
  metrics_.replied(!route ? "other" : route->path == std::string(kModelPrefix) ? "/v1/models" : route->path, status);
}

std::shared_ptr<Exchange> Api::respond(HttpRequest request) {
  try {
    return generate(find_route(request.path)->endpoint, request);
  } catch (const std::exception& e) {
    // The text goes to the log, never to the client.
    log(LogLevel::kError, request.id + ": " + e.what());
    return finished(internal_error(), request.id);
  }
}

std::optional<ApiError> Api::refusal(RequestQueue::Push answer, const std::string& tenant) const {
  switch (answer) {
    case RequestQueue::Push::kAccepted: return std::nullopt;
    case RequestQueue::Push::kFull: return queue_full(queue_.retry_after(tenant));
    case RequestQueue::Push::kTenantFull: return tenant_queue_full(queue_.retry_after(tenant));
    case RequestQueue::Push::kClosed: return draining();
  }
  return internal_error();
}

std::shared_ptr<Exchange> Api::generate(Endpoint endpoint, const HttpRequest& request) {
  auto result = parse_request(endpoint, request.body, limits_);
  if (const auto* error = std::get_if<ApiError>(&result)) return finished(*error, request.id);
  const ApiRequest& parsed = std::get<ApiRequest>(result);
  if (!parsed.model.empty() && parsed.model != model_.card.name) return finished(unknown_model(), request.id);
  const std::string* const key_name = keys_.tenant(request.authorization);
  const auto generation = std::make_shared<GenerationRequest>();
  if (key_name) generation->tenant = *key_name;
  if (const auto error = refusal(queue_.would_push(generation->tenant), generation->tenant)) return finished(*error, request.id);
  if (const auto error = tokenise(parsed, *generation)) return finished(*error, request.id);
  if (const auto error = set_rules(parsed, *generation)) return finished(*error, request.id);
  if (const auto error = fit(parsed, *generation)) return finished(*error, request.id);
  generation->id = request.id;
  generation->n = parsed.n;
  generation->sampling = parsed.sampling;
  generation->seed = parsed.seed ? static_cast<uint64_t>(*parsed.seed) : random_seed();
  generation->seeded = parsed.seed.has_value();
  generation->logprobs = parsed.logprobs;
  generation->echo = parsed.echo;
  generation->speculate = parsed.speculate;
  generation->stop = parsed.stop;
  generation->ignore_eos = parsed.ignore_eos;
  generation->domain = domain_of(parsed.domain);
  generation->conversation = parsed.conversation;
  generation->time = clock_.unix_seconds();
  generation->queued_at = clock_.seconds();
  generation->channel = std::make_shared<Channel>(limits_.pending_bytes);

  ReplyFrame frame;
  frame.endpoint = endpoint;
  frame.id = (endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + request.id.substr(request.id.find('-') + 1);
  frame.model = model_.card.name;
  frame.system_fingerprint = model_.card.target.empty() ? "" : "fp_" + model_.card.target.substr(0, 12);
  frame.created = generation->time;
  frame.include_usage = parsed.include_usage;
  frame.return_token_ids = parsed.return_token_ids;
  frame.include_metrics = parsed.include_metrics;
  frame.logprobs = parsed.logprobs;
  for (const auto& prompt : generation->prompts) frame.prompt_tokens += static_cast<int64_t>(prompt.size());

  const auto exchange = std::make_shared<Generation>(std::move(frame), parsed.stream, generation->choices(), request.id, generation->channel, token_bytes_);
  const auto error = refusal(queue_.push(generation), generation->tenant);
  return error ? finished(*error, request.id) : exchange;
}

std::optional<ApiError> Api::tokenise(const ApiRequest& parsed, GenerationRequest& out) {
  const std::string param = parsed.endpoint == Endpoint::kChat ? "messages" : "prompt";
  const auto too_long = [&](size_t bytes) { return bytes / longest_token_bytes_ > static_cast<size_t>(model_.max_context); };
  const ApiError over = invalid_parameter(param, "at most " + std::to_string(model_.max_context - 1) + " tokens, the context less one");
  if (parsed.endpoint == Endpoint::kChat) {
    if (!model_.chat_template) return invalid_parameter("messages", "a model with a chat template: this one has none, use /v1/completions");
    std::string rendered;
    try {
      rendered = model_.chat_template->render(parsed.messages, true);
    } catch (const Error& e) {
      log(LogLevel::kWarn, std::string("chat template: ") + e.what());
      return invalid_parameter("messages", "a conversation that the model's chat template takes");
    }
    if (too_long(rendered.size())) return over;
    out.prompts.push_back(model_.tokenizer->encode(rendered, false));
    out.messages = parsed.messages;
  }
  for (const std::string& prompt : parsed.prompts) {
    if (too_long(prompt.size())) return over;
    out.prompts.push_back(model_.tokenizer->encode(prompt, true));
    // The empty text is BOS alone, where the tokenizer has one.
    if (out.prompts.back().empty() && model_.tokenizer->bos_id() >= 0) out.prompts.back().push_back(model_.tokenizer->bos_id());
    out.texts.push_back(prompt);
  }
  for (const auto& ids : parsed.prompt_ids) {
    out.prompts.push_back(ids);
    out.texts.push_back(model_.tokenizer->decode(ids, true));
  }
  for (const auto& prompt : out.prompts) {
    if (prompt.empty()) return invalid_parameter(param, "at least one token");
    if (static_cast<int64_t>(prompt.size()) >= model_.max_context) return over;
    // A text may spell a token that the tokenizer has and the model does not.
    if (std::any_of(prompt.begin(), prompt.end(), [&](int32_t id) { return id >= model_.vocab_size; }))
      return invalid_parameter(param, "text or ids of tokens below " + std::to_string(model_.vocab_size));
  }
  return std::nullopt;
}

std::optional<ApiError> Api::set_rules(const ApiRequest& parsed, GenerationRequest& out) {
  decode::LogitRules rules = parsed.rules;
  for (const auto& [id, value] : rules.bias)
    if (id >= model_.vocab_size) return invalid_parameter("logit_bias", "token ids below " + std::to_string(model_.vocab_size));
  for (const std::string& word : parsed.bad_words)
    for (std::vector<int32_t>& spelling : bad_word_tokens(*model_.tokenizer, word)) rules.bad_words.push_back(std::move(spelling));
  for (const auto& word : rules.bad_words)
    if (std::any_of(word.begin(), word.end(), [this](int32_t id) { return id >= model_.vocab_size; }))
      return invalid_parameter("bad_words", "words of tokens that the model has");
  if (parsed.grammar) {
    if (model_.eos_ids.empty()) return invalid_parameter(parsed.grammar->param, "no grammar: this model has no token that ends a text");
    const std::shared_ptr<const text::Grammar> grammar = compile(*parsed.grammar);
    if (!grammar) return invalid_parameter(parsed.grammar->param, "a grammar that is well-formed, supported, satisfiable and not too large");
    rules.constraint = constraint_of(grammar);
  }
  if (rules.any()) out.rules = std::make_shared<const decode::LogitRules>(std::move(rules));
  return std::nullopt;
}

// On the thread of the connection: the engine never waits for a grammar. What survived in a child process is compiled here. Null: it
// cannot be used.
std::shared_ptr<const text::Grammar> Api::compile(const RequestedGrammar& grammar) {
  try {
    if (model_.grammars) model_.grammars->check(grammar.kind, grammar.source);
    std::call_once(vocabulary_made_, [this] {
      vocabulary_ = std::make_unique<text::Vocabulary>(*model_.tokenizer, model_.vocab_size, model_.eos_ids);
    });
    return vocabulary_->compile(grammar.kind, grammar.source);
  } catch (const Error& e) {
    log(LogLevel::kWarn, grammar.param + ": " + e.what());
    return nullptr;
  }
}

// Without a length a chat answer may fill the context; a completion has OpenAI's 16 tokens.
std::optional<ApiError> Api::fit(const ApiRequest& parsed, GenerationRequest& out) const {
  int64_t longest = 0;
  for (const auto& prompt : out.prompts) longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  const int64_t room = model_.max_context - longest;
  const std::optional<double>& fallback = request_number(parsed.endpoint, "max_tokens").fallback;
  out.max_tokens = parsed.max_tokens.value_or(fallback ? std::min(static_cast<int64_t>(*fallback), room) : room);
  if (out.max_tokens > room)
    return invalid_parameter(parsed.max_tokens_param, "at most " + std::to_string(room) + ": the prompt has " + std::to_string(longest) +
                                                          " tokens, the context " + std::to_string(model_.max_context));
  return std::nullopt;
}

std::string Api::domain_of(const std::string& asked) {
  if (asked.empty()) return asked;
  const std::lock_guard lock(mutex_);
  if (domains_.contains(asked)) return asked;
  if (domains_.size() >= limits_.domains) return "other";
  domains_.insert(asked);
  return asked;
}

}  // namespace specdec::deploy
