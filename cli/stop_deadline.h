// Ends the process within a few seconds of a stop request, whatever it is doing. Work that checks the flag of
// base/progress.h in time ends by itself; SIGALRM ends the rest. That is safe because every file is published by a
// rename, so a process may be killed at any moment.
#pragma once

namespace specdec::cli {

// Longer than any stretch of work that does not check the flag should take, and shorter than the usual grace period
// (Kubernetes: 30 s).
inline constexpr unsigned kStopSeconds = 8;
// A command that waits for child processes gives them their time first.
inline constexpr unsigned kStopSecondsOfParents = 9;

// Requests the stop and starts the timer; a signal handler calls it.
void stop_by_signal(int number);

// Sets the time from a stop request to the end of the process; 0 = no limit (a server that drains). Also applies to a
// request that was already made.
void set_stop_seconds(unsigned seconds);

// The exit code of a stopped process is 128 + the signal, or 75 if set_stop_resumes() declared that the same command
// resumes the work.
void set_stop_resumes();
int stop_exit_code();

}  // namespace specdec::cli
