// A web server with one page, on a loopback port that the system chooses.
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
  // Answers with a page whose length only the end of the connection says.
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
