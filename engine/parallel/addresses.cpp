#include "engine/parallel/addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace specdec::parallel {

namespace {

// Calls f(socket, address, size) for the addresses of a host until it returns true.
template <class F>
bool over_addresses(const std::string& host, int port, int type, const F& f) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = type;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  bool good = false;
  for (const addrinfo* a = found; a && !good; a = a->ai_next) {
    const int file = ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (file < 0) continue;
    good = f(file, a->ai_addr, a->ai_addrlen);
    ::close(file);
  }
  ::freeaddrinfo(found);
  return good;
}

// Returns the address of this machine on the route to `host`, or "" if there is none. Other ranks can reach this
// machine at this address; the address that the machine's own name resolves to may not work for them. Sends nothing.
std::string own_address(const std::string& host, int port) {
  char text[256] = "";
  over_addresses(host, port, SOCK_DGRAM, [&](int file, const sockaddr* address, socklen_t size) {
    sockaddr_storage own = {};
    socklen_t own_size = sizeof own;
    return ::connect(file, address, size) == 0 &&
           ::getsockname(file, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
           ::getnameinfo(reinterpret_cast<sockaddr*>(&own), own_size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
               0;
  });
  return text;
}

// Returns a non-loopback address of this machine, or "" if it has none.
std::string outer_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  char text[256] = "";
  for (const ifaddrs* a = list; a && !*text; a = a->ifa_next) {
    if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET) continue;
    if ((a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_RUNNING)) continue;
    ::getnameinfo(a->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  }
  ::freeifaddrs(list);
  return text;
}

}  // namespace

bool answers(const std::string& host, int port) {
  constexpr int kMilliseconds = 2000;
  return over_addresses(host, port, SOCK_STREAM, [](int file, const sockaddr* address, socklen_t size) {
    if (::connect(file, address, size) == 0) return true;
    pollfd wait = {file, POLLOUT, 0};
    int error = 0;
    socklen_t error_size = sizeof error;
    return errno == EINPROGRESS && ::poll(&wait, 1, kMilliseconds) == 1 &&
           ::getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0 && error == 0;
  });
}

std::string address_for_others(const std::string& first, int port) {
  const auto is_loopback = [](const std::string& a) { return a.starts_with("127.") || a == "::1" || a == "localhost"; };
  const std::string address = own_address(first, port);
  if (!is_loopback(address) || is_loopback(first)) return address;
  const std::string outer = outer_address();
  return outer.empty() ? address : outer;
}

}  // namespace specdec::parallel
