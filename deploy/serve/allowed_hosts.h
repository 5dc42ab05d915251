// Under which names a server that asks for no key answers. A page of another site may have its name resolve to
// 127.0.0.1 (DNS rebinding): its requests then come from the user's own browser, and only Host and Origin tell them
// from his own.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::deploy {

class AllowedHosts {
 public:
  AllowedHosts() = default;
  // Beside localhost, 127.0.0.0/8 and [::1].
  explicit AllowedHosts(const std::vector<std::string>& names);

  // Of a Host header or of a target's authority: NAME, NAME:PORT or [ADDRESS]:PORT.
  bool takes_host(std::string_view authority) const;
  // Of an Origin header: SCHEME://HOST.
  bool takes_origin(std::string_view origin) const;

 private:
  std::set<std::string> names_;  // in lower case
};

}  // namespace specdec::deploy
