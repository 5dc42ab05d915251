// A small HTTP/1.1 server for tests: one handler, one thread per connection, keep-alive, a port that the system
// chooses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace specdec::net {

struct ToyRequest {
  std::string method, path, head, body;
};
struct ToyReply {
  int status = 200;
  std::string body;
  std::string headers;     // lines of the form "Name: value\r\n"
  bool drop = false;       // close the connection without a reply
  bool cut = false;        // close the connection after three quarters of the body
  bool unbounded = false;  // send no Content-Length: the body ends when the connection is closed
};

class ToyServer {
 public:
  explicit ToyServer(std::function<ToyReply(const ToyRequest&)> handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 64) != 0)
      throw std::runtime_error("toy server: cannot listen");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ToyServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& t : connections_) t.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void accept_all() {
    for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      connections_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    std::string buffer;
    const auto more = [&] {
      char block[65536];
      const ssize_t n = ::read(fd, block, sizeof block);
      if (n > 0) buffer.append(block, static_cast<size_t>(n));
      return n > 0;
    };
    for (;;) {
      size_t end;
      while ((end = buffer.find("\r\n\r\n")) == std::string::npos)
        if (!more()) return close(fd);
      ToyRequest request;
      request.head = buffer.substr(0, end);
      request.method = request.head.substr(0, request.head.find(' '));
      request.path = request.head.substr(request.method.size() + 1);
      request.path = request.path.substr(0, request.path.find(' '));
      const size_t length_at = request.head.find("Content-Length: ");
      const size_t length = length_at == std::string::npos ? 0 : std::stoul(request.head.substr(length_at + 16));
      while (buffer.size() < end + 4 + length)
        if (!more()) return close(fd);
      request.body = buffer.substr(end + 4, length);
      buffer.erase(0, end + 4 + length);
      const ToyReply reply = handler_(request);
      if (reply.drop) return close(fd);
      const std::string end_of_head =
          reply.unbounded ? "Connection: close" : "Content-Length: " + std::to_string(reply.body.size());
      const std::string text =
          "HTTP/1.1 " + std::to_string(reply.status) + " X\r\n" + reply.headers + end_of_head + "\r\n\r\n" + reply.body;
      for (size_t sent = 0, all = text.size() - (reply.cut ? reply.body.size() / 4 : 0); sent < all;) {
        const ssize_t n = ::send(fd, text.data() + sent, all - sent, MSG_NOSIGNAL);
        if (n < 0) return close(fd);
        sent += static_cast<size_t>(n);
      }
      if (reply.cut || reply.unbounded) return close(fd);
    }
  }

  void close(int fd) {
    const std::lock_guard lock(mutex_);
    std::erase(open_, fd);
    ::close(fd);
  }

  std::function<ToyReply(const ToyRequest&)> handler_;
  int listener_ = -1, port_ = 0;
  std::thread acceptor_;
  std::mutex mutex_;
  std::vector<int> open_;
  std::vector<std::thread> connections_;
};

}  // namespace specdec::net
