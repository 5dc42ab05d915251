// Reads counters over HTTP, from a /metrics page or a Prometheus server.
#pragma once

#include <string>

#include "base/secret.h"
#include "monitor/read/counters.h"
#include "monitor/read/exposition.h"

namespace specdec::monitor {

// Returns whether `text` is the URL of a source: a server's /metrics page, or a Prometheus server, written
// "prometheus+http://HOST:9090[/prefix]?match={job=\"vllm\"}". A Prometheus server is asked for the newest raw samples
// of the counters with these labels, and difference() subtracts two such scrapes. PromQL's increase() is not used: it
// extrapolates, and its range would have to equal the time between two scrapes.
bool is_url(const std::string& text);
// Reads the counters of a source. Throws what fetch() and the parsers of counters.h throw.
Counters read_counters(const SecretUrl& source, const Secret& api_key, const std::string& model);

struct FetchedPage {
  std::string body;
  PageEnd end;
};
// GETs a page: http(s) only, redirects within the origin only, 10 s to connect, 30 s in all, at most 16 MiB. `api_key`,
// if not empty, is sent as a bearer token. Throws Error(kNetwork) if a retry may succeed, Error(kData) for a permanent
// failure, such as a redirect to another origin, and Error(kUsage) if the key would be sent over plain http to another
// machine.
FetchedPage fetch(const SecretUrl& url, const Secret& api_key = {});

}  // namespace specdec::monitor
