// How every failure of this program is reported: one line on stderr and, with --json, one object on stdout.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "cli/command.h"

namespace specdec::cli {

// Fills json and log_format of `global` from the arguments and the environment, as far as they can be read before the
// command line is parsed: a mistake in the command line is reported in the format that it asks for.
void read_report_format(Global& global);

// Prints the error and returns its exit code. `command` is "data ingest"; "" if the command line names none. The line
// on stderr is the last one there and names the file or key and the reason.
int report_error(const Error& error, const Global& global, const std::string& command);

// Runs the work of a process and returns its exit code. If the work throws, or if its result could not be written to
// standard output, the error is reported and gives the exit code. `command` is read only for that report, so the work
// may set it.
int run_reported(const std::function<int()>& work, const Global& global, const std::string& command);

// Prints the reason why a stale draft is refused, and returns the exit code of the verdict.
int report_stale(const std::string& reason);

// Prepares what a process that ignores a stop prints when its time is over (cli/stop_deadline.h).
void prepare_stop_report(const Global& global, const std::string& command);

}  // namespace specdec::cli
