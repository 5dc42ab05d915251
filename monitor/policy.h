// What the user lets the loop do by itself. Everything is off until it is given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/secret.h"

namespace specdec::monitor {

struct Policy {
  // Confirmation
  std::string canary;           // data directory of the canary set: the built-in paired probe
  std::string probe;            // a command instead; prints what `validate --json --baseline` prints
  bool alarm_confirms = false;  // --confirm alarm: without a probe
  double min_loss = 0.02;       // smallest drop of acceptance worth money
  // Redistilling
  std::string loop;            // LOOP.toml for `specdec loop run`
  std::string redistil;        // a command instead
  std::string job, job_image;  // a Kubernetes Job manifest is written to `job`
  double cooldown_hours = 24;
  int64_t min_fresh = 2000;  // new requests since the last redistillation
  int64_t budget = 3;        // redistillations in 7 days
  // Pay-back; no question of it while gpu_hours is 0
  double gpu_hours = 0, horizon_days = 14, tokens_per_second = 0, tokens_per_request = 0;
  int gpus = 1;  // that make those tokens a second
  // Candidate and canary
  std::string candidate;      // STORE:CHANNEL where redistilled packages appear
  bool allow_failed = false;  // also those that were packaged with --allow-failed
  std::string admin;          // the server's admin listener: http(s)://… or unix:PATH
  Secret admin_key;
  double score = 0.2, serve = 0;  // parts of the conversations: scored by the candidate, served with it
  double margin = 0.01;           // by how much the candidate may be worse
  double bake_hours = 24, canary_days = 7;
  // Speculation off and on
  std::string disable, enable;  // commands
  // Telling others
  std::vector<SecretUrl> webhooks;  // that show their host alone
  Secret webhook_secret;
  SecretUrl alertmanager;
  std::string alert;  // file with an Alertmanager notification, "-" = standard input
  std::string prom;   // textfile of node_exporter
};

}  // namespace specdec::monitor
