// Is a remote endpoint still the target the draft was validated for? By the fingerprint where the endpoint tells one
// (specdec serve), else by what it says of itself, log-probability tracking once a day, or greedy canaries where there
// are no log-probabilities.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/secret.h"
#include "monitor/served_target.h"

namespace specdec::monitor {

struct TargetWatchOptions {
  std::string url, model;  // model "" = the first of /v1/models
  Secret api_key;
  int calls = 32;          // counts the requests of a look for each of 8 prompts
  double every_s = 86400;  // passes between looks; what the endpoint says of itself is asked for each time
  double false_alarm_every_days = 365;
  std::function<void(double)> sleep;  // replaces waiting between attempts (tests)
};

// Says whether a target is still the one that the draft was validated for.
struct TargetCheck {
  std::string stale;   // says why it is another target, until another package or an acknowledgement; "" = it is not
                       // known to be one
  std::string named;   // is the fingerprint that the endpoint tells of what it serves, "" = it tells none
  std::string wait;    // says that a rolling update is under way and the next check looks again (exit 75), "" = none is
  Json evidence;       // is "evidence.target" of the result
  std::string memory;  // has to be kept for the next call
};

// `memory`: that of the call before, "" the first time. Another package or URL, and "", begin anew: what answers then
// is the reference, because a remote endpoint shows no fingerprint of its files. The alarm level is that of
// `false_alarm_every_days`, at least 1000 looks. At most 8 × calls requests a look (without log-probabilities 64 texts
// of 64 tokens, twice as many the first time) and a handful to begin. Two modes in the answers are a rolling update:
// `wait`, for at most a day, then `stale`. Throws what Endpoint throws, Error(kUsage) for `calls` outside 8 … 256,
// Error(kData) for a memory that is none.
TargetCheck watch_target(const TargetWatchOptions& options, const WatchedPair& pair, const std::string& memory,
                         const Clock& clock);

}  // namespace specdec::monitor
