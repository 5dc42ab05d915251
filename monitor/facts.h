// The facts that a check needs: the package, its report, and what is known about the target that is served. They are
// gathered before the sources are read, and passed to each call that needs them.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/fingerprint.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "base/schema/validation_report.h"
#include "monitor/options.h"
#include "monitor/served_target.h"
#include "monitor/state.h"
#include "monitor/target_watch.h"

namespace specdec::monitor {

// The key of ServedMemory in the state.
inline constexpr const char* kServedTarget = "served_target";

struct Facts {
  ResolvedPackage package;
  ValidationReport report;
  // The directory of the target. For an endpoint it is the package's copy, if a probe needs it.
  ResolvedModel served;
  // The fingerprint of `served`. An endpoint shows none, so the package's is used, with another id if the target check
  // found another target.
  Fingerprint local;
  bool remote = false;               // --target is an endpoint
  TargetCheck target_check;          // made for an endpoint, and for a local target with --full
  Witness witness = Witness::kCopy;  // who saw the target
  // The target that is served as far as is known: `local`, or the one that the sources name.
  Fingerprint target;
  bool unknown = false;  // another target is served, and its fingerprint is not known

  // Enters the target that judge_served found. `id` "" means that it found nothing other than `local`.
  void found(const std::string& id, Witness by);
  // Returns which tiers of the target that a draft is bound to differ from the served target, "" = none. If an endpoint
  // serves an unknown target, a draft for the package's own target does not fit, and any other draft may fit.
  std::string misfit(const Fingerprint& bound) const;
};

// Returns the value that the state holds under a key.
using Remembered = std::function<std::string(const char* key)>;
// Opens the package and identifies the target. Asks a hub or an endpoint, and may download a target. Throws
// Error(kData) if there is no package, and whatever identifying the target throws.
Facts gather_facts(const CheckOptions& options, const Remembered& remembered, const Clock& clock);

// Stores what the next check of the target needs. Throws Error(kNetwork) during a rolling update, because it is unknown
// which target's acceptance would be judged.
void keep_target_check(State& state, const Facts& facts);
// Enters what earlier checks found out about the served target, before the sources are asked.
void recall_served(const State& state, Facts& facts);
// Returns what is known about the target without asking the servers.
Sighting sighting_of(const Facts& facts);

}  // namespace specdec::monitor
