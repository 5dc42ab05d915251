#include "deploy/serve/allowed_hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

namespace specdec::deploy {

namespace {

// Returns the host name without its port, in lower case; "" if the text is not a host name.
std::string host_name(std::string_view authority) {
  const bool bracket = authority.starts_with('[');
  const size_t end = bracket ? authority.find(']') : std::min(authority.find(':'), authority.size());
  if (end == std::string_view::npos) return "";
  std::string_view name = bracket ? authority.substr(1, end - 1) : authority.substr(0, end);
  const std::string_view rest = authority.substr(bracket ? end + 1 : end);
  const bool port = rest.starts_with(':') && rest.find_first_not_of("0123456789", 1) == std::string_view::npos;
  if (!rest.empty() && !port) return "";
  if (!bracket && name.ends_with('.')) name.remove_suffix(1);
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

bool is_loopback(const std::string& name) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, name.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return ::inet_pton(AF_INET6, name.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

AllowedHosts::AllowedHosts(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (!host_name(name).empty()) names_.insert(host_name(name));
}

bool AllowedHosts::takes_host(std::string_view authority) const {
  const std::string name = host_name(authority);
  return name == "localhost" || is_loopback(name) || names_.contains(name);
}

bool AllowedHosts::takes_origin(std::string_view origin) const {
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && takes_host(origin.substr(scheme + 3));
}

}  // namespace specdec::deploy
