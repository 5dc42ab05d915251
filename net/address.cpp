// Decides from which networks an address can be reached, and which proxy a URL needs; used by http_client.cpp.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/environment.h"
#include "net/http_client.h"
#include "net/url_parts.h"

namespace specdec::net {

namespace {

using V6 = std::array<unsigned char, 16>;

Reach reach_of_v4(uint32_t address) {
  const auto within = [address](uint32_t network, int bits) { return (address ^ network) >> (32 - bits) == 0; };
  if (within(0x00000000, 8) || within(0x7f000000, 8)) return Reach::kLoopback;  // 0.0.0.0 also leads to this machine
  if (within(0xa9fe0000, 16)) return Reach::kLinkLocal;
  const bool inside = within(0x0a000000, 8) || within(0x64400000, 10) || within(0xac100000, 12) ||
                      within(0xc0000000, 24) || within(0xc0a80000, 16) || within(0xc6120000, 15) ||
                      within(0xe0000000, 3);  // 192.0.0/24, 198.18/15, multicast and reserved
  return inside ? Reach::kPrivate : Reach::kPublic;
}

uint32_t v4_at(const V6& a, size_t at) {
  return uint32_t{a[at]} << 24 | uint32_t{a[at + 1]} << 16 | uint32_t{a[at + 2]} << 8 | a[at + 3];
}

bool starts_with(const V6& a, std::initializer_list<int> prefix) {
  size_t i = 0;
  for (const int byte : prefix)
    if (a[i++] != byte) return false;
  return true;
}

Reach reach_of_v6(const V6& a) {
  const bool zeros = starts_with(a, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  if (zeros && a[10] == 0xff && a[11] == 0xff) return reach_of_v4(v4_at(a, 12));  // ::ffff:0:0/96, IPv4-mapped
  if (zeros && a[10] == 0 && a[11] == 0)  // ::/96: unspecified, loopback and IPv4-compatible, never routed
    return v4_at(a, 12) <= 1 ? Reach::kLoopback : std::max(Reach::kPrivate, reach_of_v4(v4_at(a, 12)));
  // 64:ff9b::/96 (NAT64) embeds an IPv4 address.
  if (starts_with(a, {0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0})) return reach_of_v4(v4_at(a, 12));
  if (starts_with(a, {0, 0x64, 0xff, 0x9b, 0, 1})) return Reach::kPrivate;  // 64:ff9b:1::/48, NAT64 of a local network
  if (starts_with(a, {0x20, 0x02})) return reach_of_v4(v4_at(a, 2));        // 2002::/16, 6to4
  // 2001::/32 (Teredo) embeds two IPv4 addresses: the server's, and the client's with inverted bits.
  if (starts_with(a, {0x20, 0x01, 0, 0})) return std::max(reach_of_v4(v4_at(a, 4)), reach_of_v4(~v4_at(a, 12)));
  if ((a[8] & 0xfd) == 0 && a[9] == 0 && a[10] == 0x5e && a[11] == 0xfe) return reach_of_v4(v4_at(a, 12));  // ISATAP
  if (a[0] == 0xfe && (a[1] & 0xc0) == 0x80) return Reach::kLinkLocal;
  // These ranges are unique local, site-local and multicast addresses.
  const bool inside = (a[0] & 0xfe) == 0xfc || (a[0] == 0xfe && (a[1] & 0x80)) || a[0] == 0xff;
  return inside ? Reach::kPrivate : Reach::kPublic;
}

// Returns whether `host` is an address within a network such as "10.0.0.0/8".
bool in_network(const std::string& host, const std::string& network) {
  const size_t slash = network.find('/');
  in_addr address{}, of{};
  int bits = -1;
  if (slash == std::string::npos || ::inet_pton(AF_INET, host.c_str(), &address) != 1 ||
      ::inet_pton(AF_INET, network.substr(0, slash).c_str(), &of) != 1)
    return false;
  const char* end = network.data() + network.size();
  if (std::from_chars(network.data() + slash + 1, end, bits).ptr != end || bits < 0 || bits > 32) return false;
  return bits == 0 || (ntohl(address.s_addr) ^ ntohl(of.s_addr)) >> (32 - bits) == 0;
}

// Returns whether the no_proxy list excludes the host: by its name or a parent domain, its address, a network, or "*".
bool is_excepted(const std::string& host, const std::string& list) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find_first_of(", ", begin), list.size());
    std::string name = lower(list.substr(begin, end - begin));
    begin = end + 1;
    if (name == "*") return true;
    while (name.starts_with('.')) name.erase(0, 1);
    if (name.empty()) continue;
    if (host == name || host == "[" + name + "]" || host.ends_with("." + name) || in_network(host, name)) return true;
  }
  return false;
}

}  // namespace

Reach reach_of(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return reach_of_v4(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr));
  if (address.sa_family != AF_INET6) return Reach::kPrivate;
  V6 bytes{};
  std::memcpy(bytes.data(), reinterpret_cast<const sockaddr_in6&>(address).sin6_addr.s6_addr, bytes.size());
  return reach_of_v6(bytes);
}

Reach reach_of_host(const std::string& url) {
  std::string host = part_of(url, CURLUPART_HOST);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  while (host.ends_with('.')) host.pop_back();
  if (host.empty()) return Reach::kPrivate;
  if (host == "localhost" || host.ends_with(".localhost")) return Reach::kLoopback;
  const bool is_address =
      host.find(':') != std::string::npos || host.find_first_not_of("0123456789.") == std::string::npos;
  // A name without a dot is in the local network.
  if (!is_address && host.find('.') == std::string::npos) return Reach::kPrivate;
  Reach reach = Reach::kPublic;
  for (const char* inside : {".internal", ".local", ".lan", ".home.arpa"})
    if (host.ends_with(inside)) reach = Reach::kPrivate;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (is_address) hints.ai_flags = AI_NUMERICHOST;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return is_address ? Reach::kPrivate : reach;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  for (const addrinfo* at = all.get(); at; at = at->ai_next) reach = std::max(reach, reach_of(*at->ai_addr));
  return reach;
}

// Chooses the proxy by the same rules as libcurl. The choice is made here because the client must know whether the peer
// of a connection is a proxy.
std::string proxy_of(const std::string& url) {
  const bool secure = part_of(url, CURLUPART_SCHEME) == "https";
  if (!secure && keeps_secrets(url)) return "";  // the host is this machine; a key for it must not go through a proxy
  // HTTP_PROXY is not read, because a client of a CGI program can set it.
  const std::string proxy = secure ? environment({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
                                   : environment({"http_proxy", "all_proxy", "ALL_PROXY"});
  const std::string except = environment({"no_proxy", "NO_PROXY"});
  return proxy.empty() || is_excepted(part_of(url, CURLUPART_HOST), except) ? "" : proxy;
}

}  // namespace specdec::net
