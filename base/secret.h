// What must not be shown: keys, and URLs that may carry one. They print themselves without it, whoever prints them;
// reveal() is for the one place that needs the text, which is the request.
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
std::ostream& operator<<(std::ostream& out, const Secret& secret);  // "***", "" where it is empty
void to_json(nlohmann::json& json, const Secret& secret);

// A URL as it is shown: "http://***@host:9090/metrics?***". What is shown of the query is a Prometheus match alone,
// which tells sources apart. Of a webhook, whose path is its key, only the host is shown. Text that is no URL with a
// plain host is "http://***" as a whole.
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
