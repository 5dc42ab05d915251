// The HTTP/1.1 transport: connections, limits, time limits, streams and disconnects (Boost.Beast). It knows no route; a
// handler decides what is answered. Listeners are TCP or Unix sockets, each with its own handler and its own places for
// connections, so that the clients of one never take the places of another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deploy/serve/api_error.h"
#include "deploy/serve/byte_budget.h"
#include "deploy/serve/limits.h"

namespace specdec::deploy {

struct RequestHead {
  std::string method, path, query;  // path as sent, undecoded, without the query
  std::string host;                 // of the target, where it names one, else of the Host header; with its port
  std::string origin, authorization, content_type, content_encoding, expect;
  unsigned version = 11;
  bool keep_alive = false, has_body = false;
};

struct HttpRequest : RequestHead {
  std::string id;  // made here, sent back as X-Request-Id
  std::string body;
  // Set by answer_head(): whose work it is, among whom the workers take turns, and what its bytes are counted by (null:
  // nothing).
  std::string party;
  std::shared_ptr<ByteBudget::Hold> held;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};
HttpReply error_reply(const ApiError& error, const std::string& request_id);

// One request being answered. All calls but the wake function are made by the connection, one at a time.
class Exchange {
 public:
  struct Turn {
    enum class Kind { kWait, kReply, kData, kEnd };
    Kind kind = Kind::kWait;
    HttpReply reply;   // kReply: the whole answer; only before any kData
    std::string data;  // kData: the next piece of a text/event-stream
  };
  virtual ~Exchange() = default;
  // `wake` may be called from any thread whenever next() may have more than kWait. Called once, before the first
  // next().
  virtual void on_wake(std::function<void()> wake) = 0;
  virtual Turn next() = 0;
  virtual void abandon() = 0;  // the client has gone or the time is over: stop the work
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Right after the headers, before a body is read; must not block. A reply ends the request; nothing: the body is read
  // and respond() is called.
  virtual std::optional<HttpReply> answer_head(HttpRequest& request) = 0;
  // On a worker thread, with the body. Never throws, never null.
  virtual std::shared_ptr<Exchange> respond(HttpRequest request) = 0;
  // Every reply that was begun, with its status; path is "" when the request could not be read.
  virtual void replied(const HttpRequest& request, int status) = 0;
};

class HttpServer {
 public:
  explicit HttpServer(const ServeLimits& limits, int io_threads = 2, int worker_threads = 3);
  ~HttpServer();  // stop()

  // Binds and listens; connections wait until start(). Port 0 takes a free one. Returns the port. Throws Error(kIo)
  // when the address is in use or may not be bound, Error(kUsage) when it is none of this machine.
  int listen(const std::string& host, int port, HttpHandler& handler);
  // Mode 0600. A socket file that nobody answers on is replaced. Removed by stop().
  void listen_unix(const std::filesystem::path& path, HttpHandler& handler);
  void start();
  // No new connections; idle ones are closed, the others after their reply.
  void stop_accepting();
  // Closes everything at once and joins the threads.
  void stop();

  size_t connections() const;  // of all listeners

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::deploy
