#include "monitor/facts/endpoint.h"

#include <algorithm>

#include "base/sha256.h"
#include "monitor/facts/served_target.h"
#include "monitor/read/source.h"

namespace specdec::monitor {

namespace {

constexpr size_t kMaxReplyBytes = 4u << 20;
constexpr size_t kMaxTokens = 64, kMaxTokenBytes = 256, kMaxTextBytes = 1u << 16;
constexpr double kTimeoutSeconds = 120;

std::string text_or_empty(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>().substr(0, 1024) : "";
}

// Copies from[key] to to[as] if the value is a string, an integer or a boolean.
void take(const Json& from, const char* key, Json& to, const char* as) {
  const auto it = from.find(key);
  if (it == from.end() || it->is_null()) return;
  if (it->is_string())
    to[as] = it->get<std::string>().substr(0, 1024);
  else if (it->is_number_integer() || it->is_boolean())
    to[as] = *it;
}

// Adds a token with its log-probability. Different tokens whose bytes are not valid UTF-8 can have the same name; then
// "'" is appended to the name of the later one.
void add_token(TopLogprobs& tokens, const Json& token, const Json& logprob, const std::string& where) {
  if (!token.is_string() || !logprob.is_number())
    throw PageError(where + ": expected tokens with their log-probabilities");
  std::string name = token.get<std::string>().substr(0, kMaxTokenBytes);
  const auto same = [&](const auto& t) { return t.first == name; };
  while (std::any_of(tokens.begin(), tokens.end(), same)) name += "'";
  tokens.emplace_back(name, std::max(-1e4f, logprob.get<float>()));
}

// Reads the logprobs of a choice: {"content": [{"top_logprobs": [{"token", "logprob"}]}]} from chat, or
// {"top_logprobs": [{token: logprob}]} from completions.
TopLogprobs top_logprobs(const Json& choice, int asked, const std::string& where) {
  TopLogprobs tokens;
  const auto require_few = [&](const Json& top) {
    if (top.size() > kMaxTokens)
      throw PageError(where + ": " + std::to_string(top.size()) + " log-probabilities for a token, " +
                      std::to_string(asked) + " were asked for");
  };
  const auto logprobs = choice.find("logprobs");
  if (logprobs == choice.end() || !logprobs->is_object()) return tokens;
  if (const auto content = logprobs->find("content");
      content != logprobs->end() && content->is_array() && !content->empty() && (*content)[0].is_object()) {
    const auto top = (*content)[0].find("top_logprobs");
    if (top == (*content)[0].end() || !top->is_array()) return tokens;
    require_few(*top);
    for (const Json& t : *top)
      if (t.is_object()) add_token(tokens, t.value("token", Json()), t.value("logprob", Json()), where);
  } else if (const auto top = logprobs->find("top_logprobs");
             top != logprobs->end() && top->is_array() && !top->empty() && (*top)[0].is_object()) {
    require_few((*top)[0]);
    for (const auto& [token, logprob] : (*top)[0].items()) add_token(tokens, token, logprob, where);
  }
  return tokens;
}

std::string problem_of(const net::HttpReply& reply) {
  return reply.status == 0 || !reply.problem.empty() ? reply.problem : "HTTP " + std::to_string(reply.status);
}

}  // namespace

Endpoint::Endpoint(EndpointOptions options) : options_(std::move(options)), http_(std::make_unique<net::HttpClient>()) {
  base_ = net::base_url(options_.url, "--target", "--target-key-file");
  if (base_.find('/', base_.find("://") + 3) == std::string::npos) base_ += "/v1";
  server_ = base_.ends_with("/v1") ? base_.substr(0, base_.size() - 3) : base_;
}

void Endpoint::reconnect() { http_ = std::make_unique<net::HttpClient>(); }

net::HttpReply Endpoint::get(const std::string& url) {
  net::HttpRequest request;
  request.url = url;
  request.bearer = options_.api_key;
  request.timeout_s = 30;
  request.max_body_bytes = kMaxReplyBytes;
  return http_->once(request);
}

// Returns the JSON object at `path` on the server. Returns null if there is none, because not every engine has every
// path.
Json Endpoint::page(const std::string& path) {
  const net::HttpReply reply = get(server_ + path);
  if (reply.status != 200 || !reply.problem.empty()) return nullptr;
  try {
    Json json = parse_json(reply.body, path);
    return json.is_object() ? json : Json();
  } catch (const Error&) {
    return nullptr;
  }
}

Json Endpoint::identity() {
  const std::string where = base_ + "/models";
  const net::HttpReply reply = get(where);
  if (reply.status == 401 || reply.status == 403)
    throw Error(ErrorKind::kUsage,
                where + ": HTTP " + std::to_string(reply.status) + " (--target-key-file names the file with the key)");
  if (reply.status != 200 || !reply.problem.empty())
    throw Error(ErrorKind::kNetwork, where + ": " + problem_of(reply) + ", expected the models that are served");
  Json list;
  try {
    list = parse_json(reply.body, where);
  } catch (const Error& e) {
    throw PageError(e.what());
  }
  const Json* model = nullptr;
  if (list.is_object() && list.contains("data") && list["data"].is_array())
    for (const Json& m : list["data"])
      if (m.is_object() && !text_or_empty(m, "id").empty() && (options_.model.empty() || m["id"] == options_.model)) {
        model = &m;
        break;
      }
  if (!model && !options_.model.empty())
    throw Error(ErrorKind::kUsage, where + ": no model '" + options_.model + "' is served there (--target-model)");
  if (!model) throw PageError(where + ": expected {\"data\": [{\"id\": …}]}");
  options_.model = (*model)["id"].get<std::string>();
  Json id = Json::object();
  for (const char* key : {"id", "owned_by", "created", "root", "parent", "max_model_len"}) take(*model, key, id, key);
  if (const auto own = model->find("specdec"); own != model->end() && own->is_object())
    if (const std::string target = text_or_empty(*own, "target"); is_fingerprint(target)) {
      id[kSpecdecTarget] = target;
      return id;  // the fingerprint alone identifies the target
    }
  if (const Json version = page("/version"); version.is_object()) take(version, "version", id, "version");
  for (const char* path : {"/get_model_info", "/server_info"})
    if (const Json info = page(path); info.is_object())
      for (const char* key : {"model_path", "weight_version"}) take(info, key, id, key);
  if (const Json props = page("/props"); props.is_object()) {
    take(props, "model_path", id, "model_path");
    take(props, "build_info", id, "build_info");
    if (const std::string text =
            props.value("chat_template", Json()).is_string() ? props["chat_template"].get<std::string>() : "";
        !text.empty())
      id["chat_template_sha256"] = sha256_hex(text);
  }
  return id;
}

net::HttpReply Endpoint::ask(const Way& way, const std::string& prompt, int max_tokens, double temperature) {
  Json body = {{"model", options_.model}, {"max_tokens", max_tokens}, {"temperature", temperature}};
  const bool chat = way.route == "chat/completions";
  if (chat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  else
    body["prompt"] = prompt;
  if (way.top > 0 && chat) {
    body["logprobs"] = true;
    body["top_logprobs"] = way.top;
  } else if (way.top > 0) {
    body["logprobs"] = way.top;
  }
  const std::string text = body.dump();
  net::Backoff backoff{.max_attempts = 4, .first_delay_s = 0.5, .max_delay_s = 8, .sleep = options_.sleep};
  net::HttpReply reply = http_->send(
      [&] {
        net::HttpRequest request;
        request.url = base_ + "/" + way.route;
        request.post = &text;
        request.bearer = options_.api_key;
        request.timeout_s = kTimeoutSeconds;
        request.max_body_bytes = kMaxReplyBytes;
        return request;
      },
      backoff);
  if (reply.status == 401 || reply.status == 403)
    throw Error(ErrorKind::kUsage,
                base_ + "/" + way.route + ": HTTP " + std::to_string(reply.status) + " (--target-key-file)");
  return reply;
}

// Requests a completion and returns its first choice. Also stores the reply's system_fingerprint, a hint about the
// served model.
Json Endpoint::answer(const Way& way, const std::string& prompt, int max_tokens, double temperature) {
  const std::string where = base_ + "/" + way.route;
  const net::HttpReply reply = ask(way, prompt, max_tokens, temperature);
  if (reply.status != 200 || !reply.problem.empty()) throw Error(ErrorKind::kNetwork, where + ": " + problem_of(reply));
  Json json;
  try {
    json = parse_json(reply.body, where);
  } catch (const Error& e) {
    throw PageError(e.what());
  }
  if (!json.is_object() || !json.contains("choices") || !json["choices"].is_array() || json["choices"].empty() ||
      !json["choices"][0].is_object())
    throw PageError(where + ": expected {\"choices\": [{…}]}");
  const std::string build = text_or_empty(json, "system_fingerprint"),
                    version = reply.header("openai-version").substr(0, 64);
  if (!build.empty() || !version.empty()) system_fingerprint_ = build + (version.empty() ? "" : " " + version);
  return json["choices"][0];
}

std::optional<Way> Endpoint::find_way() {
  const std::vector<Way> ways = {{"chat/completions", 20}, {"chat/completions", 5}, {"completions", 20},
                                 {"completions", 5},       {"chat/completions", 0}, {"completions", 0}};
  for (const Way& way : ways) {
    const net::HttpReply reply = ask(way, "a", 1, 1);
    if (reply.status >= 400 && reply.status != 408 && reply.status != 429 && reply.status < 502) continue;
    if (reply.status != 200 || !reply.problem.empty())
      throw Error(ErrorKind::kNetwork, base_ + "/" + way.route + ": " + problem_of(reply));
    try {
      if (way.top == 0 || !first_token(way, "a").empty()) return way;
    } catch (const PageError&) {
    }
  }
  return std::nullopt;
}

TopLogprobs Endpoint::first_token(const Way& way, const std::string& prompt) {
  TopLogprobs tokens = top_logprobs(answer(way, prompt, 1, 1), way.top, base_ + "/" + way.route);
  if (tokens.size() < 2) throw PageError(base_ + "/" + way.route + ": the reply holds no log-probabilities");
  return tokens;
}

std::string Endpoint::greedy(const Way& way, const std::string& prompt, int max_tokens) {
  const Json choice = answer(way, prompt, max_tokens, 0);
  std::string text = text_or_empty(choice, "text");
  if (const auto message = choice.find("message"); message != choice.end() && message->is_object())
    text = message->value("content", Json()).is_string() ? (*message)["content"].get<std::string>() : "";
  return text.substr(0, kMaxTextBytes);
}

}  // namespace specdec::monitor
