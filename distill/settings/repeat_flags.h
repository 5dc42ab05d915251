// Turns the options of a run back into command-line flags, so that a command that is suggested to the user has the
// user's flags.
#pragma once

#include <string>
#include <vector>

#include "distill/settings/options.h"

namespace specdec::distill {

// Returns the arguments of "specdec distill" that set every option whose value is not the default. --resume and the
// flags of --forecast and --compare are left out.
std::vector<std::string> repeated_command(const DistillOptions& options);
// Returns the flags for `specdec validate` that correspond to options that the user changed: temperature, contexts,
// device and threads. --dtype is left out, because `validate` measures in the dtype used for serving.
std::vector<std::string> flags_of_gate(const DistillOptions& options);
// Returns the options with every limit that is set (steps, time, epochs) multiplied by `factor`. If none is set, epochs
// becomes 3 · factor (3 is the default).
DistillOptions longer_run(DistillOptions options, double factor);

}  // namespace specdec::distill
