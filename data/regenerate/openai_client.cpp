#include "data/regenerate/openai_client.h"

namespace specdec::data {

OpenAiClient::OpenAiClient(ClientOptions options)
    : options_(std::move(options)), base_(net::base_url(options_.url, "endpoint", "--api-key-file")) {
  if (base_.find('/', base_.find("//") + 2) == std::string::npos) base_ += "/v1";
}

net::HttpRequest OpenAiClient::request(const std::string& url, const std::string* post) const {
  net::HttpRequest request;
  request.url = url;
  request.post = post;
  request.bearer = options_.api_key;
  request.timeout_s = options_.request_timeout_s;
  request.max_body_bytes = options_.max_response_bytes;
  return request;
}

HttpReply OpenAiClient::send(const std::string& path, const std::string* post) {
  HttpReply reply = http_.send([&] { return request(base_ + path, post); }, options_.backoff);
  if (!reply.problem.empty())
    throw Error(ErrorKind::kNetwork,
                base_ + path + ": " + reply.problem + " (" + std::to_string(reply.attempts) + " attempts)");
  return reply;
}

HttpReply OpenAiClient::get(const std::string& path) { return send(path, nullptr); }

HttpReply OpenAiClient::post(const std::string& path, const Json& body) {
  const std::string text = canonical_json(body);
  return send(path, &text);
}

HttpReply OpenAiClient::probe(const std::string& absolute_path) {
  HttpReply reply = http_.once(request(base_.substr(0, base_.find('/', base_.find("//") + 2)) + absolute_path));
  if (!reply.problem.empty()) reply.status = 0;
  return reply;
}

std::string OpenAiClient::first_model() {
  const HttpReply reply = get("/models");
  const std::string where = base_ + "/models";
  if (reply.status == 401 || reply.status == 403)
    throw Error(ErrorKind::kUsage,
                where + ": " + describe(reply) + ": expected a key that it takes (--api-key-file or OPENAI_API_KEY)");
  if (reply.status == 404)
    throw Error(ErrorKind::kUsage, where + ": " + describe(reply) +
                                       ": expected the base of an OpenAI interface, such as http://host:8000/v1");
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
    // The body is not an OpenAI error object, so the status is all there is to report.
  }
  return text;
}

}  // namespace specdec::data
