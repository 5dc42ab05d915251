// `monitor check`: target fingerprint, acceptance, verdict, and what follows from it. One call is one look; `watch`
// repeats it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/secret.h"
#include "monitor/policy.h"
#include "monitor/state.h"
#include "monitor/target_watch.h"

namespace specdec::monitor {

struct CheckOptions {
  std::string package;             // package directory or STORE:CHANNEL
  std::vector<SecretUrl> sources;  // record files, directories, /metrics URLs
  Secret api_key;                  // sent to the URLs among the sources, "" = none
  // MODEL or the URL of an OpenAI-compatible endpoint: the target as served now; "" = the package's own
  std::string target;
  bool full_target = false;         // of a local target every byte, not the fingerprint's samples alone
  TargetWatchOptions target_watch;  // of a URL; its `url` is taken from `target`
  std::filesystem::path state;
  std::string model;            // model_name of the counters, where a page has several
  std::string baseline;         // file of `monitor baseline`; "" = the roll-outs of the package's report
  double requests_per_day = 0;  // 0 = unknown: A = 1e6
  double false_alarm_every_days = 365;
  std::string on_drift;           // run by /bin/sh -c, once an alarm
  std::string fail_on = "drift";  // warn | drift | stale: the mildest verdict that fails
  double wander_sd = 0;           // slow wander of the baseline's bucket means, where it is known
  bool exit_zero = false;
  bool acknowledge = false;  // start the detectors anew: an alarm that was looked into
  Policy policy;
  std::string program;  // path of specdec, for the stages it starts
};

struct CheckResult {
  Json json;  // schema "specdec.monitor/1"
  std::string verdict, reason;
  int exit_code = 0;
};

// Throws Error(kUsage): options; Error(kData | kModel): package, records or metrics page; Error(kNetwork): a URL that
// does not answer, another check or one of its children still at work (<state>.lock); Error(kIo): the state's file.
// What follows is committed before it is done; what an earlier check had begun is ended first. The result is also
// written beside the state, as <state>.report.json. An alarm stays until another package or `acknowledge`.
CheckResult check(const CheckOptions& options, const Clock& clock);

// healthy, warn 0 · drift 3 · inconclusive 4 · stale_target 5 · not_worth_it 6, as --fail-on says.
int monitor_exit_code(const std::string& verdict, const std::string& fail_on);

}  // namespace specdec::monitor
