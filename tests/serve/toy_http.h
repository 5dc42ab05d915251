// The HTTP transport alone, with a handler for tests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "deploy/serve/http/http.h"
#include "tests/serve/running_server.h"

namespace specdec::deploy {

// A handler for tests. POST /echo returns the request's body; /echo?held first waits for release(). /stream sends the
// pieces that the test pushes. GET /hello is answered at once.
class ToyHandler final : public HttpHandler {
 public:
  class Stream final : public Exchange {
   public:
    explicit Stream(ToyHandler& owner) : owner_(owner) {}
    void on_wake(std::function<void()> wake) override {
      const std::lock_guard lock(mutex_);
      wake_ = std::move(wake);
    }
    Turn next() override {
      const std::lock_guard lock(mutex_);
      if (!pieces_.empty()) {
        Turn turn{Turn::Kind::kData, {}, pieces_.front()};
        pieces_.erase(pieces_.begin());
        return turn;
      }
      return ended_ ? Turn{Turn::Kind::kEnd, {}, {}} : Turn{};
    }
    void abandon() override { owner_.abandoned.fetch_add(1); }
    void push(const std::string& piece, bool end) {
      std::function<void()> wake;
      {
        const std::lock_guard lock(mutex_);
        if (!piece.empty()) pieces_.push_back(piece);
        ended_ = end;
        wake = wake_;
      }
      if (wake) wake();
    }

   private:
    ToyHandler& owner_;
    std::mutex mutex_;
    std::vector<std::string> pieces_;
    bool ended_ = false;
    std::function<void()> wake_;
  };
  class Echo final : public Exchange {
   public:
    explicit Echo(std::string body) : body_(std::move(body)) {}
    void on_wake(std::function<void()>) override {}
    Turn next() override { return {Turn::Kind::kReply, {200, "text/plain", body_, {}}, {}}; }
    void abandon() override {}

   private:
    std::string body_;
  };

  std::optional<HttpReply> answer_head(HttpRequest& request) override {
    if (request.path == "/hello")
      return HttpReply{200, "text/plain", "hello " + request.method + " " + request.query, {{"X-Toy", "1"}}};
    if (request.path == "/refused") return error_reply(invalid_api_key(), request.id);
    return std::nullopt;
  }
  std::shared_ptr<Exchange> respond(HttpRequest request) override {
    if (request.query == "held") {
      std::unique_lock lock(mutex_);
      ++held_;
      arrived_.notify_all();
      arrived_.wait(lock, [&] { return released_; });
    }
    if (request.path != "/stream") return std::make_shared<Echo>(request.body);
    auto stream = std::make_shared<Stream>(*this);
    std::unique_lock lock(mutex_);
    streams_.push_back(stream);
    arrived_.notify_all();
    // Gives the test up to 200 ms to push pieces before the connection gets the stream object.
    if (request.query == "slowly") arrived_.wait_for(lock, std::chrono::milliseconds(200));
    return stream;
  }
  void replied(const HttpRequest&, int status) override {
    const std::lock_guard lock(mutex_);
    ++statuses[status];
  }
  std::shared_ptr<Stream> stream(size_t index) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return streams_.size() > index; });
    return streams_[index];
  }
  int held() {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    arrived_.notify_all();
  }
  int count(int status) {
    const std::lock_guard lock(mutex_);
    return statuses[status];
  }

  std::atomic<int> abandoned{0};

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::map<int, int> statuses;
  int held_ = 0;
  bool released_ = false;
};

inline ServeLimits small_limits() {
  ServeLimits limits;
  limits.header_bytes = 2048;
  limits.header_fields = 10;
  limits.body_bytes = 1000;
  limits.connections = 8;
  return limits;
}

struct Http {
  explicit Http(ServeLimits limits = small_limits(), const TlsIdentity* identity = nullptr) : server(limits) {
    port = server.listen("127.0.0.1", 0, handler, identity);
    server.start();
  }
  ToyHandler handler;
  HttpServer server;
  int port = 0;
};

}  // namespace specdec::deploy
