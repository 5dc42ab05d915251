// What the user tells a check: which package and target, which sources, and what the loop may do by itself.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/secret.h"
#include "monitor/policy.h"
#include "monitor/target_watch.h"

namespace specdec::monitor {

struct CheckOptions {
  std::string package;             // names a package directory or STORE:CHANNEL
  std::vector<SecretUrl> sources;  // name record files, directories and /metrics URLs
  Secret api_key;                  // is sent to the URLs among the sources; "" = there is none
  // Names the target as served now, a MODEL or the URL of an OpenAI-compatible endpoint; "" = it is the package's own.
  std::string target;
  bool full_target = false;         // every byte of a local target is compared, not the fingerprint's samples alone
  TargetWatchOptions target_watch;  // says how an endpoint is watched; its `url` is taken from `target`
  std::filesystem::path state;
  std::string model;            // selects the counters' model_name where a page has several
  std::string baseline;         // is a file of `monitor baseline`; "" = the report's roll-outs are the baseline
  double requests_per_day = 0;  // 0 = it is unknown, and the alarm level is 1e6
  double false_alarm_every_days = 365;
  std::string on_drift;           // is run by /bin/sh -c, once for each alarm
  std::string fail_on = "drift";  // is the mildest verdict that fails: warn | drift | stale
  double wander_sd = 0;           // is the slow wander of the baseline's bucket means, where it is known
  bool exit_zero = false;
  bool acknowledge = false;  // the detectors start anew, because somebody looked into the alarm
  Policy policy;
  std::string program;  // is the path of specdec, which runs the stages that a check starts
};

}  // namespace specdec::monitor
