// Values that must not be shown: keys, and URLs that may contain one. Printing such a value never shows the secret.
// Only the code that sends the request may call reveal().
#pragma once

#include <filesystem>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace specdec {

// A key, token or password.
class Secret {
 public:
  Secret() = default;
  Secret(std::string text) : text_(std::move(text)) {}
  Secret(const char* text) : text_(text) {}
  bool empty() const { return text_.empty(); }
  const std::string& reveal() const { return text_; }

 private:
  std::string text_;
};
std::ostream& operator<<(std::ostream& out, const Secret& secret);  // prints "***", or "" if the secret is empty
void to_json(nlohmann::json& json, const Secret& secret);

// A URL that is shown as "http://***@host:9090/metrics?***". A query is hidden, except a Prometheus selector alone
// ("?match={…}"), which is shown because it distinguishes sources. For a webhook (kHost) only the host is shown,
// because the path is the secret. A URL whose host cannot be told from a user name or password is shown as
// "http://***". Text without "://" is a path or a name and is shown whole.
class SecretUrl {
 public:
  enum class Shows { kPath, kHost };
  SecretUrl() = default;
  SecretUrl(std::string url, Shows shows = Shows::kPath);
  SecretUrl(const char* url) : SecretUrl(std::string(url)) {}
  SecretUrl(const std::filesystem::path& file) : SecretUrl(file.string()) {}

  bool empty() const { return url_.empty(); }
  const std::string& reveal() const { return url_; }
  const std::string& shown() const { return shown_; }
  bool has_secret() const { return shown_ != url_; }
  bool operator==(const SecretUrl& other) const { return url_ == other.url_; }

 private:
  std::string url_, shown_;
};
std::ostream& operator<<(std::ostream& out, const SecretUrl& url);
void to_json(nlohmann::json& json, const SecretUrl& url);

}  // namespace specdec
