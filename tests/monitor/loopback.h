// A web server for one page, on a loopback port of the system's choice.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

namespace specdec::monitor {

class Loopback {
 public:
  Loopback() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_, 8);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Loopback() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/metrics"; }
  void page(const std::string& body, const std::string& status = "200 OK") {
    const std::lock_guard lock(mutex_);
    answer_ = "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
  }
  std::string last_request() {
    const std::lock_guard lock(mutex_);
    return request_;
  }

 private:
  void serve() {
    for (int client; (client = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(client)) {
      char request[4096];
      const ssize_t size = ::recv(client, request, sizeof request, 0);
      if (size <= 0) continue;
      const std::lock_guard lock(mutex_);
      request_.assign(request, static_cast<size_t>(size));
      for (size_t sent = 0; sent < answer_.size();) {
        const ssize_t n = ::send(client, answer_.data() + sent, answer_.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += static_cast<size_t>(n);
      }
    }
  }

  int listener_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::string answer_, request_;
  std::thread thread_;
};

}  // namespace specdec::monitor
