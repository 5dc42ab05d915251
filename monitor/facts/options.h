// The user's options for a check: the package and target, the sources, and what the loop may do without being asked.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/secret.h"
#include "monitor/facts/policy.h"
#include "monitor/facts/target_watch.h"

namespace specdec::monitor {

struct CheckOptions {
  std::string package;             // a package directory or STORE:CHANNEL
  std::vector<SecretUrl> sources;  // record files, directories and /metrics URLs
  Secret api_key;                  // sent to the URLs among the sources; "" = no key
  // The target that is served now: a MODEL or the URL of an OpenAI-compatible endpoint; "" = the package's own target.
  std::string target;
  bool full_target = false;         // compares all weights of a local target, not only samples
  TargetWatchOptions target_watch;  // options for watching an endpoint; target_watch.url is set from `target`
  std::filesystem::path state;
  std::string model;  // selects the counters' model_name if a page has several
  // File written by `monitor baseline`; "" = use the roll-outs in the package's validation report.
  std::string baseline;
  double requests_per_day = 0;  // 0 = unknown; an alarm is then raised at an e-value of 1e6
  double false_alarm_every_days = 365;
  std::string on_drift;           // command run by /bin/sh -c for each alarm, at each check until it exits with 0
  std::string fail_on = "drift";  // the mildest verdict that gives a failure exit code: warn | drift | stale
  double wander_sd = 0;           // standard deviation of the mean acceptance's slow, benign variation; 0 = unknown
  bool exit_zero = false;
  bool acknowledge = false;  // restarts the detectors: the operator has dealt with the alarm
  Policy policy;
  std::string program;  // path of the specdec program, which runs the commands that a check starts
};

}  // namespace specdec::monitor
