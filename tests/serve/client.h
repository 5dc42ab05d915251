// A blocking HTTP client that sends exactly the given bytes, for tests of the server over loopback.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

namespace specdec::deploy {

struct Response {
  int status = 0;                              // 0: the connection ended without a response
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // the content without chunk framing
  bool complete = false;
};

class Client {
 public:
  // `from` is the client's own address in 127.0.0.0/8. `receives` is the size of the client's receive buffer in bytes;
  // 0 = the system's default.
  explicit Client(int port, uint32_t from = INADDR_LOOPBACK, int receives = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(from);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    if (receives > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receives, sizeof receives);
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    limit_waiting();
  }
  explicit Client(const std::string& unix_path) {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    limit_waiting();
  }
  virtual ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes the connection with a TCP reset.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  bool send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = put(bytes.data() + at, bytes.size() - at);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }
  // Sends `bytes` repeatedly until the server has accepted none of them for half a second.
  void send_until_full(const std::string& bytes) {
    const timeval half{0, 500'000};
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &half, sizeof half);
    while (send(bytes)) {
    }
  }
  // Returns all bytes that the server sends until it closes the connection.
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(buffer_, {});
  }
  // Blocks until data arrives or the server closes. Returns true if the server has closed and all data was read.
  bool at_end() { return buffer_.empty() && !fill(); }
  // Blocks until `text` has arrived. Returns false if the server closes the connection first.
  bool wait_for(const std::string& text) {
    while (buffer_.find(text) == std::string::npos)
      if (!fill()) return false;
    return true;
  }

  Response read(bool head = false) {
    Response r;
    while (buffer_.find("\r\n\r\n") == std::string::npos)
      if (!fill()) return r;
    const size_t end = buffer_.find("\r\n\r\n");
    std::string headers = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    r.status = std::atoi(headers.c_str() + 9);
    for (size_t at = headers.find("\r\n") + 2; at < headers.size();) {
      const size_t stop = headers.find("\r\n", at), colon = headers.find(':', at);
      std::string name = headers.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      r.headers[name] = headers.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    if (r.status == 100) return read(head);
    r.complete =
        head || r.status == 204 || (r.headers.count("transfer-encoding") ? read_chunks(r.body) : read_length(r));
    return r;
  }

 protected:
  int fd() const { return fd_; }
  // put() behaves like send(2), take() like recv(2).
  virtual ssize_t put(const char* bytes, size_t count) { return ::send(fd_, bytes, count, MSG_NOSIGNAL); }
  virtual ssize_t take(char* room, size_t count) { return ::recv(fd_, room, count, 0); }

 private:
  // Limits each wait for data to 120 s, so that the test fails instead of hanging if the server never answers. Under
  // emulation an answer may take half a minute.
  void limit_waiting() {
    const timeval patience{120, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  bool fill() {
    char block[65536];
    const ssize_t n = take(block, sizeof block);
    EXPECT_FALSE(n < 0 && errno == EAGAIN) << "the server did not answer in 120 s";
    if (n <= 0) return false;
    buffer_.append(block, static_cast<size_t>(n));
    return true;
  }
  bool read_length(Response& r) {
    if (!r.headers.count("content-length")) {
      r.body = read_all();
      return true;
    }
    const size_t length = std::stoul(r.headers["content-length"]);
    while (buffer_.size() < length)
      if (!fill()) return false;
    r.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return true;
  }
  bool read_chunks(std::string& body) {
    for (;;) {
      while (buffer_.find("\r\n") == std::string::npos)
        if (!fill()) return false;
      const size_t line = buffer_.find("\r\n"), length = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + length + 2)
        if (!fill()) return false;
      body += buffer_.substr(line + 2, length);
      buffer_.erase(0, line + 2 + length + 2);
      if (length == 0) return true;
    }
  }

  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

inline std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}
inline std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

}  // namespace specdec::deploy
