#include "base/secret.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

namespace specdec {

namespace {

constexpr const char* kHidden = "***";

bool is_plain_host(const std::string& authority) {
  std::string host = authority;
  if (const size_t colon = authority.rfind(':');
      colon != std::string::npos && authority.find(']', colon) == std::string::npos) {
    const std::string port = authority.substr(colon + 1);
    if (port.size() > 5 || !std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return false;
    host = authority.substr(0, colon);
  }
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  return !host.empty() && std::all_of(host.begin() + bracketed, host.end() - bracketed, [&](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
           c == '_' || (bracketed && c == ':');
  });
}

std::string shown_of(const std::string& url, SecretUrl::Shows shows) {
  const size_t scheme_end = url.find("://");
  if (scheme_end == std::string::npos) return url;  // no URL but a path or a name
  const size_t begin = scheme_end + 3, end = std::min(url.find_first_of("/?#", begin), url.size());
  const std::string scheme = url.substr(0, begin), authority = url.substr(begin, end - begin);
  const size_t at = authority.rfind('@');
  const std::string host = at == std::string::npos ? authority : authority.substr(at + 1);
  if (!is_plain_host(host)) return scheme + kHidden;
  std::string out = scheme + (at == std::string::npos ? "" : std::string(kHidden) + "@") + host;
  const size_t query = std::min(url.find_first_of("?#", end), url.size());
  const std::string path = url.substr(end, query - end), rest = url.substr(query);
  if (shows == SecretUrl::Shows::kHost) return path.size() + rest.size() > 1 ? out + "/" + kHidden : out + path;
  out += path.find('@') == std::string::npos ? path : "/" + std::string(kHidden);  // a password may contain a '/'
  if (rest.empty()) return out;
  const bool match = rest.starts_with("?match={") && rest.ends_with('}') && rest.find('&') == std::string::npos &&
                     rest.find('#') == std::string::npos;
  return out + (match ? rest : rest.substr(0, 1) + kHidden);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Secret& secret) { return out << (secret.empty() ? "" : kHidden); }
void to_json(nlohmann::json& json, const Secret& secret) { json = secret.empty() ? "" : kHidden; }

SecretUrl::SecretUrl(std::string url, Shows shows) : url_(std::move(url)), shown_(shown_of(url_, shows)) {}
std::ostream& operator<<(std::ostream& out, const SecretUrl& url) { return out << url.shown(); }
void to_json(nlohmann::json& json, const SecretUrl& url) { json = url.shown(); }

}  // namespace specdec
