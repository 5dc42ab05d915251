// Defines every refusal of the server, as an OpenAI error object: {"error":{"message","type","param","code"}}. All
// texts are fixed and written only in this module, apart from the names of the served models. So no exception text,
// path or address can reach a client of the public listener.
#pragma once

#include <string>
#include <vector>

namespace specdec::deploy {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // "" = null in the JSON
  std::string param;  // "" = null in the JSON
  std::string message;
  int retry_after_seconds = 0;  // 0 = no Retry-After header
};

ApiError invalid_parameter(const std::string& param, const std::string& expected);  // 400
ApiError unsupported_parameter(const std::string& param);                           // 400: not supported by this server
ApiError no_token_left();      // 400: the request's rules forbid every token
ApiError masks_spent();        // 400: the request's grammar takes too much time or memory
ApiError invalid_body();       // 400: the body is not one JSON object
ApiError malformed_request();  // 400: the request is not HTTP
ApiError https_expected();     // 400: the request is plain HTTP on a TLS port
ApiError invalid_api_key();    // 401
ApiError foreign_host();       // 403: no key is required, but Host or Origin names another host
ApiError unknown_route();      // 404
ApiError unknown_model(const std::vector<std::string>& served);  // 404 model_not_found, names the served models
ApiError wrong_method();                                         // 405
ApiError request_timeout();                                      // 408
ApiError body_too_large();                                       // 413
ApiError unsupported_media_type();                               // 415
ApiError unmet_expectation();                                    // 417
ApiError headers_too_large();                                    // 431
ApiError queue_full(int retry_after_seconds = 1);                // 429: the whole queue is full
ApiError tenant_queue_full(int retry_after_seconds);             // 429: too many requests of this tenant are waiting
ApiError too_many_bytes(int retry_after_seconds = 1);            // 429: unanswered requests use too much memory
ApiError internal_error();                                       // 500
ApiError unsupported_transfer_coding();                          // 501
ApiError loading();                                              // 503
ApiError draining();                                             // 503
ApiError no_room();                                              // 503: the KV cache is too small even for one request
// bad_order() and draft_refused() are used only on the admin listener. Its clients are the server's operators, so the
// message may contain the text of an exception.
ApiError bad_order(const std::string& what);      // 400
ApiError draft_refused(const std::string& what);  // 409
ApiError too_many_connections();                  // 503
ApiError unsupported_http_version();              // 505

// Returns the JSON body of the reply. The message ends with request_id, so that a user's report can be matched with the
// log.
std::string error_body(const ApiError& error, const std::string& request_id);

}  // namespace specdec::deploy
