// Checks whether a remote endpoint still serves the target that the draft was validated for. Uses the fingerprint if
// the endpoint gives one (specdec serve), else what the endpoint says about itself and log-probability tracking once a
// day, or greedy texts if there are no log-probabilities.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/secret.h"
#include "monitor/facts/served_target.h"

namespace specdec::monitor {

struct TargetWatchOptions {
  std::string url, model;  // model "" = the first model of /v1/models
  Secret api_key;
  int calls = 32;  // requests per prompt in one poll; there are 8 prompts
  // Seconds between polls. The endpoint's description of itself is fetched at every check.
  double every_s = 86400;
  double false_alarm_every_days = 365;
  std::function<void(double)> sleep;  // tests replace the wait between attempts
};

// The result of a check whether the target is still the one that the draft was validated for.
struct TargetCheck {
  // Why it is another target; it stays so until another package or an acknowledgement. "" = no other target is known.
  std::string stale;
  std::string named;  // fingerprint that the endpoint gives for what it serves, "" = none
  // A rolling update is under way, and the next check must decide (exit 75); "" = none is.
  std::string wait;
  Json evidence;       // the result's "evidence.target"
  std::string memory;  // must be passed to the next call
};

// Checks the endpoint once. `memory` is what the previous call returned, "" the first time. With "", or another package
// or URL, the watch starts anew: the current answers become the reference, because a remote endpoint shows no
// fingerprint of its files. The alarm level follows from `false_alarm_every_days` and is between 1000 and 10,000 polls.
// A poll makes at most 8 × calls requests (without log-probabilities 64 texts of 64 tokens, and twice as many the first
// time). The first poll makes a few more, to find out what the endpoint gives. Two modes in the answers mean a rolling
// update: the result is `wait` for at most a day, then `stale`. Throws what Endpoint throws, Error(kUsage) for `calls`
// outside 8 … 256, and Error(kData) for a memory that cannot be read.
TargetCheck watch_target(const TargetWatchOptions& options, const WatchedPair& pair, const std::string& memory,
                         const Clock& clock);

}  // namespace specdec::monitor
