// Checks whether a remote endpoint still serves the target that the draft was validated for. If the endpoint gives a
// fingerprint (as specdec serve does), the fingerprint decides. Otherwise the endpoint's description of itself is
// compared and, once a day, its log-probabilities are tested (or greedy texts, if it gives no log-probabilities).
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

// The result of checking whether the endpoint still serves the target that the draft was validated for.
struct TargetCheck {
  // Why another target is served, "" = no other target is known. The reason is kept until the package changes or the
  // operator acknowledges the alarm.
  std::string stale;
  std::string named;  // fingerprint of the served target as the endpoint states it, "" = none
  // Why a rolling update seems to be under way, so that the check ends with "try again" (exit 75); "" = none.
  std::string wait;
  Json evidence;       // for the field "evidence.target" of the check's result
  std::string memory;  // must be passed to the next call
};

// Checks the endpoint once. `memory` is what the previous call returned, "" the first time. With "", another package or
// another URL, the current answers become the reference, because a remote endpoint gives no fingerprint of its files.
// A poll makes at most 8 × calls requests. Without log-probabilities it requests 64 texts of 64 tokens, and twice as
// many in the first poll. The first poll makes a few more requests, to find out what the endpoint offers. The alarm
// level follows from `false_alarm_every_days` and is between 1,000 and 10,000 polls. Answers in two distinct groups
// mean a rolling update: the result is `wait` for at most a day, then `stale`.
// Throws what Endpoint throws, Error(kUsage) for `calls` outside 8 … 256, and Error(kData) for a memory that cannot be
// read.
TargetCheck watch_target(const TargetWatchOptions& options, const WatchedPair& pair, const std::string& memory,
                         const Clock& clock);

}  // namespace specdec::monitor
