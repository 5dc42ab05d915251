// Decides which host names a server without API keys accepts, and which web pages of other origins may call the server.
// The reason is DNS rebinding: a page of another site can make its own name resolve to 127.0.0.1. The page's requests
// then come from the user's own browser, and only the Host and Origin headers show that they are not the user's.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace specdec::deploy {

class AllowedHosts {
 public:
  AllowedHosts() = default;
  // Accepts these names in addition to localhost, 127.0.0.0/8 and [::1]. Pages of `origins` may call the server and
  // read its replies (CORS). Throws Error(kUsage) for an origin that no browser sends.
  explicit AllowedHosts(const std::vector<std::string>& names, const std::vector<std::string>& origins = {});

  // Returns whether the server accepts this Host header or authority of a request target: NAME, NAME:PORT or
  // [ADDRESS]:PORT.
  bool takes_host(std::string_view authority) const;
  // Returns whether a server without keys accepts an Origin header, SCHEME://HOST[:PORT]. It accepts each of `origins`,
  // and every origin whose host takes_host() accepts.
  bool takes_origin(std::string_view origin) const;

  using Headers = std::vector<std::pair<std::string, std::string>>;
  // Returns whether a page of this origin may read replies. The origin must be exactly one of `origins`.
  bool shares_with(std::string_view origin) const { return origins_.contains(origin); }
  // Returns the CORS headers of a reply. If shares_with(origin), they allow the page to read the reply.
  Headers reply_headers(std::string_view origin) const;
  // Returns additional headers for the reply to a preflight, by which a browser asks whether a page may send its
  // request.
  static Headers preflight_headers(std::string_view methods);

 private:
  std::set<std::string> names_;  // in lower case
  std::set<std::string, std::less<>> origins_;
};

}  // namespace specdec::deploy
