// Writes the command of a run from its options, so that a suggested command keeps what the user gave.
#pragma once

#include <string>
#include <vector>

#include "distill/settings/options.h"

namespace specdec::distill {

// Returns "specdec distill" with every flag whose value is not the default; --resume, and the flags of studies, are
// left out.
std::vector<std::string> repeated_command(const DistillOptions& options);
// Returns the flags of `options` that validate has, too, where the user gave another value: where and on what text it
// measures. The dtype is not among them: the gate measures in the one that serves.
std::vector<std::string> flags_of_gate(const DistillOptions& options);
// Returns the options with the limit that counts multiplied by `factor`.
DistillOptions longer_run(DistillOptions options, double factor);

}  // namespace specdec::distill
