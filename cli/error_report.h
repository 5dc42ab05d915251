// Reports every failure of this program: by one line on stderr and, with --json, by one object on stdout.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "cli/command.h"

namespace specdec::cli {

// Sets json and log_format of `global` from the arguments and the environment before the command line is parsed, so
// that a mistake in the command line is reported in the requested format.
void read_report_format(Global& global);

// Prints the error and returns its exit code. `command` is for example "data ingest", or "" if the command line names
// none. The error is the last line on stderr and names the file or key and the reason.
int report_error(const Error& error, const Global& global, const std::string& command);

// Runs the work of a process and returns its exit code. If the work throws, or if its result could not be written to
// stdout, reports the error and returns the error's exit code. `command` is read only when an error is reported, so the
// work may set it.
int run_reported(const std::function<int()>& work, const Global& global, const std::string& command);

// Prints the reason why a stale draft is refused, and returns the exit code of the verdict.
int report_stale(const std::string& reason);

// Prepares the text that is printed if a process does not end in time after a stop signal (cli/stop_deadline.h).
void prepare_stop_report(const Global& global, const std::string& command);

}  // namespace specdec::cli
