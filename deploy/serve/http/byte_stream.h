// The byte stream of one connection, plain or through TLS. All calls are made on the socket's strand, and none blocks.
// With TLS, OpenSSL itself reads and writes the socket; if the socket is not ready, the OpenSSL call is repeated later.
#pragma once

#include <boost/asio.hpp>
#include <string_view>
#include <utility>

#include "deploy/serve/http/tls.h"

namespace specdec::deploy {

namespace net = boost::asio;

class ByteStream {
 public:
  using Socket = net::generic::stream_protocol::socket;
  enum class Handshake {
    kDone,
    kFailed,
    kPlainHttp,  // the client sent plain HTTP: later writes are not encrypted, so that it can read the error
  };
  enum class Waiting { kBytes, kNothing, kEnd };

  // `socket` must belong to a strand. Without an identity the stream is not encrypted.
  ByteStream(Socket socket, const TlsIdentity* identity) : socket_(std::move(socket)), identity_(identity) {}

  auto executor() { return socket_.get_executor(); }
  bool has_tls() const { return identity_ != nullptr; }

  net::awaitable<Handshake> handshake();  // with TLS, must be called first
  net::awaitable<size_t> read_some(net::mutable_buffer room, boost::system::error_code& ec);
  // Writes `head`, then `body`.
  net::awaitable<void> write(std::string_view head, std::string_view body, boost::system::error_code& ec);
  // Waits until the socket has bytes to read or has ended. Consumes no bytes; waiting() says which of the two it is.
  net::awaitable<void> wait(boost::system::error_code& ec);
  Waiting waiting();
  // Reads raw bytes, not decrypted, from the socket. The caller discards them.
  net::awaitable<size_t> discard_some(net::mutable_buffer room, boost::system::error_code& ec);

  void cancel();          // pending calls end with operation_aborted
  void finish_sending();  // ends the sending direction of the connection
  void close();

 private:
  bool may_use_session(boost::system::error_code& ec) const;
  net::awaitable<void> wait_for(int wanted, boost::system::error_code& ec);
  net::awaitable<void> write_records(std::string_view bytes, boost::system::error_code& ec);

  Socket socket_;
  const TlsIdentity* identity_;
  TlsSession session_;   // null: the stream is not encrypted
  bool failed_ = false;  // after an error OpenSSL allows no further call, not even SSL_shutdown()
};

}  // namespace specdec::deploy
