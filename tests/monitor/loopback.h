// A web server with one page, on a free loopback port.
#pragma once

#include <mutex>
#include <string>

#include "tests/net/toy_server.h"

namespace specdec::monitor {

class Loopback {
 public:
  std::string url() const { return server_.url() + "/metrics"; }
  void page(const std::string& body, int status = 200, const std::string& headers = "") {
    const std::lock_guard lock(mutex_);
    reply_ = {.status = status, .body = body, .headers = headers};
  }
  // Makes the server send `body` without Content-Length. The client then recognises the end only by the closed
  // connection.
  void unbounded(const std::string& body) {
    const std::lock_guard lock(mutex_);
    reply_ = {.body = body, .unbounded = true};
  }
  std::string last_request() {
    const std::lock_guard lock(mutex_);
    return request_;
  }

 private:
  std::mutex mutex_;
  net::ToyReply reply_;
  std::string request_;
  net::ToyServer server_{[this](const net::ToyRequest& request) {
    const std::lock_guard lock(mutex_);
    request_ = request.head + "\r\n";
    return reply_;
  }};
};

}  // namespace specdec::monitor
