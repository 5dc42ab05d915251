#include "deploy/serve/http/byte_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "base/log.h"

namespace specdec::deploy {

using boost::system::error_code;

namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

bool speaks_http(unsigned long error) {
  const int reason = ERR_GET_REASON(error);
  return ERR_GET_LIB(error) == ERR_LIB_SSL && (reason == SSL_R_HTTP_REQUEST || reason == SSL_R_HTTPS_PROXY_REQUEST);
}

}  // namespace

// Returns whether OpenSSL may be called; must be checked before each call. OpenSSL keeps the descriptor's number, which
// may belong to another connection soon after close().
bool ByteStream::may_use_session(error_code& ec) const {
  if (!ec && (failed_ || !socket_.is_open())) ec = net::error::bad_descriptor;
  return !ec;
}

// Waits until the socket is ready, so that an OpenSSL call can be repeated; `wanted` is the result of SSL_get_error().
// Sets `ec` if the session is over.
net::awaitable<void> ByteStream::wait_for(int wanted, error_code& ec) {
  if (wanted == SSL_ERROR_WANT_READ) {
    co_await socket_.async_wait(Socket::wait_read, net::redirect_error(net::use_awaitable, ec));
  } else if (wanted == SSL_ERROR_WANT_WRITE) {
    co_await socket_.async_wait(Socket::wait_write, net::redirect_error(net::use_awaitable, ec));
  } else {
    failed_ = wanted != SSL_ERROR_ZERO_RETURN;
    ec = net::error::eof;
  }
}

net::awaitable<ByteStream::Handshake> ByteStream::handshake() {
  error_code ec;
  socket_.native_non_blocking(true, ec);
  if (!ec) session_ = identity_->session(socket_.native_handle());
  while (may_use_session(ec)) {
    ERR_clear_error();
    const int done = SSL_do_handshake(session_.get());
    if (done == 1) co_return Handshake::kDone;
    const int wanted = SSL_get_error(session_.get(), done);
    const unsigned long error = ERR_peek_error();
    co_await wait_for(wanted, ec);
    if (!failed_) continue;
    if (speaks_http(error)) {
      session_.reset();
      co_return Handshake::kPlainHttp;
    }
    const char* const reason = ERR_reason_error_string(error);
    log(LogLevel::kDebug, std::string("a TLS handshake failed: ") + (reason ? reason : "the client is gone"));
  }
  failed_ = true;
  co_return Handshake::kFailed;
}

net::awaitable<size_t> ByteStream::read_some(net::mutable_buffer room, error_code& ec) {
  if (!session_) {
    const size_t bytes = co_await socket_.async_read_some(room, net::redirect_error(net::use_awaitable, ec));
    co_return bytes;
  }
  while (may_use_session(ec)) {
    ERR_clear_error();
    size_t bytes = 0;
    const int done = SSL_read_ex(session_.get(), room.data(), room.size(), &bytes);
    if (done == 1) {
      co_await net::post(socket_.get_executor(),
                         net::use_awaitable);  // lets other connections and the timers run
      co_return bytes;
    }
    const int wanted = SSL_get_error(session_.get(), done);
    co_await wait_for(wanted, ec);
  }
  co_return 0;
}

net::awaitable<void> ByteStream::write_records(std::string_view bytes, error_code& ec) {
  while (!bytes.empty() && may_use_session(ec)) {
    ERR_clear_error();
    size_t written = 0;
    const int done = SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &written);
    if (done == 1) {
      bytes.remove_prefix(written);
      if (!bytes.empty()) co_await net::post(socket_.get_executor(), net::use_awaitable);
    } else {
      const int wanted = SSL_get_error(session_.get(), done);
      co_await wait_for(wanted, ec);
    }
  }
}

net::awaitable<void> ByteStream::write(std::string_view head, std::string_view body, error_code& ec) {
  if (!session_) {
    const std::array<net::const_buffer, 2> both{net::buffer(head.data(), head.size()),
                                                net::buffer(body.data(), body.size())};
    co_await net::async_write(socket_, both, net::redirect_error(net::use_awaitable, ec));
    co_return;
  }
  // The beginning of the body is sent together with the head, so that a short reply is a single TLS record.
  std::string first(head);
  const size_t added = std::min(body.size(), kRecordBytes - first.size() % kRecordBytes);
  first.append(body.substr(0, added));
  co_await write_records(first, ec);
  co_await write_records(body.substr(added), ec);
}

net::awaitable<void> ByteStream::wait(error_code& ec) {
  co_await socket_.async_wait(Socket::wait_read, net::redirect_error(net::use_awaitable, ec));
}

ByteStream::Waiting ByteStream::waiting() {
  char byte = 0;
  if (!session_) {
    const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return Waiting::kBytes;
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? Waiting::kNothing : Waiting::kEnd;
  }
  error_code ec;
  if (!may_use_session(ec)) return Waiting::kEnd;
  ERR_clear_error();
  size_t bytes = 0;
  const int done = SSL_peek_ex(session_.get(), &byte, 1, &bytes);
  if (done == 1) return Waiting::kBytes;
  const int wanted = SSL_get_error(session_.get(), done);
  if (wanted == SSL_ERROR_WANT_READ || wanted == SSL_ERROR_WANT_WRITE) return Waiting::kNothing;
  failed_ = wanted != SSL_ERROR_ZERO_RETURN;
  return Waiting::kEnd;
}

net::awaitable<size_t> ByteStream::discard_some(net::mutable_buffer room, error_code& ec) {
  const size_t bytes = co_await socket_.async_read_some(room, net::redirect_error(net::use_awaitable, ec));
  co_return bytes;
}

void ByteStream::cancel() {
  error_code ignored;
  socket_.cancel(ignored);
}

void ByteStream::finish_sending() {
  error_code ec, ignored;
  if (session_ && may_use_session(ec) && SSL_is_init_finished(session_.get()) == 1) {
    ERR_clear_error();
    // The close_notify alert usually fits into the socket's buffer. If it does not, the client is not reading, and the
    // alert is lost.
    (void)SSL_shutdown(session_.get());
  }
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void ByteStream::close() {
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace specdec::deploy
