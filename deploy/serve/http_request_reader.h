// Bytes of a connection → requests, by RFC 9112. The one place that decides where a request ends and the next one
// begins; what could be read in two ways is refused. It knows no socket: the connection gives it what has come,
// tests/fuzz gives it anything.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "deploy/serve/api_error.h"
#include "deploy/serve/http.h"
#include "deploy/serve/limits.h"

namespace specdec::deploy {

class RequestReader {
 public:
  enum class State {
    kHead,    // the head is not all there
    kBody,    // the head is, the body is not
    kWhole,   // one request is there
    kFaulty,  // fault() says why; nothing behind it is a request
  };

  explicit RequestReader(const ServeLimits& limits);

  // Room for what comes off the wire, and how much of it has come. Not when kFaulty.
  boost::asio::mutable_buffer prepare();
  void commit(size_t bytes) { buffer_.commit(bytes); }
  bool empty() const { return buffer_.size() == 0; }  // nothing is there that was not read

  // Reads on in what is there. read_head() stops behind the head, so that it can be judged first; read_body() comes
  // after kBody.
  State read_head();
  State read_body();
  const RequestHead& head() const { return head_; }
  size_t body_bytes() const { return parser_->get().body().size(); }  // so far
  std::string take_body() { return std::move(parser_->get().body()); }
  const ApiError& fault() const { return fault_; }
  // Behind kWhole: the next request.
  void next();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  State fail(ApiError fault);
  State fail(const boost::system::error_code& ec);
  std::optional<ApiError> judge(std::string_view raw) const;
  void fill_head();

  const ServeLimits& limits_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  size_t searched_ = 0;  // bytes of the buffer that hold no end of a head
  RequestHead head_;
  ApiError fault_;
};

}  // namespace specdec::deploy
