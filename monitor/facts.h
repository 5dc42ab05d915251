// A check needs these facts: the package, its report, and the target that is served as far as it is known. They are
// gathered before the sources are read, and passed with each call that needs them.
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

// The state keeps ServedMemory under this key.
inline constexpr const char* kServedTarget = "served_target";

struct Facts {
  ResolvedPackage package;
  ValidationReport report;
  ResolvedModel served;  // is where the target lies; of an endpoint it is the package's, where a probe needs it
  // Is the fingerprint of `served`. An endpoint shows none: the package's stands for it, with another id where the
  // target check found another target.
  Fingerprint local;
  bool remote = false;               // --target is an endpoint
  TargetCheck target_check;          // is made of an endpoint, and of a local target with --full
  Witness witness = Witness::kCopy;  // says who saw the target
  Fingerprint target;                // is what is served as far as is known: `local`, or what the sources name
  bool unknown = false;              // another target is served, and nobody tells its fingerprint

  // Takes the target that judge_served found. `id` "" = it found nothing else than `local`.
  void found(const std::string& id, Witness by);
  // Returns which tiers of the target that a draft is bound to differ from what is served, "" = none. What an endpoint
  // serves now fits no draft for the target that is known to have gone, and any other draft may be for it.
  std::string misfit(const Fingerprint& bound) const;
};

// Returns what the state remembers under a key.
using Remembered = std::function<std::string(const char* key)>;
// Opens the package and looks at the target. Asks a hub or an endpoint, and may download a target. Throws Error(kData)
// where there is no package, and what looking at the target throws.
Facts gather_facts(const CheckOptions& options, const Remembered& remembered, const Clock& clock);

// Keeps what the next check of the target needs. Throws Error(kNetwork) in a rolling update, because nobody knows whose
// acceptance would be judged.
void keep_target_check(State& state, const Facts& facts);
// Enters what is known of the target that is served before the sources are asked.
void recall_served(const State& state, Facts& facts);
// Returns what was seen of the target without asking those who serve it.
Sighting sighting_of(const Facts& facts);

}  // namespace specdec::monitor
