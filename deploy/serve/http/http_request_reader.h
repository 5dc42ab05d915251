// Parses the bytes of a connection into requests, by RFC 9112. Only this class decides where a request ends and the
// next request begins. It refuses every request that could be interpreted in two ways. It has no socket: the caller (a
// connection or tests/fuzz) gives it the bytes.
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
    kHead,    // the head is incomplete
    kBody,    // the head is complete, the body is incomplete
    kWhole,   // the request is complete
    kFaulty,  // the request is malformed, see fault(); all later bytes are ignored
  };

  explicit RequestReader(const ServeLimits& limits);

  // Returns a buffer for bytes from the socket. The caller then tells commit() how many bytes it wrote to the buffer.
  // Must not be called after kFaulty.
  boost::asio::mutable_buffer prepare();
  void commit(size_t bytes) { buffer_.commit(bytes); }
  bool empty() const { return buffer_.size() == 0; }  // whether all bytes were consumed
  // Skips one empty line before a request. Returns whether no byte of the request has arrived.
  bool waits();

  // Parse the bytes that have arrived. read_head() stops after the head, so that it can be checked before the body is
  // read. read_body() may be called again after it returned kBody.
  State read_head();
  State read_body();
  const RequestHead& head() const { return head_; }
  size_t body_bytes() const { return parser_->get().body().size(); }  // number of body bytes received so far
  std::string take_body() { return std::move(parser_->get().body()); }
  const ApiError& fault() const { return fault_; }
  // Starts the next request. Must be called after kWhole.
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
  bool skipped_ = false;  // true: the empty line before this request was skipped
  size_t searched_ = 0;   // bytes of the buffer that were searched for the end of the head
  RequestHead head_;
  ApiError fault_;
};

}  // namespace specdec::deploy
