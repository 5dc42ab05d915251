#include "deploy/serve/request/api_error.h"

#include "base/json.h"

namespace specdec::deploy {

namespace {

ApiError make(int status, const char* type, const char* code, const char* message, int retry_after_seconds = 0) {
  ApiError error;
  error.status = status;
  error.type = type;
  error.code = code;
  error.message = message;
  error.retry_after_seconds = retry_after_seconds;
  return error;
}

constexpr char kInvalid[] = "invalid_request_error";
constexpr char kServer[] = "server_error";

}  // namespace

ApiError invalid_parameter(const std::string& param, const std::string& expected) {
  ApiError error = make(400, kInvalid, "invalid_value", "");
  error.param = param;
  error.message = "Invalid '" + param + "': expected " + expected + ".";
  return error;
}

ApiError unsupported_parameter(const std::string& param) {
  ApiError error = make(400, kInvalid, "unsupported_parameter", "");
  error.param = param;
  error.message = "'" + param + "' is not supported by this server: leave it out or give its default.";
  return error;
}

ApiError bad_order(const std::string& what) { return make(400, kInvalid, "invalid_order", what.c_str()); }
ApiError draft_refused(const std::string& what) { return make(409, kInvalid, "draft_refused", what.c_str()); }

ApiError no_token_left() {
  return make(400, kInvalid, "no_token_left",
              "The request's grammar, bad_words, allowed_token_ids, min_tokens or logit_bias leave no token that may "
              "come next: relax them.");
}

ApiError masks_spent() {
  return make(400, kInvalid, "grammar_too_costly",
              "The request's grammar takes too much time or memory while the answer is generated: simplify it.");
}

ApiError invalid_body() {
  return make(400, kInvalid, "invalid_json",
              "The body must be one JSON object in UTF-8: no duplicate keys, bounded depth and number of items.");
}
ApiError malformed_request() { return make(400, kInvalid, "malformed_request", "The HTTP request is malformed."); }
ApiError https_expected() {
  return make(400, kInvalid, "https_expected", "This port speaks TLS: write https:// instead of http://.");
}
ApiError invalid_api_key() {
  return make(401, kInvalid, "invalid_api_key", "Missing or wrong API key: send 'Authorization: Bearer KEY'.");
}
ApiError foreign_host() {
  return make(403, kInvalid, "foreign_host",
              "This server asks for no API key, so it answers only under its own names (localhost, 127.0.0.1, [::1]): "
              "use one of them, "
              "or start it with --allowed-host NAME or --api-key-file FILE.");
}
ApiError unknown_route() {
  return make(
      404, kInvalid, "unknown_url",
      "Unknown route; the routes are /v1/models, /v1/chat/completions, /v1/completions, /tokenize, /detokenize, "
      "/health, /ready, /ping, /version, /openapi.json, /metrics, /gate, /dashboard.");
}
ApiError unknown_model(const std::vector<std::string>& served) {
  std::string names;
  for (const std::string& name : served) names += (names.empty() ? "'" : ", '") + name + "'";
  ApiError error = make(404, kInvalid, "model_not_found", "No model of this name is served here; served: ");
  error.message += names + ".";
  error.param = "model";
  return error;
}
ApiError wrong_method() {
  return make(405, kInvalid, "method_not_allowed", "This route does not support this method: see the Allow header.");
}
ApiError request_timeout() { return make(408, kInvalid, "request_timeout", "The request took too long."); }
ApiError body_too_large() {
  return make(413, kInvalid, "body_too_large", "The request body is larger than this server accepts.");
}
ApiError unsupported_media_type() {
  return make(415, kInvalid, "unsupported_media_type",
              "The body must be 'Content-Type: application/json' without Content-Encoding.");
}
ApiError unmet_expectation() {
  return make(417, kInvalid, "expectation_failed", "Only 'Expect: 100-continue' is supported.");
}
ApiError headers_too_large() {
  return make(431, kInvalid, "headers_too_large", "The request line and headers are larger than this server accepts.");
}
ApiError queue_full(int retry_after_seconds) {
  return make(429, "rate_limit_error", "queue_full", "Too many requests are waiting: try again later.",
              retry_after_seconds);
}
ApiError tenant_queue_full(int retry_after_seconds) {
  return make(429, "rate_limit_error", "tenant_queue_full",
              "Too many requests of this API key are waiting: try again later.", retry_after_seconds);
}
ApiError too_many_bytes(int retry_after_seconds) {
  return make(429, "rate_limit_error", "too_many_bytes",
              "The requests that are being answered hold too many bytes: try again later.", retry_after_seconds);
}
ApiError unsupported_transfer_coding() {
  return make(501, kInvalid, "unsupported_transfer_coding",
              "'Transfer-Encoding: chunked' is the only transfer coding that this server supports.");
}
ApiError internal_error() { return make(500, kServer, "internal_error", "The server failed on this request."); }
ApiError loading() { return make(503, kServer, "loading", "The model is being loaded: try again later.", 5); }
ApiError no_room() {
  return make(503, kServer, "no_room",
              "The server's KV cache cannot hold this request even alone: ask for fewer tokens.");
}
ApiError draining() { return make(503, kServer, "draining", "The server is shutting down: try another one.", 5); }
ApiError too_many_connections() {
  return make(503, kServer, "too_many_connections", "Too many connections are open: try again later.", 1);
}
ApiError unsupported_http_version() {
  return make(505, kInvalid, "unsupported_http_version", "This server supports only HTTP/1.0 and HTTP/1.1.");
}

std::string error_body(const ApiError& error, const std::string& request_id) {
  const Json body = {{"error",
                      {{"message", error.message + (request_id.empty() ? "" : " (request " + request_id + ")")},
                       {"type", error.type},
                       {"param", error.param.empty() ? Json() : Json(error.param)},
                       {"code", error.code.empty() ? Json() : Json(error.code)}}}};
  return body.dump();
}

}  // namespace specdec::deploy
