// Ends the process within a few seconds of a stop request, whatever it is doing. Work that checks stop_requested()
// (base/progress.h) in time ends by itself; otherwise SIGALRM ends the process. This is safe because every file is
// published by a rename, so the process may be killed at any moment.
#pragma once

#include <functional>
#include <string>

namespace specdec::cli {

// Seconds from the stop request to the end of the process. Longer than any work that does not check stop_requested(),
// and shorter than the usual grace period (Kubernetes: 30 s).
inline constexpr unsigned kStopSeconds = 8;
// kStopSeconds for a command that waits for child processes: one second more, so that the children end first.
inline constexpr unsigned kStopSecondsOfParents = 9;

// If the same signal arrives again within this time, it is the same request. When systemd stops a whole process group,
// a child gets the signal twice: from systemd, and from its parent, which passes it on. A person's second Ctrl-C comes
// later.
inline constexpr double kSameRequestSeconds = 1;

// Called by signal handlers, with the time of a monotonic clock. The first signal requests the stop and starts the
// timer. If the same signal comes again after kSameRequestSeconds, the process ends at once.
void stop_by_signal(int number, double now_seconds);

// Sets the time from a stop request to the end of the process; 0 = no limit (for a server that drains). If a stop was
// already requested, the time starts now.
void set_stop_seconds(unsigned seconds);

// stop_exit_code() is 75 if set_stop_resumes() stated how the work is resumed ("the same command", or "the same command
// with --resume"), else 128 + the signal.
void set_stop_resumes(const std::string& command);
int stop_exit_code();

// The text that the process prints when the timer ends it.
struct StopReport {
  std::string to_stderr, to_stdout;
};
// Prepares the reports. Calls `make` at once for each signal, with its exit code and message, because a signal handler
// cannot format text. Without this call nothing is printed. Call it after set_stop_resumes().
void set_stop_report(const std::function<StopReport(int exit_code, const std::string& message)>& make);

}  // namespace specdec::cli
