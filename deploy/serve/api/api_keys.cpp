#include "deploy/serve/api/api_keys.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"

namespace specdec::deploy {

namespace {

constexpr size_t kNameDigits = 12, kLeastBytes = 8;

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() > word.size() && text[word.size()] == ' ' &&
         std::equal(word.begin(), word.end(), text.begin(),
                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// Decodes base64 (RFC 4648). Returns an empty string for any other text.
std::string decode_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    int v = -1;
    if (c >= 'A' && c <= 'Z') v = c - 'A';
    if (c >= 'a' && c <= 'z') v = c - 'a' + 26;
    if (c >= '0' && c <= '9') v = c - '0' + 52;
    if (c == '+') v = 62;
    if (c == '/') v = 63;
    if (v < 0) return {};
    bits = (bits << 6) | static_cast<uint32_t>(v);
    if (++count % 4 != 1) out.push_back(static_cast<char>(bits >> (6 - 2 * ((count - 1) % 4))));
  }
  return out;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return false;
}

}  // namespace

ApiKeys ApiKeys::load(const std::filesystem::path& file) {
  ApiKeys keys;
  std::istringstream lines(read_file(file, 1 << 20, ErrorKind::kConfig));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string_view content = trim(line);
    if (content.empty() || content.front() == '#') continue;
    const std::string_view key = content.substr(0, content.find_first_of(" \t"));
    const std::string where = file.string() + ": line " + std::to_string(number);
    if (key.size() < kLeastBytes)
      throw Error(ErrorKind::kConfig,
                  where + ": expected a key of at least 8 characters, found " + std::to_string(key.size()));
    std::string digest = sha256_hex(key);
    if (std::find(keys.digests_.begin(), keys.digests_.end(), digest) != keys.digests_.end())
      throw Error(ErrorKind::kConfig, where + ": this key is given twice");
    const std::string_view name = trim(content.substr(key.size()));
    keys.names_.push_back(name.empty() ? digest.substr(0, kNameDigits) : std::string(name));
    keys.digests_.push_back(std::move(digest));
  }
  if (keys.digests_.empty())
    throw Error(ErrorKind::kConfig, file.string() + ": no API key found: expected one per line");
  return keys;
}

ApiKeys ApiKeys::single(const Secret& key) {
  const std::string& text = key.reveal();
  if (text.find_first_of(" \t\r\n") != std::string::npos)
    throw Error(ErrorKind::kConfig, "SPECDEC_API_KEY: expected one key, found white space in it");
  if (text.size() < kLeastBytes)
    throw Error(ErrorKind::kConfig,
                "SPECDEC_API_KEY: expected a key of at least 8 characters, found " + std::to_string(text.size()));
  ApiKeys keys;
  keys.digests_ = {sha256_hex(text)};
  keys.names_ = {keys.digests_[0].substr(0, kNameDigits)};
  return keys;
}

const std::string* ApiKeys::find(std::string_view key) const {
  const std::string digest = sha256_hex(key);
  const std::string* found = nullptr;
  for (size_t k = 0; k < digests_.size(); ++k) {
    unsigned char difference = 0;
    for (size_t i = 0; i < digest.size(); ++i) difference |= static_cast<unsigned char>(digest[i] ^ digests_[k][i]);
    found = difference == 0 ? &names_[k] : found;
  }
  return found;
}

const std::string* ApiKeys::tenant(std::string_view authorization) const {
  if (starts_with_word(authorization, "bearer")) return find(trim(authorization.substr(7)));
  if (!starts_with_word(authorization, "basic")) return nullptr;
  const std::string pair = decode_base64(trim(authorization.substr(6)));
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? nullptr : find(std::string_view(pair).substr(colon + 1));
}

std::set<std::string> ApiKeys::tenants() const { return {names_.begin(), names_.end()}; }

void check_exposure(const std::string& host, const ApiKeys& keys) {
  if (keys.required()) return;
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int failed = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), "0", &hints, &list); failed != 0)
    throw Error(ErrorKind::kUsage, "--host: '" + host + "' is no address of this machine: " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  for (const addrinfo* a = list; a; a = a->ai_next)
    if (!is_loopback(a->ai_addr))
      throw Error(
          ErrorKind::kUsage,
          "--host: '" + host +
              "' can be reached from other machines: give --api-key-file FILE or SPECDEC_API_KEY, or bind 127.0.0.1");
}

}  // namespace specdec::deploy
