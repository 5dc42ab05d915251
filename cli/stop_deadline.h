// What a stop request does beyond raising the flag of base/progress.h: the process ends within a few seconds of it,
// whatever it is doing. Work that looks at the flag in time ends in its own words; SIGALRM ends the rest. That is safe
// because every file is published by a rename, so a process may be killed at any moment.
#pragma once

namespace specdec::cli {

// Longer than any stretch of work that does not look at the flag ought to take, and shorter than anybody's patience
// (Kubernetes: 30 s).
inline constexpr unsigned kStopSeconds = 8;
// A command that waits for children of its own leaves them their time first.
inline constexpr unsigned kStopSecondsOfParents = 9;

// For a signal handler: requests the stop and starts the time.
void stop_by_signal(int number);

// The time that the command has from a stop request to its end; 0: as long as it takes (a server that drains). Holds
// for a request that has come already, too.
void set_stop_seconds(unsigned seconds);

// The exit code of a stopped process is 128 + the signal, or 75 once the command says that running it again goes on
// with the work.
void set_stop_resumes();
int stop_exit_code();

}  // namespace specdec::cli
