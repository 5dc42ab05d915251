// The policy: what the loop may do without being asked. Each feature is off until the user gives its option.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/secret.h"

namespace specdec::monitor {

struct Policy {
  // Options for confirming an alarm:
  std::string canary;           // data directory of fixed requests with which a probe measures acceptance
  std::string probe;            // a command instead of `canary`; prints what `validate --json --baseline` prints
  bool alarm_confirms = false;  // --confirm alarm: an alarm counts as confirmed without a probe
  double min_loss = 0.02;       // the smallest drop of acceptance that matters
  // Options for redistillation:
  std::string loop;            // LOOP.toml for `specdec loop run`
  std::string redistil;        // a command instead of `loop`
  std::string job, job_image;  // file for the manifest of a Kubernetes Job, and the Job's image
  double cooldown_hours = 24;
  int64_t min_fresh = 2000;  // new requests needed since the last redistillation
  int64_t budget = 3;        // redistillations allowed in 7 days
  // Options for computing whether a redistillation pays; not computed while gpu_hours is 0:
  double gpu_hours = 0, horizon_days = 14, tokens_per_second = 0, tokens_per_request = 0;
  int gpus = 1;  // GPUs that together generate tokens_per_second
  // Options for trying a candidate draft:
  std::string candidate;      // STORE:CHANNEL where redistilled packages appear
  bool allow_failed = false;  // also tries packages that were made with --allow-failed
  std::string admin;          // the server's admin listener: http(s)://… or unix:PATH
  Secret admin_key;
  // While a candidate is on trial (canary): the share of conversations on which it is scored, and the share that it
  // serves; both in [0, 1].
  double score = 0.2, serve = 0;
  double margin = 0.01;  // the candidate's acceptance may be lower than the serving draft's by this much
  double bake_hours = 24, canary_days = 7;
  // Options for turning speculation off and on:
  std::string disable, enable;  // the user's shell commands
  // Options for notifications:
  std::vector<SecretUrl> webhooks;  // only their host is ever shown
  Secret webhook_secret;
  SecretUrl alertmanager;
  std::string alert;  // file with an Alertmanager notification, "-" = standard input
  std::string prom;   // textfile for node_exporter
};

}  // namespace specdec::monitor
