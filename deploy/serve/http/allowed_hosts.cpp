#include "deploy/serve/http/allowed_hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "base/error.h"

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

// Returns whether the text has the form in which browsers send an Origin: lower case, no default port, no path and no
// slash at the end.
bool is_origin(std::string_view text) {
  const size_t scheme = text.find("://");
  if (scheme == std::string_view::npos || scheme == 0) return false;
  const std::string_view authority = text.substr(scheme + 3), name = text.substr(0, scheme);
  constexpr std::string_view kScheme = "abcdefghijklmnopqrstuvwxyz0123456789+-.", kHost = "_:[]";
  const auto allowed = [&](char c) { return kScheme.find(c) != std::string_view::npos; };
  const bool own_port =
      (name == "http" && authority.ends_with(":80")) || (name == "https" && authority.ends_with(":443"));
  return std::all_of(name.begin(), name.end(), allowed) && !host_name(authority).empty() && !own_port &&
         std::all_of(authority.begin(), authority.end(),
                     [&](char c) { return allowed(c) || kHost.find(c) != std::string_view::npos; });
}

}  // namespace

AllowedHosts::AllowedHosts(const std::vector<std::string>& names, const std::vector<std::string>& origins)
    : origins_(origins.begin(), origins.end()) {
  for (const std::string& name : names)
    if (!host_name(name).empty()) names_.insert(host_name(name));
  for (const std::string& origin : origins)
    if (!is_origin(origin))
      throw Error(ErrorKind::kUsage,
                  "--allow-origin: expected an origin as browsers send it, such as "
                  "https://app.example or http://localhost:3000 (no *, path or final slash), found '" +
                      origin + "'");
}

bool AllowedHosts::takes_host(std::string_view authority) const {
  const std::string name = host_name(authority);
  return name == "localhost" || is_loopback(name) || names_.contains(name);
}

bool AllowedHosts::takes_origin(std::string_view origin) const {
  if (shares_with(origin)) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && takes_host(origin.substr(scheme + 3));
}

AllowedHosts::Headers AllowedHosts::reply_headers(std::string_view origin) const {
  if (origins_.empty()) return {};
  Headers headers = {{"Vary", "Origin"}};  // a cache must not give the reply for one origin to another
  if (!shares_with(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", origin);
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

AllowedHosts::Headers AllowedHosts::preflight_headers(std::string_view methods) {
  // In Access-Control-Allow-Headers, * stands for every header except Authorization (Fetch standard, 3.3.4).
  return {{"Access-Control-Allow-Methods", std::string(methods)},
          {"Access-Control-Allow-Headers", "*, Authorization"},
          {"Access-Control-Max-Age", "7200"}};
}

}  // namespace specdec::deploy
