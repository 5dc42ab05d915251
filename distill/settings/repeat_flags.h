// Turns the options of a run back into a command line, so that a suggested command repeats the user's flags.
#pragma once

#include <string>
#include <vector>

#include "distill/settings/options.h"

namespace specdec::distill {

// Returns the arguments of "specdec distill" with every flag whose value is not the default, except --resume and the
// flags of --forecast and --compare.
std::vector<std::string> repeated_command(const DistillOptions& options);
// Returns flags for `specdec validate` with the options that both commands have and that the user changed: temperature,
// contexts, device and threads. --dtype is not included, because `validate` measures in the dtype used for serving.
std::vector<std::string> flags_of_gate(const DistillOptions& options);
// Returns the options with every limit that is set (steps, time, epochs) multiplied by `factor`. If none is set, epochs
// becomes 3 · factor (3 is the default).
DistillOptions longer_run(DistillOptions options, double factor);

}  // namespace specdec::distill
