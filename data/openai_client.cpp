#include "data/openai_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/progress.h"

namespace specdec::data {

namespace {

constexpr double kMaxRetryAfterS = 300;

void global_init() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) throw Error(ErrorKind::kInternal, std::string("libcurl: ") + curl_easy_strerror(code));
}

void stop_check() {
  if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal");
}

void interruptible_sleep(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    stop_check();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

struct Sink {
  std::string body;
  size_t limit = 0;
  bool too_large = false;
};

size_t on_body(char* data, size_t size, size_t count, void* to) {
  auto* sink = static_cast<Sink*>(to);
  if (sink->body.size() + size * count > sink->limit) {
    sink->too_large = true;
    return 0;
  }
  sink->body.append(data, size * count);
  return size * count;
}

int on_progress(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) { return stop_requested() ? 1 : 0; }

bool is_temporary(long status) { return status == 429 || status == 500 || status == 502 || status == 503 || status == 504; }

// "https://host:1/v1": without a trailing slash, with /v1 if the URL had no path.
std::string base_of(const std::string& url) {
  const size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  if (scheme == 0) throw Error(ErrorKind::kUsage, "endpoint: expected an http:// or https:// URL, found '" + url.substr(0, 200) + "'");
  std::string base = url;
  while (base.size() > scheme && base.ends_with('/')) base.pop_back();
  const size_t path = base.find('/', scheme);
  const std::string host = base.substr(scheme, path == std::string::npos ? path : path - scheme);
  if (host.find('@') != std::string::npos) throw Error(ErrorKind::kUsage, "endpoint: put the key into --api-key-file, not into the URL");
  if (host.empty() || url.find_first_of(" \t\r\n?#") != std::string::npos)
    throw Error(ErrorKind::kUsage, "endpoint: expected http(s)://host[:port][/path], found '" + url.substr(0, 200) + "'");
  return path == std::string::npos ? base + "/v1" : base;
}

}  // namespace

struct OpenAiClient::Impl {
  ClientOptions options;
  std::string base;
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
  ~Impl() {
    curl_slist_free_all(headers);
    if (curl) curl_easy_cleanup(curl);
  }
};

OpenAiClient::OpenAiClient(ClientOptions options) : impl_(std::make_unique<Impl>()) {
  global_init();
  impl_->base = base_of(options.url);
  if (options.api_key.find_first_of("\r\n") != std::string::npos) throw Error(ErrorKind::kUsage, "the API key holds a line break");
  impl_->options = std::move(options);
  if (!impl_->options.sleep) impl_->options.sleep = interruptible_sleep;
  impl_->curl = curl_easy_init();
  if (!impl_->curl) throw Error(ErrorKind::kInternal, "libcurl: curl_easy_init failed");
  impl_->headers = curl_slist_append(nullptr, "Content-Type: application/json");
  impl_->headers = curl_slist_append(impl_->headers, "Expect:");  // no round trip of its own before a large prompt
  if (!impl_->options.api_key.empty())
    impl_->headers = curl_slist_append(impl_->headers, ("Authorization: Bearer " + impl_->options.api_key).c_str());
}
OpenAiClient::~OpenAiClient() = default;
OpenAiClient::OpenAiClient(OpenAiClient&&) noexcept = default;

const std::string& OpenAiClient::base_url() const { return impl_->base; }

HttpReply OpenAiClient::get(const std::string& path) { return request(path, nullptr); }

HttpReply OpenAiClient::post(const std::string& path, const Json& body) {
  const std::string text = canonical_json(body);
  return request(path, &text);
}

// One exchange; false: no reply was received, `problem` says why.
bool OpenAiClient::perform(const std::string& url, const std::string* body, HttpReply& reply, std::string& problem) {
  const ClientOptions& o = impl_->options;
  CURL* curl = impl_->curl;
  curl_easy_reset(curl);
  Sink sink{{}, o.max_response_bytes, false};
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, impl_->headers);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(o.connect_timeout_s * 1000));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(o.request_timeout_s * 1000));
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &sink);
  if (body) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body->data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
  }
  const CURLcode code = curl_easy_perform(curl);
  stop_check();
  if (sink.too_large) throw Error(ErrorKind::kNetwork, url + ": the reply is larger than " + std::to_string(o.max_response_bytes) + " bytes");
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
  curl_off_t wait = -1;
  if (curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK && wait > 0) reply.retry_after_s = static_cast<double>(wait);
  reply.body = std::move(sink.body);
  problem = code == CURLE_OK ? "" : curl_easy_strerror(code);
  return code == CURLE_OK;
}

HttpReply OpenAiClient::request(const std::string& path, const std::string* body) {
  const ClientOptions& o = impl_->options;
  const std::string url = impl_->base + path;
  double delay = o.first_delay_s;
  for (int attempt = 1;; ++attempt) {
    stop_check();
    HttpReply reply;
    std::string problem;
    const bool received = perform(url, body, reply, problem);
    if (received && !is_temporary(reply.status)) return reply;
    if (attempt >= o.max_attempts) {
      if (received) return reply;
      throw Error(ErrorKind::kNetwork, url + ": " + problem + " (" + std::to_string(attempt) + " attempts)");
    }
    o.sleep(reply.retry_after_s >= 0 ? std::min(reply.retry_after_s, kMaxRetryAfterS) : delay);
    delay = std::min(2 * delay, o.max_delay_s);
  }
}

HttpReply OpenAiClient::probe(const std::string& absolute_path) {
  const size_t host = impl_->base.find("//") + 2;
  HttpReply reply;
  std::string problem;
  if (!perform(impl_->base.substr(0, impl_->base.find('/', host)) + absolute_path, nullptr, reply, problem)) reply.status = 0;
  return reply;
}

std::string OpenAiClient::first_model() {
  const HttpReply reply = get("/models");
  const std::string where = impl_->base + "/models";
  if (reply.status != 200) throw Error(ErrorKind::kNetwork, where + ": " + describe(reply));
  const Json list = parse_json(reply.body, where);
  const auto data = list.find("data");
  if (data == list.end() || !data->is_array() || data->empty() || !(*data)[0].is_object())
    throw Error(ErrorKind::kData, where + ": data: expected a list with at least one model");
  return json_string((*data)[0], "id", where + ": data[0]", ErrorKind::kData);
}

std::string describe(const HttpReply& reply) {
  std::string text = "HTTP " + std::to_string(reply.status);
  try {
    const Json body = parse_json(reply.body, "");
    const Json& error = body.at("error");
    std::string message = error.is_string() ? error.get<std::string>() : error.at("message").get<std::string>();
    message = message.substr(0, 200);
    for (char& c : message)
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
    text += ": " + message;
  } catch (const std::exception&) {
    // Not an OpenAI error object: the status says what can be said.
  }
  return text;
}

}  // namespace specdec::data
