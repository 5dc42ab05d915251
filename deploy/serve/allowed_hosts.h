// Decides which host names a server without API keys accepts. A page of another site can make its own name resolve to
// 127.0.0.1 (DNS rebinding). Its requests then come from the user's own browser, and only the Host and Origin headers
// distinguish them from the user's own requests.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::deploy {

class AllowedHosts {
 public:
  AllowedHosts() = default;
  // Allows these names in addition to localhost, 127.0.0.0/8 and [::1].
  explicit AllowedHosts(const std::vector<std::string>& names);

  // Returns whether it accepts a Host header or the authority of a request target: NAME, NAME:PORT or [ADDRESS]:PORT.
  bool takes_host(std::string_view authority) const;
  // Returns whether it accepts an Origin header: SCHEME://HOST.
  bool takes_origin(std::string_view origin) const;

 private:
  std::set<std::string> names_;  // in lower case
};

}  // namespace specdec::deploy
