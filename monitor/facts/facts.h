// The facts that a check needs: the package, its report, and what is known about the target that is served. The facts
// are gathered before the sources are read, and passed to each function that needs them.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/fingerprint.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "base/schema/validation_report.h"
#include "monitor/facts/options.h"
#include "monitor/facts/served_target.h"
#include "monitor/facts/target_watch.h"
#include "monitor/state/state.h"

namespace specdec::monitor {

// The key of ServedMemory in the state.
inline constexpr const char* kServedTarget = "served_target";

struct Facts {
  ResolvedPackage package;
  ValidationReport report;
  // The directory of the served target. If --target is an endpoint, this is the package's copy of the target, and it is
  // set only if a probe needs it.
  ResolvedModel served;
  // The fingerprint of `served`. The files behind an endpoint cannot be read, so for an endpoint this is the package's
  // fingerprint; its id is replaced if the target check found another target.
  Fingerprint local;
  bool remote = false;               // --target is an endpoint
  TargetCheck target_check;          // set for an endpoint, and for a local target with --full
  Witness witness = Witness::kCopy;  // the kind of evidence that identified the target
  // The target believed to be served: `local`, or the target that the sources name.
  Fingerprint target;
  bool unknown = false;  // another target is served, and its fingerprint is not known

  // Sets the target that judge_served() found by evidence of kind `by`; id "" means that it found no target but
  // `local`.
  void found(const std::string& id, Witness by);
  // `bound` is the fingerprint of the target that a draft is bound to. Returns the parts of `bound` in which the served
  // target differs, "" = none. If an endpoint serves an unknown target, a draft bound to the package's own target does
  // not fit, and any other draft may fit.
  std::string misfit(const Fingerprint& bound) const;
};

// Looks up the value of a key in the state.
using Remembered = std::function<std::string(const char* key)>;
// Opens the package and identifies the target. May query a hub or an endpoint, and may download a target. Throws
// Error(kData) if there is no package, and the errors of identifying the target.
Facts gather_facts(const CheckOptions& options, const Remembered& remembered, const Clock& clock);

// Stores what the next target check needs to remember. Throws Error(kNetwork), which means "try again", during a
// rolling update: it is then unknown which target's acceptance would be judged.
void keep_target_check(State& state, const Facts& facts);
// Stores in `facts` the served target that earlier checks found. Called before the sources are read.
void recall_served(const State& state, Facts& facts);
// Returns the evidence about the target that does not come from the servers' /metrics pages or from records.
Sighting sighting_of(const Facts& facts);

}  // namespace specdec::monitor
