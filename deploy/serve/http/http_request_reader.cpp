#include "deploy/serve/http/http_request_reader.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>
#include <utility>
#include <vector>

namespace specdec::deploy {

namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kLastChunk = 5;  // bytes of the shortest last chunk: "0", CRLF, CRLF

bool is_token_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Path and query of a request target. A target in absolute form also has an authority, which replaces the Host header.
struct Target {
  std::string_view origin_form, authority;
};

Target parse_target(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos || target.front() == '/') return {target, {}};
  const std::string_view rest = target.substr(scheme + 3);
  const size_t end = rest.find_first_of("/?");
  if (end == std::string_view::npos) return {"/", rest};
  return {rest[end] == '/' ? rest.substr(end) : std::string_view("/"), rest.substr(0, end)};
}

// Decodes %XX in a path (RFC 3986 2.1). Returns none if a % is not followed by two hex digits, or if a control
// character results.
std::optional<std::string> decoded_path(std::string_view path) {
  std::string out;
  for (size_t at = 0; at < path.size(); ++at) {
    if (path[at] != '%') {
      out += path[at];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view digits = path.substr(at + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    const bool whole = digits.size() == 2 && error == std::errc() && end == digits.data() + 2;
    if (!whole || byte < 0x20 || byte == 0x7F) return std::nullopt;
    out += static_cast<char>(byte);
    at += 2;
  }
  return out;
}

// Checks RFC 9112 6.1 and 6.3: a body must have exactly one Content-Length, or `chunked` as its only transfer coding.
std::optional<ApiError> judge_framing(const http::fields& fields, unsigned version) {
  const size_t lengths = fields.count(http::field::content_length);
  const auto [first, last] = fields.equal_range(http::field::transfer_encoding);
  if (first == last) {
    if (lengths == 0) return std::nullopt;
    const std::string_view length = view(fields[http::field::content_length]);
    const bool plain = lengths == 1 && length.find_first_not_of("0123456789") == std::string_view::npos;
    return plain ? std::nullopt : std::optional(malformed_request());
  }
  if (lengths > 0 || version < 11) return malformed_request();
  std::vector<std::string_view> codings;
  for (auto field = first; field != last; ++field) {
    const std::string_view value = view(field->value());
    for (size_t at = 0; at <= value.size();) {
      const size_t comma = std::min(value.find(',', at), value.size());
      codings.push_back(trim(value.substr(at, comma - at)));
      at = comma + 1;
    }
  }
  const auto chunked = std::count_if(codings.begin(), codings.end(),
                                     [](std::string_view c) { return boost::beast::iequals("chunked", c); });
  if (chunked != 1 || !boost::beast::iequals("chunked", codings.back())) return malformed_request();
  return codings.size() == 1 ? std::nullopt : std::optional(unsupported_transfer_coding());
}

ApiError error_of(const error_code& ec) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return headers_too_large();
  if (ec == http::error::body_limit) return body_too_large();
  if (ec == http::error::bad_version) return unsupported_http_version();
  return malformed_request();
}

}  // namespace

RequestReader::RequestReader(const ServeLimits& limits) : limits_(limits) { next(); }

void RequestReader::next() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(limits_.header_bytes));
  parser_->body_limit(limits_.body_bytes);
  searched_ = 0;
  skipped_ = false;
  head_ = {};
}

boost::asio::mutable_buffer RequestReader::prepare() { return buffer_.prepare(kReadBytes); }

RequestReader::State RequestReader::fail(ApiError fault) {
  fault_ = std::move(fault);
  return State::kFaulty;
}

RequestReader::State RequestReader::fail(const error_code& ec) { return fail(error_of(ec)); }

std::string_view RequestReader::there() const {
  return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
}

bool RequestReader::waits() {
  // Some clients send an empty line after a body, so one empty line is skipped before a request (RFC 9112 2.2).
  if (!skipped_ && there().starts_with("\r\n")) {
    skipped_ = true;
    buffer_.consume(2);
  }
  return empty() || (!skipped_ && there() == "\r");
}

RequestReader::State RequestReader::read_head() {
  if (waits()) return State::kHead;
  const std::string_view there = this->there();
  // A first byte that cannot begin a method usually means another protocol, whose head may never end.
  if (!is_token_character(there.front())) return fail(malformed_request());
  const size_t end = there.find("\r\n\r\n", searched_);
  if (end == std::string_view::npos) {
    searched_ = there.size() - std::min<size_t>(3, there.size());
    return there.size() >= limits_.header_bytes ? fail(headers_too_large()) : State::kHead;
  }
  const std::string_view raw = there.substr(0, end + 4);
  if (raw.size() > limits_.header_bytes) return fail(headers_too_large());
  error_code ec;
  parser_->eager(false);
  size_t used = parser_->put(boost::asio::const_buffer(raw.data(), raw.size()), ec);
  if (ec) return fail(ec);
  if (!parser_->is_header_done() || used != raw.size()) return fail(malformed_request());
  if (auto fault = judge(raw)) return fail(std::move(*fault));
  if (!fill_head()) return fail(malformed_request());
  buffer_.consume(used);
  return head_.has_body ? State::kBody : State::kWhole;
}

std::optional<ApiError> RequestReader::judge(std::string_view raw) const {
  const auto& message = parser_->get();
  const auto fields = static_cast<size_t>(std::distance(message.begin(), message.end()));
  // Beast's limit of fields does not count all header lines, so they are counted here.
  if (fields > limits_.header_fields) return headers_too_large();
  // A folded header line is refused, because servers and proxies interpret it differently (RFC 9112 5.2).
  if (raw.find("\r\n ") != std::string_view::npos || raw.find("\r\n\t") != std::string_view::npos)
    return malformed_request();
  // RFC 9112 3.2 requires exactly one Host header in HTTP/1.1.
  if (message.count(http::field::host) != 1 && (message.version() == 11 || message.count(http::field::host) > 1))
    return malformed_request();
  // With two Authorization headers, a proxy may have checked another key than this server would.
  if (message.count(http::field::authorization) > 1) return malformed_request();
  return judge_framing(message.base(), message.version());
}

// Fills in head_ from the parsed headers. Returns false if the path is malformed.
bool RequestReader::fill_head() {
  const auto& message = parser_->get();
  const Target target = parse_target(view(message.target()));
  head_.version = message.version();
  head_.keep_alive = message.keep_alive();
  head_.method = std::string(message.method_string());
  if (!target.origin_form.starts_with('/') && target.origin_form != "*") return false;
  const size_t question = target.origin_form.find('?');
  std::optional<std::string> path = decoded_path(target.origin_form.substr(0, question));
  if (!path) return false;
  head_.path = std::move(*path);
  if (question != std::string_view::npos) head_.query = std::string(target.origin_form.substr(question + 1));
  head_.host = std::string(target.authority.empty() ? view(message[http::field::host]) : target.authority);
  head_.origin = std::string(message[http::field::origin]);
  head_.authorization = std::string(message[http::field::authorization]);
  head_.content_type = std::string(message[http::field::content_type]);
  head_.content_encoding = std::string(message[http::field::content_encoding]);
  head_.expect = std::string(message[http::field::expect]);
  head_.preflight_method = std::string(message[http::field::access_control_request_method]);
  head_.has_body = !parser_->is_done();
  return true;
}

RequestReader::State RequestReader::read_body() {
  // Beast's parser fails an assertion, which ends the process, if it is called again with the same incomplete last
  // chunk. So the parser of a chunked body never gets fewer bytes than a whole last chunk; fewer cannot end the body
  // anyway.
  const size_t least = parser_->chunked() ? kLastChunk : 1;
  parser_->eager(true);
  while (buffer_.size() >= least && !parser_->is_done()) {
    error_code ec;
    const size_t used = parser_->put(buffer_.data(), ec);
    buffer_.consume(used);
    if (ec && ec != http::error::need_more) return fail(ec);
    if (ec || used == 0) break;
  }
  if (parser_->is_done()) return State::kWhole;
  // The bytes left are an incomplete line of a chunk's size or of a trailer.
  return buffer_.size() > limits_.header_bytes ? fail(headers_too_large()) : State::kBody;
}

}  // namespace specdec::deploy
