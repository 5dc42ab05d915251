// Reads counters over HTTP, from a /metrics page or a Prometheus server.
#pragma once

#include <string>

#include "base/secret.h"
#include "monitor/counters.h"

namespace specdec::monitor {

// A source is the URL of a page, or "prometheus+http://HOST:9090[/prefix]?match={job=\"vllm\"}". The latter asks the
// server for the newest raw samples of the same counters with these labels. Two scrapes are subtracted here, series by
// series, as for a page: increase() would need exactly the time between two scrapes, and extrapolates.
bool is_url(const std::string& text);
// Throws what fetch and the parsers throw.
Counters read_counters(const SecretUrl& source, const Secret& api_key, const std::string& model);

// GETs a page: http(s) only, no redirects, 10 s to connect, 30 s in all, at most 16 MiB. A key that is not empty is
// sent as a bearer token. Throws Error(kNetwork), Error(kData) if the server refuses, and Error(kUsage) if the key
// would be sent over plain http to another machine.
std::string fetch(const SecretUrl& url, const Secret& api_key = {});

}  // namespace specdec::monitor
