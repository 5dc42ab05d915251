// Ends the process within a few seconds of a stop request, whatever it is doing. Work that checks stop_requested()
// (base/progress.h) in time ends by itself; otherwise SIGALRM ends the process. This is safe because every file is
// published by a rename, so the process may be killed at any moment.
#pragma once

#include <functional>
#include <string>

namespace specdec::cli {

// Must be longer than any work that does not check stop_requested(), and shorter than the usual grace period
// (Kubernetes: 30 s).
inline constexpr unsigned kStopSeconds = 8;
// For a command that waits for child processes: one second longer, so that the children end first.
inline constexpr unsigned kStopSecondsOfParents = 9;

// If the same signal arrives again within this time, it is the same request. When systemd stops a whole process group,
// a child gets the signal twice: from systemd, and from its parent, which passes it on. A person's second Ctrl-C comes
// later.
inline constexpr double kSameRequestSeconds = 1;

// Signal handlers call it, with the time of a monotonic clock. The first signal requests the stop and starts the timer.
// If the same signal comes again after kSameRequestSeconds, it ends the process at once.
void stop_by_signal(int number, double now_seconds);

// Sets the time from a stop request to the end of the process; 0 = no limit (for a server that drains). If a stop was
// already requested, the time starts now.
void set_stop_seconds(unsigned seconds);

// stop_exit_code() is 128 + the signal, or 75 if set_stop_resumes() declared what resumes the work: "the same command",
// or "the same command with --resume".
void set_stop_resumes(const std::string& command);
int stop_exit_code();

// What the process prints when it is ended.
struct StopReport {
  std::string to_stderr, to_stdout;
};
// Chooses the report. `make` is called at once, for the exit code of each signal and the message that belongs to it,
// because a signal handler cannot make text. Without this call nothing is printed. To be called after
// set_stop_resumes().
void set_stop_report(const std::function<StopReport(int exit_code, const std::string& message)>& make);

}  // namespace specdec::cli
