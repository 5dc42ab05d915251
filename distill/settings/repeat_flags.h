// Writes the command of a run from its options, so that a suggested command keeps what the user gave.
#pragma once

#include <string>
#include <vector>

#include "distill/settings/options.h"

namespace specdec::distill {

// Returns "specdec distill" with every flag whose value is not the default; --resume, and the flags of studies, are
// left out.
std::vector<std::string> repeated_command(const DistillOptions& options);
// Returns the flags that `validate` has, too, for those of `options` that the user changed: temperature, contexts,
// device and threads. The dtype is not among them, because the gate measures in the dtype that serves.
std::vector<std::string> flags_of_gate(const DistillOptions& options);
// Returns the options with every limit that is set (steps, time, epochs) multiplied by `factor`; if none is set, with
// `factor` times the default of 3 epochs.
DistillOptions longer_run(DistillOptions options, double factor);

}  // namespace specdec::distill
