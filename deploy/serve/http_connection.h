// One connection of HttpServer: a coroutine on its own strand that reads a request, answers it and starts over. Private to
// http.cpp and http_connection.cpp.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "deploy/serve/http.h"

namespace specdec::deploy {

namespace net = boost::asio;

// What all connections share.
struct ConnectionShared {
  ServeLimits limits;
  net::thread_pool* workers = nullptr;
  std::atomic<size_t> open{0};
  std::atomic<bool> closing{false};   // no keep-alive any more
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = net::generic::stream_protocol::socket;

  // `socket` must belong to a strand.
  Connection(Socket socket, HttpHandler& handler, ConnectionShared& shared);
  ~Connection();

  void start();
  void close_if_idle();  // from any thread
  void close_now();      // from any thread

 private:
  enum class After { kNext, kClose };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  net::awaitable<void> run();
  net::awaitable<After> one_request();
  net::awaitable<bool> read_header(Parser& parser);                       // false: answered or closed
  net::awaitable<bool> read_body(Parser& parser);
  net::awaitable<After> answer(std::shared_ptr<Exchange> exchange);
  net::awaitable<void> write_reply(HttpReply reply, bool close);
  net::awaitable<bool> write_stream_head();
  net::awaitable<bool> write_data(std::string data, bool last);
  net::awaitable<void> refuse(ApiError error);                            // error reply, then close
  net::awaitable<void> linger();
  net::awaitable<void> watch(uint64_t epoch);

  void fill_head(const Parser& parser);
  void arm(double seconds);
  void disarm();
  bool keep_alive() const { return keep_alive_ && !shared_.closing.load(); }

  Socket socket_;
  HttpHandler& handler_;
  ConnectionShared& shared_;
  net::steady_timer deadline_;      // of the socket operation that runs
  net::steady_timer wake_;          // of the exchange; cancelled by its wake function
  uint64_t deadline_epoch_ = 0, watch_epoch_ = 0;
  bool timed_out_ = false, gone_ = false, closed_ = false, idle_ = false, first_ = true;
  boost::beast::flat_buffer buffer_;
  HttpRequest request_;
  unsigned version_ = 11;
  bool keep_alive_ = false;
};

}  // namespace specdec::deploy
