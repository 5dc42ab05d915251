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

namespace specdec::monitor {

struct TargetWatchOptions {
  std::string url, model;  // model "" = the first of /v1/models
  Secret api_key;
  int calls = 32;          // of each of 8 prompts a look
  double every_s = 86400;  // between looks; what the endpoint says of itself is asked for each time
  double false_alarm_every_days = 365;
  std::function<void(double)> sleep;  // replaces waiting between attempts (tests)
};

struct TargetSight {
  std::string stale;   // why it is another target, "" = it is not known to be one; stays until another package or an
                       // acknowledgement
  std::string named;   // the fingerprint that it tells of what it serves, "" = none
  std::string wait;    // a rolling update is under way: look again (exit 75), "" = none
  Json evidence;       // "evidence.target" of the result
  std::string memory;  // to be kept for the next call
};

// What the draft is bound to: digest of the package, fingerprint id of its target.
struct WatchedPair {
  std::string package, target;
};

// `memory`: that of the call before, "" the first time. Another package or URL, and "", begin anew: what answers then
// is the reference, because a remote endpoint shows no fingerprint of its files. The alarm level is that of
// `false_alarm_every_days`, at least 1000 looks. At most 8 × calls requests a look (without log-probabilities 64 texts
// of 64 tokens, twice as many the first time) and a handful to begin. Two modes in the answers are a rolling update:
// `wait`, for at most a day, then `stale`. Throws what Endpoint throws, Error(kUsage) for `calls` outside 8 … 256,
// Error(kData) for a memory that is none.
TargetSight watch_target(const TargetWatchOptions& options, const WatchedPair& pair, const std::string& memory,
                         const Clock& clock);

}  // namespace specdec::monitor
