// Counters over HTTP: a /metrics page or a Prometheus server.
#pragma once

#include <string>

#include "base/secret.h"
#include "monitor/counters.h"

namespace specdec::monitor {

// A source is the URL of a page, or "prometheus+http://HOST:9090[/prefix]?match={job=\"vllm\"}": the server's newest
// samples of the same counters under these labels, asked for raw. Two looks are subtracted here, series by series, as
// for a page: increase() would have to be asked for exactly the time between two looks, and extrapolates.
bool is_url(const std::string& text);
Counters read_counters(const SecretUrl& source, const Secret& api_key,
                       const std::string& model);  // throws what fetch and the parsers throw

// GET: http(s) only, no redirect, 10 s to connect, 30 s in all, at most 16 MiB. A key that is not empty is sent
// as a bearer token. Throws Error(kNetwork), and Error(kUsage) where it would go over plain http to another machine.
std::string fetch(const SecretUrl& url, const Secret& api_key = {});

}  // namespace specdec::monitor
