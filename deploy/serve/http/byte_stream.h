// The bytes of one connection, plain or through TLS. All calls are made on the strand of the socket, and nothing
// blocks. With TLS, OpenSSL reads and writes the socket itself: each of its calls is repeated when the socket is ready
// for it.
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
    kPlainHttp,  // the client sent a plain HTTP request: what is written from now on is plain, too
  };
  enum class Waiting { kBytes, kNothing, kEnd };

  // `socket` must belong to a strand. Without an identity the bytes are plain.
  ByteStream(Socket socket, const TlsIdentity* identity) : socket_(std::move(socket)), identity_(identity) {}

  auto executor() { return socket_.get_executor(); }
  bool has_tls() const { return identity_ != nullptr; }

  net::awaitable<Handshake> handshake();  // with TLS, to be called first
  net::awaitable<size_t> read_some(net::mutable_buffer room, boost::system::error_code& ec);
  // Writes both texts, one after the other.
  net::awaitable<void> write(std::string_view head, std::string_view body, boost::system::error_code& ec);
  // Waits until bytes, or the end, can be read from the socket. waiting() then says what is there; it takes no bytes
  // away.
  net::awaitable<void> wait(boost::system::error_code& ec);
  Waiting waiting();
  // Reads bytes that nobody wants from the socket, as they are.
  net::awaitable<size_t> discard_some(net::mutable_buffer room, boost::system::error_code& ec);

  void cancel();          // ends the calls that wait, with operation_aborted
  void finish_sending();  // says that no more bytes follow
  void close();

 private:
  bool may_use_session(boost::system::error_code& ec) const;
  net::awaitable<void> wait_for(int wanted, boost::system::error_code& ec);
  net::awaitable<void> write_records(std::string_view bytes, boost::system::error_code& ec);

  Socket socket_;
  const TlsIdentity* identity_;
  TlsSession session_;   // null: the bytes are plain
  bool failed_ = false;  // after an error OpenSSL allows no further call, not even the farewell
};

}  // namespace specdec::deploy
