#include "deploy/serve/api/api.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "deploy/serve/answer/generation.h"

namespace specdec::deploy {

namespace {

// An exchange whose reply is complete from the start.
class Finished final : public Exchange {
 public:
  // `held` counts the reply's bytes against the client's budget until they are sent; null: they are not counted.
  explicit Finished(HttpReply reply, std::shared_ptr<ByteBudget::Hold> held = nullptr)
      : reply_(std::move(reply)), held_(std::move(held)) {}
  void on_wake(std::function<void()>) override {}
  Turn next() override { return {Turn::Kind::kReply, std::move(reply_), {}}; }
  void abandon() override {}

 private:
  HttpReply reply_;
  std::shared_ptr<ByteBudget::Hold> held_;
};

std::shared_ptr<Exchange> finished(const ApiError& error, const std::string& id) {
  return std::make_shared<Finished>(error_reply(error, id));
}

HttpReply text_reply(int status, const char* content_type, std::string body) {
  return {status, content_type, std::move(body), {}};
}

HttpReply dashboard_reply() {
  HttpReply reply = text_reply(200, "text/html; charset=utf-8", kDashboardHtml);
  reply.headers = {{"Content-Security-Policy",
                    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
                    "frame-ancestors 'none'"},
                   {"X-Frame-Options", "DENY"},
                   {"Referrer-Policy", "no-referrer"}};
  return reply;
}

bool is_json(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
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
  bool open;  // requires no API key
  Endpoint endpoint;
  bool probe = false;  // a GET route that also answers POST, ignoring the body
};

const Api::Route* Api::find_route(const std::string& path) {
  static constexpr Route kRoutes[] = {
      {"/health", false, true, {}},
      {"/ready", false, true, {}},
      {"/ping", false, true, {}, true},
      {"/version", false, false, {}},
      {"/openapi.json", false, false, {}},
      {"/metrics", false, false, {}},
      {"/gate", false, false, {}},
      {"/dashboard", false, false, {}},
      {"/v1/models", false, false, {}},
      {"/v1/chat/completions", true, false, Endpoint::kChat},
      {"/v1/completions", true, false, Endpoint::kCompletions},
      {"/tokenize", true, false, {}},
      {"/detokenize", true, false, {}},
      {kModelPrefix, false, false, {}},
  };
  for (const Route& route : kRoutes)
    if (path == route.path && path != kModelPrefix) return &route;
  return path.rfind(kModelPrefix, 0) == 0 && path.size() > sizeof kModelPrefix - 1 ? &kRoutes[std::size(kRoutes) - 1]
                                                                                   : nullptr;
}

Api::Api(Admission admission, const ServeLimits& limits, Metrics& metrics, const Clock& clock, Gauges gauges)
    : keys_(std::move(admission.keys)),
      several_tenants_(keys_.get()->tenants().size() > 1),
      hosts_(std::move(admission.hosts)),
      limits_(limits),
      queue_(admission.queue),
      budget_(admission.budget),
      masks_(admission.masks),
      metrics_(metrics),
      clock_(clock),
      gauges_(std::move(gauges)),
      salt_(std::to_string(random_seed())) {}
Api::~Api() = default;

void Api::set_ready(ServedModel model) {
  model_ = std::move(model);
  for (int64_t id = 0; id < model_.tokenizer->vocab_size(); ++id)
    longest_token_bytes_ =
        std::max(longest_token_bytes_, model_.tokenizer->id_to_token(static_cast<int32_t>(id)).size());
  token_bytes_ = std::make_shared<text::TokenBytes>(model_.tokenizer->token_bytes(model_.vocab_size));
  state_.store(State::kReady);
}

void Api::set_draining() { state_.store(State::kDraining); }
void Api::set_keys(std::shared_ptr<const ApiKeys> keys) {
  if (keys->tenants() != keys_.get()->tenants()) several_tenants_.store(true);
  keys_.set(std::move(keys));
}

// Authenticates the request and sets request.party to its tenant, or returns the refusal.
std::optional<HttpReply> Api::stranger(HttpRequest& request, bool open_route) const {
  const std::shared_ptr<const ApiKeys> keys = keys_.get();
  if (!keys->required()) {
    const bool names_us = (request.version < 11 && request.host.empty()) || hosts_.takes_host(request.host);
    if (names_us && (request.origin.empty() || hosts_.takes_origin(request.origin))) return std::nullopt;
    return error_reply(foreign_host(), request.id);
  }
  if (const std::string* const tenant = keys->tenant(request.authorization)) {
    request.party = *tenant;
    return std::nullopt;
  }
  if (open_route) return std::nullopt;
  HttpReply reply = error_reply(invalid_api_key(), request.id);
  // A browser asks the user for the key if the reply offers Basic authentication.
  const bool for_people = request.path == "/dashboard" || request.path == "/metrics";
  reply.headers.emplace_back("WWW-Authenticate",
                             for_people ? "Basic realm=\"specdec: any name, the API key as password\"" : "Bearer");
  return reply;
}

std::optional<HttpReply> Api::answer_head(HttpRequest& request) {
  const Route* route = find_route(request.path);
  request.reply_headers = hosts_.reply_headers(request.origin);
  // A CORS preflight has no key: the browser asks whether a page from another origin may send its request.
  const bool preflight =
      request.method == "OPTIONS" && !request.preflight_method.empty() && hosts_.shares_with(request.origin);
  if (auto refused = stranger(request, route && (route->open || preflight))) return refused;
  if (!route) return error_reply(unknown_route(), request.id);
  const char* allow = route->post ? "POST, OPTIONS" : route->probe ? "GET, HEAD, POST, OPTIONS" : "GET, HEAD, OPTIONS";
  const bool reads = request.method == "GET" || request.method == "HEAD", posts = request.method == "POST";
  if (request.method == "OPTIONS") {
    HttpReply reply{204, "text/plain", "",
                    preflight ? AllowedHosts::preflight_headers(allow) : AllowedHosts::Headers()};
    reply.headers.emplace_back("Allow", allow);
    return reply;
  }
  if (!(route->post ? posts : reads || (posts && route->probe))) {
    HttpReply reply = error_reply(wrong_method(), request.id);
    reply.headers.emplace_back("Allow", allow);
    return reply;
  }
  if (!route->post) return get(*route, request);
  if (!request.content_encoding.empty() || !is_json(request.content_type))
    return error_reply(unsupported_media_type(), request.id);
  if (state() == State::kLoading) return error_reply(loading(), request.id);
  if (state() == State::kDraining) return error_reply(draining(), request.id);
  request.held = budget_.hold(request.party);
  return std::nullopt;
}

// Returns whether the child processes that render chat templates and compile grammars still work. Without them requests
// fail before they reach the engine.
bool Api::prepares() const {
  return (!model_.chat_template || model_.chat_template->works()) && (!model_.grammars || model_.grammars->works());
}

ModelCard Api::card() const {
  ModelCard card = model_.card;
  if (const auto draft = gauges_.draft ? gauges_.draft() : std::nullopt; draft && *draft != card.draft) {
    card.draft = *draft;
    card.package.clear();  // the draft was replaced, so the served pair is not the packaged one
  }
  return card;
}

HttpReply Api::get(const Route& route, const HttpRequest& request) {
  const std::string path = route.path;
  if (path == "/health" || path == "/ping") {
    const bool broken = (gauges_.broken && gauges_.broken()) || (state() == State::kReady && !prepares());
    return text_reply(broken ? 503 : 200, "application/json", broken ? R"({"status":"broken"})" : R"({"status":"ok"})");
  }
  if (path == "/ready") {
    const State now = state();
    HttpReply reply = text_reply(now == State::kReady ? 200 : 503, "application/json",
                                 now == State::kReady     ? R"({"status":"ready"})"
                                 : now == State::kLoading ? R"({"status":"loading"})"
                                                          : R"({"status":"draining"})");
    if (now != State::kReady) reply.headers.emplace_back("Retry-After", "5");
    return reply;
  }
  if (path == "/version") return text_reply(200, "application/json", Json{{"version", kToolVersion}}.dump());
  if (path == "/openapi.json") return text_reply(200, "application/json", kOpenapiJson);
  if (path == "/metrics") {
    // A tenant sees only its own domains in the metrics; the operator sees all.
    const bool all = !several_tenants_.load() || request.party == ApiKeys::kOperator;
    if (state() != State::kLoading) metrics_.set_info(card());
    const std::string gate = gauges_.gate && state() != State::kLoading ? gate_metrics(gauges_.gate(card().draft)) : "";
    return text_reply(200, "text/plain; version=0.0.4; charset=utf-8",
                      metrics_.text(queue_.size(), gauges_.running ? gauges_.running() : 0,
                                    gauges_.connections ? gauges_.connections() : 0,
                                    all ? std::nullopt : std::optional(request.party)) +
                          gate);
  }
  if (path == "/dashboard") return dashboard_reply();
  if (state() == State::kLoading) return error_reply(loading(), request.id);
  if (path == "/gate") {
    const std::optional<double> floor = gate_floor(request.query);
    if (!floor)
      return error_reply(invalid_parameter("floor", "a number from 0 to 1, as in /gate?floor=0.65"), request.id);
    return text_reply(200, "application/json",
                      gate_json(gauges_.gate ? gauges_.gate(card().draft)
                                             : LiveGate::Reading{"serving", card().draft, {0, {0, 1}, 0}},
                                *floor)
                          .dump());
  }
  if (path == "/v1/models") return text_reply(200, "application/json", model_list(card()));
  const std::string model = request.path.substr(sizeof kModelPrefix - 1);
  if (!model_.card.has(model)) return error_reply(unknown_model(model_.card.names), request.id);
  return text_reply(200, "application/json", model_object(card(), model));
}

void Api::replied(const HttpRequest& request, int status) {
  const Route* route = find_route(request.path);
  metrics_.replied(!route ? "other" : route->path == std::string(kModelPrefix) ? "/v1/models" : route->path, status);
}

// From now on the client's budget is charged for the reply's bytes instead of the request's. If the reply does not fit
// into the budget, returns a refusal instead.
std::shared_ptr<Exchange> Api::counted(HttpReply reply, const HttpRequest& request) const {
  if (request.held && !request.held->resize(reply.body.size()))
    return finished(too_many_bytes(queue_.retry_after(request.party)), request.id);
  return std::make_shared<Finished>(std::move(reply), request.held);
}

std::shared_ptr<Exchange> Api::respond(HttpRequest request) {
  try {
    if (request.path == "/tokenize") return counted(tokenize(request), request);
    if (request.path == "/detokenize") return counted(detokenize(request), request);
    return generate(find_route(request.path)->endpoint, request);
  } catch (const std::exception& e) {
    // The exception's text may hold internal details, so it is logged but never sent to the client.
    log(LogLevel::kError, request.id + ": " + e.what());
    return finished(internal_error(), request.id);
  }
}

std::optional<ApiError> Api::refusal(RequestQueue::Push answer, const std::string& tenant) const {
  switch (answer) {
    case RequestQueue::Push::kAccepted:
      return std::nullopt;
    case RequestQueue::Push::kFull:
      return queue_full(queue_.retry_after(tenant));
    case RequestQueue::Push::kTenantFull:
      return tenant_queue_full(queue_.retry_after(tenant));
    case RequestQueue::Push::kClosed:
      return draining();
  }
  return internal_error();
}

std::shared_ptr<Exchange> Api::generate(Endpoint endpoint, const HttpRequest& request) {
  auto result = parse_request(endpoint, request.body, limits_);
  if (const auto* error = std::get_if<ApiError>(&result)) return finished(*error, request.id);
  const ApiRequest& parsed = std::get<ApiRequest>(result);
  if (!parsed.model.empty() && !model_.card.has(parsed.model))
    return finished(unknown_model(model_.card.names), request.id);
  const auto generation = std::make_shared<GenerationRequest>();
  generation->id = request.id;
  generation->tenant = request.party;
  generation->held = request.held;
  if (const auto error = refusal(queue_.would_push(generation->tenant), generation->tenant))
    return finished(*error, request.id);
  if (const auto error = tokenise(parsed, *generation)) return finished(*error, request.id);
  generation->options = parsed.options;
  if (!parsed.ignore_eos) generation->options.eos_ids = model_.eos_ids;
  auto& ends = generation->options.eos_ids;
  ends.insert(ends.end(), parsed.stop_token_ids.begin(), parsed.stop_token_ids.end());
  generation->n = parsed.n;
  generation->echo = parsed.echo;
  generation->seed = parsed.seed ? static_cast<uint64_t>(*parsed.seed) : random_seed();
  generation->stop = parsed.stop;
  generation->min_tokens = parsed.rules.min_tokens;
  generation->include_stop = parsed.include_stop_str_in_output;
  generation->conversation = parsed.conversation;
  generation->conversation_key = salt_ + "\n" + generation->tenant + "\n" + generation->conversation_id();
  generation->time = clock_.unix_seconds();
  generation->queued_at = clock_.seconds();
  const ReplyFrame frame = frame_of(parsed, *generation);
  if (const auto error = fit(parsed, *generation)) return finished(*error, request.id);
  if (const auto error = bound_reply(parsed, frame, *generation)) return finished(*error, request.id);
  // Compiling a grammar is the most expensive step, so it comes last.
  if (const auto error = set_rules(parsed, *generation)) return finished(*error, request.id);
  generation->domain = domain_of(parsed.domain, generation->tenant);
  generation->channel = std::make_shared<Channel>(limits_.pending_bytes);
  const auto exchange =
      make_generation({frame, parsed.stream, generation, token_bytes_, limits_.reply_bytes, parsed.max_tokens_param});
  const auto error = refusal(queue_.push(generation), generation->tenant);
  return error ? finished(*error, request.id) : exchange;
}

ReplyFrame Api::frame_of(const ApiRequest& parsed, const GenerationRequest& generation) const {
  ReplyFrame frame;
  frame.endpoint = parsed.endpoint;
  frame.id =
      (parsed.endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + generation.id.substr(generation.id.find('-') + 1);
  frame.model = model_.card.names.front();
  frame.system_fingerprint = model_.card.target.empty() ? "" : "fp_" + model_.card.target.substr(0, 12);
  frame.created = generation.time;
  frame.include_usage = parsed.include_usage;
  frame.return_token_ids = parsed.return_token_ids;
  frame.include_metrics = parsed.include_metrics;
  frame.tokens_as_ids = parsed.tokens_as_ids;
  frame.logprobs = parsed.options.logprobs;
  frame.short_call_ids = model_.tool_format == ToolFormat::kMistral;
  for (const auto& prompt : generation.prompts) frame.prompt_tokens += static_cast<int64_t>(prompt.size());
  return frame;
}

// Renders a conversation as the prompt of an answer, followed by the beginning of a forced call. Sets out.format, which
// says how the answer is split into content, thoughts and calls.
std::variant<std::string, ApiError> Api::render_answered(const ApiRequest& parsed, GenerationRequest& out) const {
  auto rendered = render(parsed.chat, true, out.id);
  auto* const prompt = std::get_if<std::string>(&rendered);
  if (!prompt) return rendered;
  auto format = std::make_shared<AnswerFormat>();
  format->offered = parsed.chat.tools;
  if (format->offered.choice != ToolChoice::kNone) format->tools = model_.tool_format;
  if (!parsed.grammar) format->reasoning = model_.reasoning;  // an answer that must match a grammar has no thoughts
  format->begins_reasoning = ends_with_marker(*prompt, format->reasoning.begin);
  if (format->offered.forced()) {
    format->begins_in_call = true;
    out.answer_prefix = forced_prefix(model_.tool_format);
    *prompt += out.answer_prefix;
  }
  for (const std::string& marker : marker_tokens(format->tools, format->reasoning)) {
    const int32_t id = model_.tokenizer->token_to_id(marker);
    if (std::binary_search(token_bytes_->special.begin(), token_bytes_->special.end(), id))
      out.shown_tokens.push_back(id);
  }
  if (format->any()) out.format = std::move(format);
  return rendered;
}

std::optional<ApiError> Api::tokenise(const ApiRequest& parsed, GenerationRequest& out) {
  const std::string param = parsed.endpoint == Endpoint::kChat ? "messages" : "prompt";
  size_t kept = 0;  // number of prompt tokens to keep; 0: all
  if (const auto error = kept_tokens(parsed, kept)) return error;
  const ApiError over = invalid_parameter(
      param, kept > 0 ? "at most " + std::to_string(longest_text()) + " bytes of text"
                      : "at most " + std::to_string(model_.max_context - 1) + " tokens, the context less one");
  // Adds a prompt and returns whether it was truncated. Returns none if the text is too long.
  const auto add = [&](const std::string& text, bool special) -> std::optional<bool> {
    auto tokens = kept > 0 ? encode_long(text, special) : encode(text, special);
    if (!tokens) return std::nullopt;
    out.prompts.push_back(std::move(*tokens));
    return kept > 0 && keep_last(out.prompts.back(), kept, special);
  };
  if (parsed.endpoint == Endpoint::kChat) {
    const size_t bytes = content_bytes(parsed.chat.messages);
    if (kept > 0 ? bytes > longest_text() : bytes / longest_token_bytes_ > static_cast<size_t>(model_.max_context))
      return over;
    auto rendered = render_answered(parsed, out);
    if (const auto* error = std::get_if<ApiError>(&rendered)) return *error;
    const auto cut = add(std::get<std::string>(rendered), false);
    if (!cut) return over;
    // The recorder gets the truncated text, which the model has read, instead of the conversation.
    if (*cut) {
      out.texts.push_back(model_.tokenizer->decode(out.prompts.back(), false));
    } else {
      out.messages = parsed.chat.messages;
      out.tools = parsed.chat.tools.text;
      if (!parsed.chat.template_variables.empty()) out.template_kwargs = parsed.chat.template_variables.dump();
    }
  }
  for (const std::string& prompt : parsed.prompts) {
    const auto cut = add(prompt, true);
    if (!cut) return over;
    // An empty text becomes the single token BOS, if the tokenizer has one.
    if (out.prompts.back().empty() && model_.tokenizer->bos_id() >= 0)
      out.prompts.back().push_back(model_.tokenizer->bos_id());
    out.texts.push_back(*cut ? model_.tokenizer->decode(out.prompts.back(), true) : prompt);
  }
  for (const auto& ids : parsed.prompt_ids)
    if (kept == 0 && static_cast<int64_t>(ids.size()) >= model_.max_context) return over;
  for (const auto& ids : parsed.prompt_ids) {
    out.prompts.push_back(ids);
    if (kept > 0) keep_last(out.prompts.back(), kept, false);
    out.texts.push_back(model_.tokenizer->decode(out.prompts.back(), true));
  }
  for (const auto& prompt : out.prompts) {
    if (prompt.empty()) return invalid_parameter(param, "at least one token");
    // The tokenizer may have more tokens than the model's vocabulary.
    if (!knows(prompt))
      return invalid_parameter(param, "text or ids of tokens below " + std::to_string(model_.vocab_size));
  }
  return std::nullopt;
}

// Sets max_tokens, or returns the refusal if the answer would exceed the context. Without max_tokens a chat answer may
// fill the context, and a completion gets 16 tokens, as in OpenAI's API.
std::optional<ApiError> Api::fit(const ApiRequest& parsed, GenerationRequest& out) const {
  int64_t longest = 0;
  for (const auto& prompt : out.prompts) longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  const int64_t room = model_.max_context - longest;
  const std::optional<double>& fallback = request_number(parsed.endpoint, "max_tokens").fallback;
  out.options.max_tokens =
      parsed.max_tokens.value_or(fallback ? std::min(static_cast<int64_t>(*fallback), room) : room);
  if (out.options.max_tokens > room)
    return invalid_parameter(parsed.max_tokens_param, "at most " + std::to_string(room) + ": the prompt has " +
                                                          std::to_string(longest) + " tokens, the context " +
                                                          std::to_string(model_.max_context));
  return std::nullopt;
}

// Limits the size of this request's reply: reduces a default max_tokens or returns a refusal. Charges the bytes of
// request and reply, known or estimated, to the memory budget of all requests.
std::optional<ApiError> Api::bound_reply(const ApiRequest& parsed, const ReplyFrame& frame,
                                         GenerationRequest& out) const {
  const size_t per_token = reply_bytes_per_token(frame), answers = out.choices(), n = static_cast<size_t>(out.n);
  const std::string bound = std::to_string(limits_.reply_bytes) + " bytes, all answers together";
  size_t request = parsed.rules.allowed_ids.size() * sizeof(int32_t), echoed = answers * kReplyBytesPerAnswer;
  for (const auto& prompt : out.prompts) request += prompt.size() * sizeof(int32_t);
  constexpr size_t kParsed = 32;  // bytes in memory per byte of JSON text
  request += content_bytes(out.messages) + (kParsed + 1) * parsed.chat.tools.text.size();
  for (size_t i = 0; i < out.texts.size(); ++i) {
    request += out.texts[i].size();
    if (out.echo) echoed += n * (out.texts[i].size() + (frame.logprobs >= 0 ? out.prompts[i].size() * per_token : 0));
  }
  if (echoed > limits_.reply_bytes)
    return invalid_parameter(frame.logprobs >= 0 ? "logprobs" : "echo",
                             "a reply of at most " + bound + ": ask for fewer prompts, answers or log-probabilities");
  size_t generated = 0;
  if (parsed.stream) {
    generated = limits_.pending_bytes;
  } else {
    const auto most = static_cast<int64_t>((limits_.reply_bytes - echoed) / (answers * per_token));
    if (parsed.max_tokens && out.options.max_tokens > most)
      return invalid_parameter(parsed.max_tokens_param,
                               "at most " + std::to_string(most) + ": the reply, not streamed, has at most " + bound);
    if (!parsed.max_tokens) out.options.max_tokens = std::max<int64_t>(1, std::min(out.options.max_tokens, most));
    generated = answers * static_cast<size_t>(out.options.max_tokens) * per_token;
  }
  return hold(out, request + echoed + generated);
}

// Sets the number of bytes that the request holds in the memory budget, or refuses the request if the budget is too
// small.
std::optional<ApiError> Api::hold(const GenerationRequest& request, size_t bytes) const {
  if (!request.held || request.held->resize(bytes)) return std::nullopt;
  return too_many_bytes(queue_.retry_after(request.tenant));
}

// Returns the domain under which the request is counted. A new domain is counted as "other" if the number of domain
// names has reached its limit. With several tenants, one tenant may introduce at most half of the names, so that some
// remain for the others.
std::string Api::domain_of(const std::string& asked, const std::string& tenant) {
  if (asked.empty()) return asked;
  const std::lock_guard lock(mutex_);
  if (domains_.contains(asked)) return asked;
  const auto brought = static_cast<size_t>(
      std::count_if(domains_.begin(), domains_.end(), [&](const auto& d) { return d.second == tenant; }));
  const size_t most = several_tenants_.load() ? std::max<size_t>(1, limits_.domains / 2) : limits_.domains;
  if (domains_.size() >= limits_.domains || brought >= most) return "other";
  domains_.emplace(asked, tenant);
  return asked;
}

}  // namespace specdec::deploy
