// One connection of HttpServer: a coroutine on its own strand that reads a request, answers it and repeats. Included
// only by http.cpp and http_connection.cpp.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "deploy/serve/http/byte_stream.h"
#include "deploy/serve/http/connection_table.h"
#include "deploy/serve/http/fair_workers.h"
#include "deploy/serve/http/http.h"
#include "deploy/serve/http/http_request_reader.h"

namespace specdec::deploy {

// State that all connections share.
struct ConnectionShared {
  ServeLimits limits;
  FairWorkers* workers = nullptr;
  std::atomic<bool> closing{false};  // true: each connection closes after its current reply
};

class Connection final : public Seated, public std::enable_shared_from_this<Connection> {
 public:
  Connection(ByteStream stream, std::string peer, HttpHandler& handler, ConnectionShared& shared);

  Seat seat() const override;
  void give_way() override;
  void start();
  void close_if_idle();  // may be called from any thread
  void close_now();      // may be called from any thread

 private:
  enum class After { kNext, kClose };
  using Phase = Seat::Phase;

  net::awaitable<void> run();
  net::awaitable<bool> shake_hands();  // false: the handshake failed or timed out, or the client sent plain HTTP
  net::awaitable<After> one_request();
  net::awaitable<bool> read_some();  // false: time-out, error or end of the connection
  net::awaitable<bool> read_head();  // false: the request was refused or the connection is closed
  net::awaitable<bool> read_body();
  net::awaitable<std::shared_ptr<Exchange>> respond();
  net::awaitable<After> answer(std::shared_ptr<Exchange> exchange);
  net::awaitable<void> write_reply(HttpReply reply, bool close);
  net::awaitable<bool> write_stream_head();
  net::awaitable<bool> write_data(std::string data, bool last);
  net::awaitable<void> refuse(ApiError error);  // sends an error reply, then closes
  net::awaitable<void> linger();
  net::awaitable<void> watch(uint64_t epoch);

  void enter(Phase phase);
  void arm(double seconds);
  void await_deadline(uint64_t epoch);
  void disarm();
  bool keep_alive() const { return keep_alive_ && !leaves_ && !shared_.closing.load(); }

  ByteStream stream_;
  const std::string peer_;
  HttpHandler& handler_;
  ConnectionShared& shared_;
  net::steady_timer deadline_;  // time limit of the running operation of stream_
  net::steady_timer wake_;      // waits for the next event of the exchange, whose wake function cancels the timer
  uint64_t deadline_epoch_ = 0, watch_epoch_ = 0;
  bool timed_out_ = false, gone_ = false, closed_ = false, leaves_ = false, first_ = true;
  std::atomic<Phase> phase_{Phase::kIdle};
  std::atomic<double> since_{0};  // start of phase_, in seconds of the steady clock
  RequestReader reader_;
  HttpRequest request_;
  bool keep_alive_ = false;
};

}  // namespace specdec::deploy
