// Parses the bytes of a connection into requests, by RFC 9112. Only this class decides where a request ends and the
// next one begins, and it refuses every request that could be read in two ways. It uses no socket: the connection, or
// tests/fuzz, gives it bytes.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "deploy/serve/http/http.h"
#include "deploy/serve/request/api_error.h"
#include "deploy/serve/request/limits.h"

namespace specdec::deploy {

class RequestReader {
 public:
  enum class State {
    kHead,    // the head is not complete
    kBody,    // the head is complete, the body is not
    kWhole,   // one request is complete
    kFaulty,  // fault() says why; no later bytes are read as a request
  };

  explicit RequestReader(const ServeLimits& limits);

  // Returns a buffer for bytes from the socket; commit() then says how many arrived. Must not be called when kFaulty.
  boost::asio::mutable_buffer prepare();
  void commit(size_t bytes) { buffer_.commit(bytes); }
  bool empty() const { return buffer_.size() == 0; }  // no unread bytes are left
  // Skips an empty line before a request, once. Returns whether nothing of the request has arrived.
  bool waits();

  // Parse the bytes that have arrived. read_head() stops after the head, so that it can be checked before the body.
  // read_body() may be called after kBody.
  State read_head();
  State read_body();
  const RequestHead& head() const { return head_; }
  size_t body_bytes() const { return parser_->get().body().size(); }  // so far
  std::string take_body() { return std::move(parser_->get().body()); }
  const ApiError& fault() const { return fault_; }
  // Starts the next request, after kWhole.
  void next();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  std::string_view there() const;  // the unread bytes
  State fail(ApiError fault);
  State fail(const boost::system::error_code& ec);
  std::optional<ApiError> judge(std::string_view raw) const;
  bool fill_head();

  const ServeLimits& limits_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  bool skipped_ = false;  // true: an empty line before this request was skipped
  size_t searched_ = 0;   // bytes of the buffer in which no end of a head was found
  RequestHead head_;
  ApiError fault_;
};

}  // namespace specdec::deploy
